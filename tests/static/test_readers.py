"""Readers of health: which one counts, what it prints, and what the doctor makes of its lines."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fake_dist import install
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.hostfacts.device_facts import DeviceProcess, Health
from vllm_adapter.hostfacts.known_vendors import VENDORS, distribution_of
from vllm_adapter_cuda.health import release
from vllm_adapter_doctor.live import _function_child
from vllm_adapter_doctor.live.reader_lines import DEVICE, parse
from vllm_adapter_doctor.live.readers import GROUP, VendorReader, fault_of, find_readers
from vllm_adapter_doctor.report.parsers.nvidia_smi_q import parse as parse_log
from vllm_adapter_doctor.report.text import clean

pytestmark = pytest.mark.static
ROOT = Path(__file__).parents[2]
BINDINGS = ROOT / "tests" / "bindings"
GIB = 1 << 30


def said(module, words, tmp_path, monkeypatch):
    """The lines that are JSON of a reader beside the stand-ins for the vendors' bindings."""
    monkeypatch.syspath_prepend(str(BINDINGS))
    (tmp_path / "words").write_text(words)
    file = str(tmp_path / "words")
    done = subprocess.run(
        VendorReader("x", module, "x").command,
        env={"FAKE_NVML": file, "FAKE_AMDSMI": file},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = parse(done.stdout.encode(), "x", module)
    assert (found.wrong, found.unknown) == ((), ())
    return lines, found


NVML = {"source": "libnvidia-ml.so.1"}


def test_what_nvml_says(tmp_path, monkeypatch):
    lines, found = said("vllm_adapter_cuda.health", "lost", tmp_path, monkeypatch)
    assert lines[:3] == [
        {"component": "nvidia", "version": "580.159.04", **NVML},
        {"component": "nvml", "version": "580.159.04", **NVML},
        {"component": "cuda", "version": "13.1", **NVML},
    ]
    assert lines[3:] == [
        {
            "index": 0,
            "bus": "00000000:3C:00.0",
            "name": "NVIDIA H200",
            "uuid": "GPU-1",
            "arch": "sm_90",
            "memory_total_bytes": 140 * GIB,
            "memory_used_bytes": 90 * GIB,
            "temperature_c": 45,
            "power_mw": 350500,
            "power_cap_mw": 700000,
            "clock_mhz": 900,
            "clock_max_mhz": 1980,
            "throttled": [],
            "uncorrected": 0,
            "processes": [[4711, 80 * GIB]],
            **NVML,
        },
        {"index": 1, "lost": "nvmlDeviceGetHandleByIndex_v2", **NVML},
    ]
    assert [(one.component, one.version) for one in found.drivers][2] == ("cuda", "13.1")


def test_an_instance_without_a_profile_in_its_name(tmp_path, monkeypatch):
    """Older drivers give the GPU's own name."""
    lines, _ = said("vllm_adapter_cuda.health", "mig old-names", tmp_path, monkeypatch)
    assert [line.get("partition") for line in lines[3:]] == [
        "MIG",
        "GI 7 CI 0",
        "GI 8 CI 0",
        "MIG",
    ]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("13.580.159.04", "580.159.04"),
        ("12.535.129.03", "535.129.03"),
        ("11.450.80", "450.80"),
        ("550.144", "550.144"),
        ("570.86.10", "570.86.10"),
        ("1.2.3", "1.2.3"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_the_driver_s_own_number_is_what_nvml_says_behind_its_cuda_major(text, number):
    assert release(text) == number


def test_what_amd_smi_says(tmp_path, monkeypatch):
    lines, found = said("vllm_adapter_rocm.health", "hot cpx", tmp_path, monkeypatch)
    assert [(line["component"], line["version"]) for line in lines[:2]] == [
        ("amdgpu", "6.14.14"),
        ("rocm", "7.0.2"),
    ]
    first, second = found.accelerators
    assert (first.bdf, first.arch, first.compute_units) == ("0000:05:00.0", "gfx942", 304)
    assert (first.partition, first.die, second.die) == ("CPX/NPS4", 0, 1)
    assert (first.name, first.source) == ("AMD Instinct MI300X", "libamd_smi.so")
    assert (first.memory_total_bytes, first.memory_used_bytes) == (196592 << 20, 283 << 20)
    assert first.health == Health(
        temperature_c=98,
        power_w=132.0,
        power_cap_w=750.0,
        clock_mhz=132,
        clock_max_mhz=2100,
        throttle_reasons=("socket thermal", "hbm thermal"),
        errors=("2 uncorrectable memory errors",),
    )
    assert first.processes == (
        DeviceProcess(4711, "python3", 80 * GIB),
        DeviceProcess(4712, None, None),
    )


@pytest.mark.parametrize(
    ("words", "errors"),
    [
        ("", [(), ()]),
        ("not-ours", [()]),
        (
            "dead",
            [
                (),
                ("the driver cannot read this device (unknown error, amdsmi_get_gpu_device_bdf)",),
            ],
        ),
    ],
)
def test_an_amd_gpu_that_does_not_answer(words, errors, tmp_path, monkeypatch):
    _, found = said("vllm_adapter_rocm.health", words, tmp_path, monkeypatch)
    assert [one.health.errors for one in found.accelerators] == errors
    assert found.accelerators[0].partition == "SPX/NPS1" and found.accelerators[0].die is None


def test_a_guest_s_cap_in_watts_is_none_of_microwatts(tmp_path, monkeypatch):
    _, found = said("vllm_adapter_rocm.health", "guest", tmp_path, monkeypatch)
    assert found.accelerators[0].health.power_cap_w is None


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("no-library", "amdsmi cannot load libamd_smi.so (KeyError('libamd_smi.so')); "),
        ("old-driver", "amdsmi_init gave AMDSMI_STATUS_DRIVER_NOT_LOADED"),
    ],
)
def test_amd_smi_that_cannot_start(words, fault, tmp_path, monkeypatch):
    lines, found = said("vllm_adapter_rocm.health", words, tmp_path, monkeypatch)
    assert len(lines) == 1 and found.accelerators == ()
    assert found.fault.startswith(fault)


