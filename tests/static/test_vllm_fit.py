"""Beside vLLM we never break it: a release that does not fit, and another project's platform."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fake_dist import install
from fake_vllm import CLI, add_plugin, codes, doctor, install_vllm

from vllm_adapter.broker import foreign, vllm_fit
from vllm_adapter.broker.selection import PLATFORMS, Selection, held_against, refusal
from vllm_adapter.broker.vllm_drift import compare, left_open, snapshots
from vllm_adapter.broker.vllm_install import VllmInstall
from vllm_adapter.settings import Settings

pytestmark = pytest.mark.static

CHOSEN = Selection("cpu", "the only one", "cpu", "cpu", "native", f"{PLATFORMS}.NativeCpu")
CPU = {"VA_ADAPTERS": "cpu"}
RELEASES = [json.loads(file.read_text("utf-8"))["vllm"] for _, file in snapshots()]


def fake(site, version="0.32.0+cpu"):
    return VllmInstall(install_vllm(site.path, version=version), "vllm", version)


def replaced(folder, file, pattern, by):
    path = folder / file
    text = path.read_text()
    changed = re.sub(pattern, by, text, count=1)
    assert changed != text
    path.write_text(changed)


def test_a_tried_release_fits_and_another_one_is_said(site):
    assert vllm_fit.fit(fake(site), "cpu") == vllm_fit.VllmFit()


def test_an_untried_release_of_equal_hooks_is_served_and_said(site):
    vllm = fake(site, "0.99.1")
    file = snapshots()[-1][1]
    newest = json.loads(file.read_text("utf-8"))
    found = vllm_fit.fit(vllm, "cpu")
    drift = compare(vllm).drift
    assert f"to {newest['vllm']}; this is 0.99.1: {vllm_fit.LOOK}" in found.note
    assert bool(drift) == bool(found.misfit)


CHANGES = {
    "a method that we override is gone": (
        "platforms/cpu.py",
        r"    @classmethod\n    def check_and_update_config.*\n",
        "",
        "CpuPlatform.check_and_update_config is not there",
    ),
    "a method that we call takes more": (
        "v1/attention/backend.py",
        r"fast_build=False",
        "fast_build=False, *, more",
        "AttentionMetadataBuilder.build is (self",
    ),
    "a backend must say what ours does not": (
        "v1/attention/backend.py",
        r"class AttentionBackend:\n",
        "class AttentionBackend:\n    def get_new_shape(self): raise NotImplementedError\n",
        "get_new_shape",
    ),
    "a file is gone": ("v1/attention/backends/registry.py", r"(?s).*", "", "register_backend"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_does_not_fit_is_found_before_anything_is_imported(site, change):
    file, pattern, by, words = change
    vllm = fake(site)
    replaced(vllm.folder, file, pattern, by)
    found = vllm_fit.fit(vllm, "cpu")
    assert words in found.misfit
    assert vllm_fit.LOOK in found.misfit


def test_a_change_in_another_device_s_platform_concerns_nobody(site):
    vllm = fake(site)
    replaced(vllm.folder, "platforms/rocm.py", r"cls, vllm_config", "cls, vllm_config, more")
    assert vllm_fit.fit(vllm, "cpu").misfit == ""
    assert "RocmPlatform" in vllm_fit.fit(vllm, "rocm").misfit


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("v1/worker/gpu_worker.py", "init_device"),
        ("platforms/interface.py", "num_compute_units"),
        ("lora/punica_wrapper/punica_cpu.py", "add_lora_logits"),
    ],
)
def test_what_the_generic_shape_alone_uses_concerns_no_native_one(site, file, name):
    vllm = fake(site)
    replaced(vllm.folder, file, rf"def {name}\(", f"def {name}_of_tomorrow(")
    assert vllm_fit.fit(vllm, "cpu").misfit == ""
    assert f"{name} is not there" in vllm_fit.fit(vllm, "").misfit


def test_serve_and_the_broker_step_aside_with_one_sentence(site):
    folder = install_vllm(site.path)
    replaced(folder, *CHANGES["a method that we override is gone"][:3])
    variables = {"VA_ADAPTERS": "-sim"}
    served = site.run(*CLI, "serve", "--dry-run", "m", variables=variables)
    ask = "from vllm_adapter.broker import plugin; print(plugin.platform())"
    broker = site.run("-c", ask, variables=variables)
    sentence = "vLLM 0.32.0+cpu is not what the bridge was written for"
    assert (served.returncode, broker.stdout) == (0, "None\n"), served.stderr
    assert f"adapter: none, vLLM stays as it is: {sentence}" in served.stdout
    assert f"steps aside, vLLM stays as it is: {sentence}" in broker.stderr
    report, _ = doctor(site, **variables)
    assert codes(report) == ["VA5008", "VA5013"]
    assert report["findings"][1]["cause"].startswith(sentence)
    named = site.run(*CLI, "serve", "--dry-run", "m", variables=CPU)
    assert named.returncode == 2
    assert "VA_ADAPTERS names cpu, and vLLM would run without: " in named.stderr
    assert sentence in named.stderr


NPU = "def answer():\n    return 'vllm.platforms:CpuPlatform'\n"
ANSWERS = {
    "it answers": (NPU, True),
    "it answers no": ("def answer():\n    return None\n", False),
    "it raises": ("def answer():\n    raise OSError('no driver')\n", False),
    "it cannot be imported": ("import no_such_sdk\n", False),
    "it dies": ("def answer():\n    import os; os._exit(9)\n", False),
}


@pytest.mark.parametrize(("source", "wins"), ANSWERS.values(), ids=ANSWERS)
def test_another_project_s_platform_wins_if_it_answers(site, source, wins):
    install_vllm(site.path)
    add_plugin(site, "npu", source)
    variables = {"VA_ADAPTERS": "-sim"}
    served = site.run(*CLI, "serve", "--dry-run", "m", variables=variables)
    assert served.returncode == 0, served.stderr
    first = served.stdout.splitlines()[0]
    said = "the platform plug-in npu of npu answers"
    assert (said in first) == wins
    assert first.startswith("adapter: none" if wins else "adapter: cpu on cpu")
    assert ("VLLM_PLUGINS=vllm_adapter takes ours" in first) == wins
    if wins:
        chosen = "import vllm.platforms as p; print(p.resolve_current_platform_cls_qualname())"
        done = site.run("-c", chosen, variables=variables)
        assert done.stdout == "vllm.platforms:CpuPlatform\n", done.stderr
        assert said in done.stderr
        ours = site.run("-c", chosen, variables=variables | {"VLLM_PLUGINS": "vllm_adapter"})
        assert ours.stdout == f"{PLATFORMS}.NativeCpu\n", ours.stderr
        assert codes(doctor(site, **variables)[0]) == ["VA5013"]


def test_a_plug_in_that_is_filtered_out_is_not_asked(site, monkeypatch):
    folder = site.path.parent / "src" / "npu"
    (folder / "plugin_npu").mkdir(parents=True)
    (folder / "plugin_npu/__init__.py").write_text("raise SystemExit(3)\n")
    install(
        folder, site.path, name="npu", entry_name="npu", entry_value="plugin_npu:answer",
        group=foreign.GROUP,
    )  # fmt: skip
    monkeypatch.syspath_prepend(str(site.path))
    monkeypatch.setenv("VLLM_PLUGINS", "vllm_adapter")
    assert foreign.installed() == foreign.answering() == foreign.answering_in_a_child() == []


def test_the_generic_shape_goes_on_where_the_native_one_steps_aside():
    misfit = vllm_fit.VllmFit("it does not fit", "tried with others")
    native = held_against(CHOSEN, misfit, ())
    assert (native.platform, native.reason) == (None, "it does not fit")
    generic = Selection("acme", "it", "acme:0", "acme", "generic", f"{PLATFORMS}.Generic")
    kept = held_against(generic, misfit, ())
    assert (kept.platform, kept.warnings) == (
        generic.platform,
        ("tried with others", "it does not fit"),
    )


@pytest.mark.parametrize(
    ("names", "platform", "refused"),
    [
        ("", None, False),
        ("-cuda", None, False),
        ("cpu", f"{PLATFORMS}.NativeCpu", False),
        ("cpu", None, True),
        ("cuda,cpu", None, True),
    ],
)
def test_a_named_adapter_that_does_not_serve_is_a_refusal(names, platform, refused):
    selection = Selection("cpu", "why", platform=platform)
    found = refusal(selection, Settings.from_environ({"VA_ADAPTERS": names}))
    assert (found is not None) == refused
    if found is not None:
        assert "vLLM would run without: why" in found.message


def test_what_is_left_open_is_read_from_source(tmp_path):
    (tmp_path / "a.py").write_text(
        "class A:\n"
        "    @abstractmethod\n    def one(self): ...\n"
        "    def two(self):\n        '''Says why.'''\n        raise NotImplementedError('x')\n"
        "    def three(self):\n        if self: raise NotImplementedError\n        return 1\n"
        "    def four(self):\n        raise ValueError\n"
    )
    assert left_open(tmp_path, "a.py:A") == {"one", "two"}
    assert left_open(tmp_path, "a.py:B") == left_open(tmp_path, "b.py:A") == set()


def test_every_snapshot_has_the_same_names():
    """A hook that is used from now on is looked up in each release that was tried."""
    found = [json.loads(file.read_text("utf-8")) for _, file in snapshots()]
    for part in ("signatures", "must"):
        names = [{(owner, *sorted(has)) for owner, has in one[part].items()} for one in found]
        if part == "must":  # what is left open differs between releases, of whom it is asked not
            names = [{owner for owner, *_ in one} for one in names]
        assert all(one == names[0] for one in names)


def test_the_tried_releases_are_in_the_sentence_and_on_the_page():
    page = (Path(__file__).parents[2] / "docs/vllm.md").read_text("utf-8")
    assert vllm_fit.tried() == f"vLLM {RELEASES[0]} to {RELEASES[-1]}"
    assert [release for release in RELEASES if f"| {release} |" not in page] == []


def test_serve_says_what_vllm_keeps_and_what_a_wish_costs(site):
    install_vllm(site.path)
    words = (*CLI, "serve", "--dry-run", "m")
    plain = site.run(*words, variables=CPU).stdout
    assert re.search(r"note: vLLM's own kernels run linear \(0\.\d+\), .*VA_OPS=linear:cpu", plain)
    wished = site.run(*words, variables=CPU | {"VA_OPS": "linear:cpu"}).stdout
    assert re.search(r"note: VA_OPS has cpu run linear \(0\.\d+\): decoding", wished)
    assert "vLLM's own kernels run embedding (0." in wished
    error = site.run(*words, variables=CPU | {"VA_FALLBACK": "error"}).stdout
    assert re.search(r"note: VA_FALLBACK=error has cpu run linear \(0\.\d+\), ", error)
    assert "vLLM's own kernels run" not in error
