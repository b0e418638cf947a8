"""The template and `vllm-adapter new`: what comes out, for which vendors, and that it works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from cookiecutter.generate import generate_context
from cookiecutter.prompt import prompt_for_config, render_variable
from cookiecutter.utils import create_env_with_context
from fake_dist import environment
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

import vllm_adapter
import vllm_adapter_template
from vllm_adapter.cli.main import main
from vllm_adapter.contract.manifest import check_name

pytestmark = pytest.mark.device

ROOT = Path(__file__).parents[2]
TEMPLATE = vllm_adapter_template.path()
VENDORS = {
    "Acme": ("acme", "vllm-adapter-acme"),
    "Moore Threads": ("moore_threads", "vllm-adapter-moore-threads"),
    "X-Y.Z": ("x_y_z", "vllm-adapter-x-y-z"),
    "Acme, Inc.": ("acme__inc_", "vllm-adapter-acme-inc"),
    "Chip'n'Dale 🚀": ("chip_n_dale__", "vllm-adapter-chip-n-dale"),
}
"""Vendors that make a name: the adapter's, and the distribution's."""
NO_NAMES = (
    "910B",
    "default",
    "Lambda",
    "ΩChip",
    "",
    "_",
    "torch",
    "寒武纪",
    " Acme",
    "Conformance",
    "Template",
    "Schemas",
    "Core",
    "x" * 65,
)
UNFIT = ('O"Neil', "back\\slash", "{{ 7 * 7 }}", "{% raw", "two\nlines", "nul\0", "tab\t")


def bake(folder, *answers):
    """Runs cookiecutter itself, as somebody does who has no vllm-adapter."""
    words = ["-m", "cookiecutter", "--no-input", "--default-config", TEMPLATE, *answers]
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def package_of(project):
    (package,) = (project / "src").iterdir()
    return package


def hook_says(vendor, name, **answers):
    """What the hook prints for these answers; None if it lets them pass."""
    context = generate_context(str(TEMPLATE / "cookiecutter.json"), extra_context=answers)
    values = prompt_for_config(context, no_input=True)
    values |= {"vendor": vendor, "__name": name}
    source = (TEMPLATE / "hooks" / "pre_gen_project.py").read_text(encoding="utf-8")
    env = create_env_with_context({"cookiecutter": values})
    try:
        exec(env.from_string(source).render(cookiecutter=values), {"__name__": "hook"})
    except SystemExit as error:
        return str(error.code)
    return None


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendor_makes_a_name_and_a_project_that_is_valid(vendor, tmp_path, capsys):
    name, dist = VENDORS[vendor]
    assert main(["new", vendor, "--output", str(tmp_path / "new"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["name"], Path(said["project"]).name) == (name, dist)
    assert bake(tmp_path, f"vendor={vendor}").returncode == 0
    by_new, by_hand = tmp_path / "new" / dist, tmp_path / dist
    files = sorted(str(f.relative_to(by_hand)) for f in by_hand.rglob("*") if f.is_file())
    assert files == said["files"]
    assert all((by_hand / f).read_bytes() == (by_new / f).read_bytes() for f in files)

    package = package_of(by_new)
    assert package.name == f"vllm_adapter_{name}"
    assert json.loads((package / "adapter.json").read_bytes())["vendor"] == vendor
    assert main(["validate", str(package)]) == 0
    project = tomllib.loads((by_new / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == dist
    assert project["entry-points"]["vllm_adapter.adapters"] == {name: package.name}
    ruff = [sys.executable, "-m", "ruff", "--config", str(ROOT / "pyproject.toml")]
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([*ruff, *words, by_new], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("vendor", [*NO_NAMES, *UNFIT])
def test_a_vendor_that_makes_no_name_is_one_sentence_and_no_file(vendor, tmp_path, capsys):
    assert main(["new", vendor, "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 2
    assert repr(vendor)[:40] in said or not vendor
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("vendor", ["910B", "default", "ΩChip", "", 'O"Neil'])
def test_cookiecutter_itself_is_stopped_by_the_hook(vendor, tmp_path):
    done = bake(tmp_path, f"vendor={vendor}")
    assert done.returncode != 0
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert repr(vendor) in sentence
    assert not list(tmp_path.glob("vllm-adapter*"))


@given(
    st.text(max_size=40) | st.sampled_from(["default", "Class", "out", "A_1", "\u017f", "\u212a9"])
)
def test_the_name_is_by_the_rule_and_the_hook_says_what_core_says(vendor):
    raw = json.loads((TEMPLATE / "cookiecutter.json").read_bytes())
    env = create_env_with_context({"cookiecutter": raw})
    name = render_variable(env, raw["__name"], {"vendor": vendor})
    assert name == re.sub(r"[^a-z0-9_]", "_", vendor.lower())
    said = hook_says(vendor, name)
    if not vendor.isprintable() or set('"\\{}') & set(vendor):
        assert said is not None and "control character" in said
        return
    fault = check_name(name)
    made = f"error: the adapter's name, made of the vendor {vendor!r}, "
    assert said == (None if fault is None else made + fault)


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        ("torch_type", ("", "CUDA", "a:0", "1a"), ("cuda", "npu")),
        ("torch_module", ("a-b", "a.", "1", "a b"), ("", "torch_npu", "acme.torch")),
        ("pci_vendor", ("10DE", "0x10de", "10d", "10dee"), ("", "10de")),
        ("arch", ("", "a/b", "..", "a b", ".hidden"), ("sm_90", "gfx942", "910B-2.1")),
    ],
)
def test_other_answers_are_checked_too(key, bad, good):
    for answer in bad:
        assert f"the {key} is {answer!r}; " in str(hook_says("Acme", "acme", **{key: answer}))
    for answer in good:
        assert hook_says("Acme", "acme", **{key: answer}) is None


def test_a_real_chip_s_answers_reach_the_manifest(tmp_path):
    answers = ("torch_type=acme", "torch_module=torch_acme", "pci_vendor=fff1", "arch=A-100")
    assert bake(tmp_path, *answers).returncode == 0
    package = package_of(tmp_path / "vllm-adapter-acme")
    assert main(["validate", str(package)]) == 0
    manifest = json.loads((package / "adapter.json").read_bytes())
    assert manifest["device"] == {"torch_type": "acme", "torch_module": "torch_acme"}
    assert manifest["match"] == [{"pci_vendor": "fff1"}]
    assert (package / "capabilities" / "A-100.json").is_file()


def test_every_question_is_a_sentence():
    raw = json.loads((TEMPLATE / "cookiecutter.json").read_bytes())
    asked = {key for key in raw if not key.startswith("_")}
    assert set(raw["__prompts__"]) == asked
    assert set(raw["__prompts__"]["kind"]) == {"__prompt__", *raw["kind"]}


def test_what_is_there_is_never_overwritten(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "Acme"]) == 0
    assert "pip install -e vllm-adapter-acme\n" in capsys.readouterr().out
    manifest = package_of(Path("vllm-adapter-acme")) / "adapter.json"
    manifest.write_text("mine")
    assert main(["new", "Acme"]) == 2
    assert "vllm-adapter-acme is there already" in capsys.readouterr().err
    assert manifest.read_text() == "mine"
    Path("vllm-adapter-b").symlink_to("nowhere")
    assert main(["new", "B"]) == 2
    assert not Path("nowhere").exists()
    Path("file").write_text("")
    for output in ("file", "file/below"):
        assert main(["new", "C", "--output", output]) == 2
    assert main(["new", "c" * 300]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "file",
        "vllm-adapter-acme",
        "vllm-adapter-b",
    ]


@pytest.mark.parametrize("missing", ["cookiecutter", "vllm_adapter_template"])
def test_without_the_extra_it_says_how_to_get_it(missing, monkeypatch, tmp_path, capsys):
    for module in [m for m in sys.modules if m.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["new", "Acme", "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"needs {missing}, which is not installed" in said
    assert "pip install 'vllm-adapter-core[new]'" in said


def test_versions_agree():
    def version(dist):
        raw = tomllib.loads((ROOT / dist / "pyproject.toml").read_text(encoding="utf-8"))
        return raw["project"]["version"]

    assert version("template") == version("core") == vllm_adapter.__version__
    source = TEMPLATE / "{{cookiecutter.__project}}" / "pyproject.toml"
    (line,) = re.findall(r'^dependencies = \["(.+)"\]$', source.read_text(), re.MULTILINE)
    core = Requirement(line)
    assert core.name == "vllm-adapter-core" and not core.extras
    assert core.specifier.contains(vllm_adapter.__version__)


def test_wheel_and_sdist_hold_the_whole_folder(tmp_path):
    wanted = {
        f"vllm_adapter_template/cookiecutter/{f.relative_to(TEMPLATE).as_posix()}"
        for f in TEMPLATE.rglob("*")
        if f.is_file() and f.suffix != ".pyc"
    }
    build = "import sys; from flit_core import buildapi as b; f = sys.argv[1]; "
    build += "print(b.build_wheel(f)); print(b.build_sdist(f))"
    done = subprocess.run(
        [sys.executable, "-c", build, tmp_path],
        cwd=ROOT / "template",
        capture_output=True,
        text=True,
        check=True,
    )
    wheel, sdist = done.stdout.split()
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        assert wanted <= set(archive.namelist())
    with tarfile.open(tmp_path / sdist) as archive:
        names = {name.partition("/src/")[2] for name in archive.getnames()}
    assert wanted <= names


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The project of Acme as pip installs it in a folder, and processes that see it."""
    folder = tmp_path_factory.mktemp("installed")
    assert main(["new", "Acme", "--output", str(folder)]) == 0
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [
            *pip,
            "--no-deps",
            "--no-build-isolation",
            *("--target", folder / "site", folder / "vllm-adapter-acme"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=folder,
            env=environment(folder / "site"),
            capture_output=True,
            text=True,
            timeout=300,
        )

    return folder, run


def test_it_is_listed_and_usable(installed):
    _, run = installed
    found = json.loads(run("vllm_adapter.cli", "list", "--probe", "--json").stdout)
    (acme,) = [adapter for adapter in found["adapters"] if adapter["name"] == "acme"]
    assert acme["status"] == "ok", acme
    assert [device["torch"] for device in acme["devices"]] == ["cpu"]


CHOSEN = """
from vllm_adapter.broker.selection import select
from vllm_adapter.settings import Settings
chosen = select(Settings.from_environ())
print(chosen.adapter, chosen.tied)
for one in chosen.considered:
    if one.name == "acme":
        print(one.why_not or "it was chosen")
"""


def test_beside_the_cpu_adapter_it_ties_nowhere_and_va_adapters_takes_it(installed):
    folder, _ = installed

    def chosen(**variables):
        done = subprocess.run(
            [sys.executable, "-c", CHOSEN],
            env=environment(folder / "site", **variables),
            capture_output=True,
            text=True,
        )
        return done.stdout.splitlines() or done.stderr

    why = "cpu was chosen: the other stands in for a chip that it was not tested on"
    assert chosen() == ["cpu ()", why]
    assert chosen(VA_ADAPTERS="acme") == ["acme ()", "it was chosen"]
    assert chosen(VA_ADAPTERS="acme,cpu") == ["acme ()", "it was chosen"]


def test_what_is_not_declared_is_composed_of_the_vendor_s_own(installed):
    _, run = installed
    done = run("vllm_adapter.cli", "explain", "acme", "fused_add_rms_norm", "--json")
    (descriptor,) = json.loads(done.stdout)["descriptors"]
    verdicts = descriptor["operators"]["fused_add_rms_norm"]
    assert {v["run"] for v in verdicts} == {"vllm_adapter_acme.kernels:rms_norm"}
    assert {v["why"] for v in verdicts} == {"/operators/rms_norm, composed"}
    bound = """
from vllm_adapter.engine.device import open_device
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.spec import OpCase
open_device("acme")
for op in ("fused_add_rms_norm", "rms_norm"):
    print(bind(OpCase.of(op, "cpu", {"dtype": "float16", "hidden": 64})).providers)
"""
    folder, _ = installed
    done = subprocess.run(
        [sys.executable, "-c", bound],
        env=environment(folder / "site", VA_FALLBACK="error"),
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["('acme (composed)',)", "('acme',)"], done.stderr


def test_how_little_a_vendor_writes(installed, capsys):
    folder, _ = installed
    package = package_of(folder / "vllm-adapter-acme")
    files = ("adapter.json", "capabilities/acme1.json", "kernels.py")
    text = {f: (package / f).read_text(encoding="utf-8").splitlines() for f in files}
    lines = {f: len(list(filter(str.strip, text[f]))) for f in files}
    with capsys.disabled():
        print(f"\na vendor writes {sum(lines.values())} lines: {lines}")
    assert sum(lines.values()) <= 70
    assert len(list(package.glob("**/*.py"))) == 2  # with __init__.py, which holds no code


@pytest.mark.slow
def test_its_kernels_are_typed(installed):
    folder, run = installed
    kernels = package_of(folder / "vllm-adapter-acme") / "kernels.py"
    done = run("mypy", "--strict", "--cache-dir", str(folder / "mypy"), str(kernels))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("vendor", ["CPU", "Core.", "Cpu!"])
def test_what_is_installed_or_ours_is_not_made_again(vendor, tmp_path, capsys):
    assert main(["new", vendor, "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "the project would be vllm-adapter-" in said and list(tmp_path.iterdir()) == []


def test_a_long_name_is_not_repeated(tmp_path, capsys):
    assert main(["new", "a" * 300, "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "at most 64 characters, and not 300" in said and len(said) < 600
