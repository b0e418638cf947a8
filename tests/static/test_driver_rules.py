"""Decisions on drivers, torch builds and dtypes: never a crash, and never "old" by guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.hostfacts.facts import Driver, HostFacts, OsFacts, TorchBuild
from vllm_adapter_doctor.devices.driver_rules import negotiate
from vllm_adapter_doctor.devices.verdict import Outcome, bytes_after, consequence
from vllm_adapter_doctor.vendor_data.driver_tables import NVIDIA_MINIMUM, toolkit_table

pytestmark = pytest.mark.static

NVIDIA = {
    "component": "nvidia",
    "builds": [
        {"runtime": "cuda", "version": cuda, "minimum": driver}
        for cuda, driver in NVIDIA_MINIMUM.items()
    ],
    "downgrades": [
        {
            "feature": "float8_e4m3fn",
            "below": "520.61.05",
            "to": "float16",
            "reason": "it comes with CUDA 11.8",
        }
    ],
}
AMD = {
    "component": "amdgpu",
    "builds": [
        {"runtime": "hip", "version": rocm, "tested": list(drivers)}
        for rocm, drivers in toolkit_table("hip", "drivers").items()
    ],
}


def capability(driver, arch="sm_90", **sections):
    return parse_capability(
        {
            "schema": "vllm-adapter/capability/1.0",
            "identity": {"vendor": "V", "arch": arch, "name": "Chip"},
            "driver": driver,
            **sections,
        },
        "test.json",
    )


def host(*drivers, torch=None, machine="x86_64"):
    return HostFacts(
        os=OsFacts("Linux", None, machine),
        drivers=tuple(Driver(*one) if len(one) == 3 else Driver(*one, "test") for one in drivers),
        torch=torch,
    )


def cuda(version, torch=None):
    return TorchBuild(version=torch, cuda=version)


def about(decisions, subject):
    return [one for one in decisions if one.subject == subject]


@pytest.mark.parametrize(
    ("driver", "runtime", "outcome"),
    [
        ("470.82.01", "12.1", Outcome.REFUSE),
        ("510.47.03", "12.1", Outcome.REFUSE),
        ("525.60.13", "12.4", Outcome.OK),  # vllm#15592: it runs
        ("525.60.12", "12.0", Outcome.REFUSE),
        ("550.127.08", "12.8", Outcome.OK),
        ("570.124.06", "13.0", Outcome.REFUSE),
        ("580.65.06", "13.2", Outcome.OK),
        ("580.65.06", "12.4", Outcome.OK),  # drivers are backward compatible
        ("470.82.01", "11.8", Outcome.OK),
        ("450.36.06", "11.0", Outcome.OK),
        ("450.36.06", "11.2", Outcome.REFUSE),
        ("387.26", "11.8", Outcome.REFUSE),
        ("440.33.01", "10.2", Outcome.OK),
        ("418.39", "10.2", Outcome.REFUSE),
    ],
)
def test_minor_version_compatibility(driver, runtime, outcome):
    decisions = negotiate(capability(NVIDIA), host(("nvidia", driver), torch=cuda(runtime)))
    assert about(decisions, "driver")[0].outcome is outcome


def test_the_refusal_names_the_minimum_of_the_major_and_a_build_that_would_start():
    (one,) = negotiate(capability(NVIDIA), host(("nvidia", "470.82.01"), torch=cuda("12.1")))
    assert one.need == "525.60.13"
    assert one.message == (
        "torch is built for CUDA 12.1, which needs the driver 525.60.13 or newer, and this is "
        "470.82.01: upgrade the driver, or install a torch build for CUDA 11"
    )


def test_an_older_driver_than_the_toolkits_is_a_note_and_no_refusal():
    decisions = negotiate(capability(NVIDIA), host(("nvidia", "525.60.13"), torch=cuda("12.4")))
    (note,) = about(decisions, "ptx")
    assert (note.outcome, note.need) == (Outcome.NOTE, "550.54.14")
    decisions = negotiate(capability(NVIDIA), host(("nvidia", "570.26"), torch=cuda("12.8")))
    assert not about(decisions, "ptx")


def test_a_forward_compatibility_package_is_seen():
    facts = host(("nvidia", "510.47.03"), ("cuda", "12.4"), torch=cuda("12.1"))
    (one,) = negotiate(capability(NVIDIA), facts)
    assert one.outcome is Outcome.NOTE and "forward-compatibility" in one.message
    facts = host(("nvidia", "510.47.03"), ("cuda", "11.6"), torch=cuda("12.1"))
    assert negotiate(capability(NVIDIA), facts)[0].outcome is Outcome.REFUSE


def test_under_wsl_the_windows_driver_counts():
    facts = host(("nvidia", "470.1"), ("windows", "537.42"), torch=cuda("12.1"))
    assert negotiate(capability(NVIDIA), facts)[0].outcome is Outcome.OK
    facts = host(("windows", "472.12"), torch=cuda("12.1"))
    assert negotiate(capability(NVIDIA), facts)[0].outcome is Outcome.REFUSE


@pytest.mark.parametrize("told", [(), (("nvidia", "N/A"),), (("amdgpu", "6.4.3"),)])
def test_unknown_is_not_too_old(told):
    decisions = negotiate(
        capability(NVIDIA), host(*told, torch=cuda("13.0")), ["float8_e4m3fn", "bfloat16"]
    )
    assert {one.outcome for one in decisions} == {Outcome.UNKNOWN}
    assert "its age is unknown" in decisions[0].message


@pytest.mark.parametrize(
    ("rocm", "driver", "outcome"),
    [
        ("7.2.53211", "30.30.0", Outcome.OK),
        ("7.2", "30.10.1", Outcome.OK),
        ("7.2", "6.4.3", Outcome.OK),  # 6.4 < 7.2 says nothing
        ("7.1", "30.20.0", Outcome.OK),
        ("7.1", "30.30", Outcome.NOTE),
        ("7.0", "30.10.1", Outcome.OK),
        ("7.2", "6.1", Outcome.NOTE),
        ("6.3", "6.1.3", Outcome.OK),
        ("6.3", "6.0", Outcome.NOTE),
        ("6.1", "6.3.2", Outcome.OK),
        ("6.0", "6.3", Outcome.NOTE),
        ("6.0", "5.7", Outcome.OK),
    ],
)
def test_amds_driver_is_held_against_the_vendors_list(rocm, driver, outcome):
    facts = host(("amdgpu", driver), torch=TorchBuild(hip=rocm))
    (one,) = negotiate(capability(AMD, "gfx942"), facts)
    assert one.outcome is outcome


def test_the_modules_own_number_is_no_release():
    facts = host(("amdgpu", "6.12.12", "/sys/module/amdgpu/version"), torch=TorchBuild(hip="6.4"))
    assert negotiate(capability(AMD, "gfx942"), facts) == ()  # 6.4 has no list
    facts = host(("amdgpu", "6.12.12", "/sys/module/amdgpu/version"), torch=TorchBuild(hip="7.1"))
    (one,) = negotiate(capability(AMD, "gfx942"), facts)
    assert one.outcome is Outcome.UNKNOWN


def test_a_driver_without_fp8_downgrades_and_says_what_it_costs():
    decisions = negotiate(
        capability(NVIDIA), host(("nvidia", "515.65.01"), torch=cuda("11.7")), ["float8_e4m3fn"]
    )
    (one,) = about(decisions, "float8_e4m3fn")
    assert (one.outcome, one.to, one.need) == (Outcome.DOWNGRADE, "float16", "520.61.05")
    assert one.message == (
        "the driver 515.65.01 is older than 520.61.05: it comes with CUDA 11.8; float16 is used "
        "in place of float8_e4m3fn; weights and KV cache kept in it take 2 times the bytes"
    )
    assert consequence(one, weight_bytes=8_030_261_248, kv_bytes=1000) == (
        "weights take 16060522496 bytes instead of 8030261248 and KV cache blocks take 2000 bytes "
        "instead of 1000"
    )


@pytest.mark.parametrize(
    ("wanted", "numerics", "to"),
    [
        ("float8_e4m3fn", {"native_fp8": False}, "bfloat16"),
        ("float8_e4m3fn", {"native_fp8": False, "native_bfloat16": False}, "float16"),
        ("bfloat16", {"native_bfloat16": False}, "float16"),
        ("float4_e2m1fn", {"native_fp4": False}, "bfloat16"),
        (
            "float4_e2m1fn",
            {"native_fp4": False, "native_fp8": True, "fp8_flavour": "e4m3fnuz", "fp8_max": 240},
            "float8_e4m3fnuz",
        ),
        ("float4_e2m1fn", {"native_fp4": True}, None),
        ("float8_e4m3fn", {"native_fp8": True}, None),
        ("float8_e4m3fn", {}, None),
        ("bfloat16", {}, None),
        ("float32", {"native_fp8": False, "native_bfloat16": False}, None),
    ],
)
def test_an_arch_without_the_feature_downgrades(wanted, numerics, to):
    decisions = negotiate(capability({}, numerics=numerics), host(), [wanted])
    assert [one.to for one in decisions] == ([to] if to else [])


def test_an_emulated_dtype_downgrades():
    units = {"float4_e2m1fn": {"emulated": True}}
    (one,) = negotiate(capability({}, compute_units=units), host(), ["float4_e2m1fn"])
    assert one.to == "bfloat16" and "4 times the bytes" in one.message


def test_minimum_and_blocked_versions_refuse():
    rules = {"component": "ascend", "minimum": "24.1.rc3", "blocked": ["24.1.1"]}
    says = {
        version: [one.outcome for one in negotiate(capability(rules), host(("ascend", version)))]
        for version in ("24.1.rc2", "24.1.rc3", "24.1.1", "25.0")
    }
    refused = [Outcome.REFUSE]
    assert says == {"24.1.rc2": refused, "24.1.rc3": [], "24.1.1": refused, "25.0": []}


@pytest.mark.parametrize(
    ("torch", "arch", "outcomes"),
    [
        ("2.11.0+cu128", "sm_70", [Outcome.REFUSE]),
        ("2.14.0+cu126", "sm_120", [Outcome.REFUSE]),
        ("2.7.0+cu128", "sm_70", [Outcome.NOTE]),  # from a public table of builds
        ("2.11.0+cu128", "sm_120", []),
        ("2.11.0", "sm_120", []),  # nobody knows which build this is
    ],
)
def test_a_build_without_code_for_the_arch(torch, arch, outcomes):
    decisions = negotiate(capability({}, arch), host(torch=cuda("12.8", torch)))
    assert [one.outcome for one in decisions] == outcomes


def test_the_archs_that_torch_itself_tells_win():
    build = TorchBuild(version="2.11.0+cu128", cuda="12.8", archs=("sm_70",))
    assert negotiate(capability({}, "sm_70"), host(torch=build)) == ()
    build = TorchBuild(version="2.12.0+rocm7.2", hip="7.2", archs=("gfx90a", "gfx942"))
    (one,) = negotiate(capability({}, "gfx908"), host(torch=build))
    assert one.outcome is Outcome.REFUSE and "gfx90a, gfx942" in one.message


def test_a_target_that_amd_does_not_list_is_a_note():
    build = TorchBuild(version="2.6.0+rocm6.3", hip="6.3.42131")
    (one,) = negotiate(capability({}, "gfx950"), host(torch=build))
    assert one.outcome is Outcome.NOTE and "does not list gfx950" in one.message
    build = TorchBuild(version="2.12.0+rocm7.2", hip="7.2.53211")
    assert negotiate(capability({}, "gfx950"), host(torch=build)) == ()


@given(st.integers(0, 2**50))
def test_bytes_are_whole_and_never_less(size):
    assert bytes_after(size, "float8_e4m3fn", "float16") == 2 * size
    assert bytes_after(size, "float4_e2m1fn", "bfloat16") == 4 * size
    assert bytes_after(size, "float16", "int4") == -(-size // 4)


@given(st.text(max_size=10), st.text(max_size=10), st.sampled_from(["nvidia", "windows", "cuda"]))
def test_no_version_makes_it_raise(version, runtime, component):
    facts = host((component, version), torch=cuda(runtime, f"{runtime}+cu128"))
    for one in negotiate(capability(NVIDIA), facts, ["float8_e4m3fn"]):
        assert one.message and one.outcome in Outcome