@pytest.mark.parametrize(
    ("vendor", "package"), [("cuda", "nvidia-ml-py"), ("rocm", "vllm-adapter-rocm[health]")]
)
def test_a_binding_that_is_missing_is_named_with_its_package(vendor, package):
    command = (sys.executable, "-I", "-S", "-c")
    source = ROOT / f"adapters/{vendor}/src"
    code = (
        f"import sys; sys.path.append({str(source)!r}); import vllm_adapter_{vendor}.health as h"
    )
    done = subprocess.run(
        (
            *command,
            f"{code}; h.main(); print([m for m in sys.modules if m in ('torch', 'vllm_adapter')])",
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    line, loaded = done.stdout.splitlines()
    assert "cannot be imported" in json.loads(line)["fault"]
    assert package in json.loads(line)["fault"]
    assert loaded == "[]"


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_the_adapters_name_their_readers(vendor):
    project = tomllib.loads((ROOT / f"adapters/{vendor}/pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == {vendor: f"vllm_adapter_{vendor}.health"}


def add(folder, name, distribution, *, value=None, adapter=True):
    """A distribution with an adapter `name` and a reader of that name."""
    package = folder / distribution / f"acme_{distribution.replace('-', '_')}"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    site = folder / "site"
    path = install(package.parent, site, name=distribution, entry_name=name)
    points = site / f"{distribution.replace('-', '_')}-1.0.dist-info" / "entry_points.txt"
    own = f"[vllm_adapter.adapters]\n{name} = {path.name}\n" if adapter else ""
    points.write_text(f"{own}[{GROUP}]\n{name} = {value or f'{path.name}.health'}\n")
    return path.name


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder whose `site` is all that is installed."""
    (tmp_path / "site").mkdir()
    find_readers()  # what it imports itself is there from now on
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return tmp_path


def test_a_third_party_s_adapter_brings_its_reader(packages):
    package = add(packages, "quasar", "quasar-adapter")
    readers, left_out = find_readers()
    assert readers == {"quasar": VendorReader("quasar", f"{package}.health", "quasar-adapter")}
    assert left_out == []


def test_a_vendor_of_whom_this_project_has_no_adapter(packages):
    assert not VENDORS["metax"].has_adapter
    add(packages, "metax", "vllm-adapter-metax")
    assert list(find_readers()[0]) == ["metax"]


@pytest.mark.parametrize(
    ("name", "distribution", "options", "why"),
    [
        ("cuda", "evil", {}, "the name is reserved to vllm-adapter-cuda"),
        ("quasar", "evil", {"adapter": False}, "the package brings no adapter quasar"),
        ("quasar", "evil", {"value": "os.path"}, "that is no module of the adapter's package"),
        ("quasar", "evil", {"value": "acme_evil"}, "that is no module of the adapter's package"),
        ("quasar", "evil", {"value": "acme_evil.x:f"}, "that is no module's name"),
        ("cuda", "vllm-adapter-cuda", {"value": "os.path"}, "that is no module of the adapter's"),
    ],
)
def test_whose_reader_is_not_run(packages, name, distribution, options, why):
    add(packages, name, distribution, **options)
    readers, (sentence,) = find_readers()
    assert readers == {}
    assert f"the package {distribution} names" in sentence and why in sentence


def test_of_two_adapters_of_one_name_neither_is_run(packages):
    add(packages, "quasar", "quasar-a")
    add(packages, "quasar", "quasar-b")
    readers, (sentence,) = find_readers()
    assert readers == {} and "quasar-a and quasar-b both" in sentence


def test_a_distribution_that_is_shadowed_brings_nothing(packages, monkeypatch):
    """Its package is not the one that would be imported."""
    add(packages, "cuda", "vllm-adapter-cuda")
    first = packages / "first"
    (first / "vllm_adapter_cuda-2.0.dist-info").mkdir(parents=True)
    (first / "vllm_adapter_cuda-2.0.dist-info" / "METADATA").write_text(
        "Name: vllm-adapter-cuda\n"
    )
    monkeypatch.setattr(sys, "path", [str(first), *sys.path])
    assert find_readers() == ({}, [])


def test_each_of_our_adapters_owns_its_name():
    assert distribution_of("cuda") == "vllm-adapter-cuda"
    assert distribution_of("metax") is None and distribution_of("quasar") is None
    assert callable(fault_of)


LINE = {"index": 0, "temperature_c": 45}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"index": -1}, "/index should be a whole number from 0, and is -1"),
        ({"index": True}, "/index should be a whole number from 0, and is true"),
        ({"temperature_c": "45"}, '/temperature_c should be a number, and is "45"'),
        ({"temperature_c": float("nan")}, "/temperature_c should be a number, and is NaN"),
        ({"throttled": "hot"}, '/throttled should be a list of texts, and is "hot"'),
        ({"processes": [[1]]}, "/processes should be a list of [id, bytes or null, name or null]"),
        ({"name": ""}, '/name should be text, and is ""'),
    ],
)
def test_a_value_of_the_wrong_kind(changes, wrong):
    found = parse(json.dumps(LINE | changes).encode(), "cuda", "acme.health")
    assert found.accelerators == () and wrong in found.wrong[0]


def test_lines_between_what_a_library_prints():
    text = b'banner {"index": 0}\n3\n[]\n{"a": 1}\n{"index": 0, "dye": 1}\n{"fault": "why"}\n{'
    found = parse(text, "cuda", "acme.health")
    assert [one.source for one in found.accelerators] == ["acme.health"]
    assert found.wrong == ("line 5: device 0 is there a second time",)
    assert (found.unknown, found.fault) == (("dye",), "why")
    assert parse(b'{"component": "x"}', "x", "m").wrong == ("line 1: version is missing",)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([*DEVICE, "component", "version", "fault", "other"]), VALUES
        )
    )
)
def test_any_line_is_a_device_or_a_fault_and_never_an_exception(objects):
    found = parse("\n".join(map(json.dumps, objects)).encode(), "cuda", "m")
    devices = [one for one in objects if "index" in one]
    assert len(found.accelerators) <= len(devices)
    assert found.wrong or len(found.accelerators) == len(devices)


@given(st.binary())
def test_any_bytes_are_read(output):
    parse(output, "cuda", "m")


def test_a_function_s_number(monkeypatch, capsys):
    class Library:
        def __init__(self, name):
            if name != "libcuda.so.1":
                raise OSError("cannot open shared object file")

        def cuDriverGetVersion(self, number):
            number._obj.value = 13010
            return 0

        def fails(self, number):
            return 999

    monkeypatch.setattr(ctypes, "CDLL", Library)
    for words in (
        ("libcuda.so.1", "cuDriverGetVersion"),
        ("libcuda.so.1", "fails"),
        ("libcuda.so.1", "unknown"),
        ("libother.so", "cuDriverGetVersion"),
    ):
        _function_child.main(*words)
    assert capsys.readouterr().out == '{"number": 13010}\n'


XML = """<?xml version="1.0" ?>
<nvidia_smi_log>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:00:06.0">
\t\t<product_name>NVIDIA H200</product_name>
\t\t<mig_mode>
\t\t\t<current_mig>Disabled</current_mig>
\t\t</mig_mode>
\t\t<mig_devices>
\t\t\tNone
\t\t</mig_devices>
\t\t<fb_memory_usage>
\t\t\t<total>143771 MiB</total>
\t\t</fb_memory_usage>
\t</gpu>
</nvidia_smi_log>
"""


def test_an_empty_list_of_instances_splits_nothing():
    (only,) = parse_log(clean(XML)).accelerators
    assert (only.partition, only.memory_total_bytes) == (None, 143771 << 20)
