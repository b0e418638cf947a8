"""`match` entries against host facts: any entry, all keys, one PCI device; and why not."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.errors import ManifestError
from vllm_adapter.hostfacts.facts import (
    Accelerator,
    DeviceNode,
    HostFacts,
    Line,
    OsFacts,
    PciDevice,
)
from vllm_adapter.hostfacts.match import Match, match, why_not

pytestmark = pytest.mark.static

H200 = PciDevice("0000:3b:00.0", "10de", "2335", "0x030200", 0, "nvidia")
H200_B = PciDevice("0000:86:00.0", "10de", "2335", "0x030200", 1, "nvidia")
SWITCH = PciDevice("0000:05:00.0", "10de", "22a3", "0x068000")
NPU = PciDevice("0000:c1:00.0", "19e5", "d802", "0x120000")
NIC = PciDevice("0000:01:00.0", "15b3", "101b", "0x020000")
NODES = tuple(DeviceNode(p, "char", True, True) for p in ("/dev/nvidia0", "/dev/nvidiactl"))
HOST = HostFacts(
    os=OsFacts("Linux", "6.8.0", "x86_64"),
    pci=(NIC, SWITCH, H200, H200_B),
    nodes=NODES,
    modules=("nvidia", "nvidia_uvm"),
)
NVIDIA = {"pci_vendor": "10de", "pci_class": ["0x0300", "0x0302"], "device_node": "/dev/nvidia*"}


def on(machine):
    return HostFacts(os=OsFacts("Linux", None, machine))


def test_evidence_and_devices():
    assert match([NVIDIA], HOST) == Match(
        (
            "PCI 0000:3b:00.0 is 10de:2335, class 0x0302",
            "PCI 0000:86:00.0 is 10de:2335, class 0x0302",
            "device node /dev/nvidia0 exists",
        ),
        (H200, H200_B),
    )


def test_no_entries_match_nothing():
    assert match([], HOST) is None
    assert match((), HostFacts()) is None


def test_any_entry_suffices_and_each_that_holds_counts_once():
    huawei = {"pci_vendor": "19e5"}
    assert match([huawei, {"pci_device": ["2335"]}, NVIDIA], HOST).pci == (H200, H200_B)
    both = dataclasses.replace(HOST, pci=(NPU, H200))
    assert match([huawei, NVIDIA], both).pci == (H200, NPU)


def test_pci_keys_must_hold_on_one_device():
    assert match([{"pci_vendor": "15b3", "pci_class": ["0x0302"]}], HOST) is None
    assert match([{"pci_vendor": "10de", "pci_device": ["101b"]}], HOST) is None
    assert match([{"pci_device": ["2335"], "pci_class": ["0x0200"]}], HOST) is None
    assert match([{"pci_vendor": "10de", "pci_device": ["22a3"]}], HOST).pci == (SWITCH,)


@pytest.mark.parametrize("code", ["0x1200", "0x120000"])
def test_a_class_with_and_without_its_interface(code):
    host = HostFacts(pci=(NPU,))
    assert match([{"pci_class": [code]}], host).pci == (NPU,)
    assert match([{"pci_class": ["0x120001"]}], host) is None


@pytest.mark.parametrize(
    "extra",
    [
        {"os": ["Darwin"]},
        {"machine": ["ppc64le"]},
        {"kernel_module": "amdgpu"},
        {"device_node": "/dev/kfd"},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_all_keys_must_hold(extra):
    assert match([{"pci_vendor": "10de"} | extra], HOST) is None


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"os": ["Darwin", "Linux"]}, "this system is Linux"),
        ({"os": ["linux"]}, "this system is Linux"),
        ({"machine": ["x86_64"]}, "this machine is x86_64"),
        ({"kernel_module": "nvidia-uvm"}, "kernel module nvidia_uvm is loaded"),
        ({"device_node": "/dev/nvidiactl"}, "device node /dev/nvidiactl exists"),
    ],
)
def test_keys_without_pci_give_evidence_and_no_device(entry, said):
    assert match([entry], HOST) == Match((said,), ())


@pytest.mark.parametrize(
    ("machine", "wanted"),
    [("AMD64", "x86_64"), ("x86_64", "amd64"), ("arm64", "aarch64"), ("aarch64", "ARM64")],
)
def test_names_of_one_machine(machine, wanted):
    assert match([{"machine": [wanted]}], on(machine))
    assert match([{"machine": ["riscv64"]}], on(machine)) is None


def test_unknown_facts_match_nothing():
    for entry in ({"os": ["Linux"]}, {"machine": ["x86_64"]}, NVIDIA, {"kernel_module": "x"}):
        assert match([entry], HostFacts()) is None


def test_a_star_stays_inside_its_folder():
    host = HostFacts(nodes=(DeviceNode("/dev/nvidia-caps/nvidia-cap1", "char", True, True),))
    assert match([{"device_node": "/dev/nvidia*"}], host) is None
    assert match([{"device_node": "/dev/*/nvidia-cap?"}], host)


@pytest.mark.parametrize("ask", [match, why_not])
@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (
            [{"pci_vendor": "10de", "usb_vendor": "1234"}],
            "/match/0/usb_vendor is an unknown key",
        ),
        ([{"pci_vendor": "10DE"}], "four lower-case hexadecimal digits"),
        ([{"machine": "x86_64"}], "/match/0/machine is 'x86_64'; write a list of at least 1 item"),
        ([{}], "/match/0 is {}; write an object of at least one of: pci_vendor"),
        (["10de"], "/match/0 is '10de'; write an object"),
    ],
)
def test_entries_that_break_the_manifests_rules(ask, entries, says):
    with pytest.raises(ManifestError, match=says):
        ask(entries, HOST)


# --- why not -----------------------------------------------------------------------------


def test_seen_on_pci_but_no_node():
    assert why_not([NVIDIA], dataclasses.replace(HOST, nodes=())) == (
        "PCI 0000:3b:00.0 is 10de:2335, class 0x0302: seen on PCI, but /dev/nvidia* is not there: "
        "container started without the device?"
    )


@pytest.mark.parametrize(("readable", "verb"), [(False, "read"), (True, "written")])
def test_seen_on_pci_but_the_node_is_not_for_us(readable, verb):
    node = DeviceNode("/dev/nvidia0", "char", readable, False)
    host = dataclasses.replace(HOST, nodes=(node,))
    refusal = f"may not be {verb} by this user: missing from the node's group?"
    assert why_not([NVIDIA], host) == (f"{H200}: seen on PCI, but /dev/nvidia0 {refusal}")
    assert f"device node /dev/nvidia0 exists, but {refusal}" in match([NVIDIA], host).evidence


def test_seen_on_pci_but_no_module():
    entry = {"pci_vendor": "10de", "kernel_module": "nvidia_fs", "machine": ["aarch64"]}
    assert why_not([entry], HOST) == (
        f"{SWITCH}: seen on PCI, but kernel module nvidia_fs is not loaded "
        "and this machine is x86_64, not aarch64"
    )


def test_the_entry_whose_device_is_seen_comes_first():
    entries = [{"machine": ["ppc64le"]}, NVIDIA]
    assert "seen on PCI" in why_not(entries, dataclasses.replace(HOST, nodes=()))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "the manifest names no hardware to look for"),
        ([{"os": ["Linux"]}], "everything that one entry looks for is here"),
        (
            [{"pci_vendor": "19e5", "pci_class": ["0x1200", "0x0b40"]}],
            "looked for a PCI device of vendor 19e5, class 0x1200 or 0x0b40 "
            "(not among 4 PCI devices)",
        ),
        (
            [{"machine": ["ppc64le"], "os": ["Linux"]}, {"device_node": "/dev/kfd"}],
            "looked for machine ppc64le (this machine is x86_64); "
            "or for a device node /dev/kfd (not there)",
        ),
        ([{"kernel_module": "habanalabs"}], "looked for kernel module habanalabs (not loaded)"),
    ],
)
def test_what_was_looked_for(entries, said):
    assert why_not(entries, HOST) == said


def test_facts_that_could_not_be_read_are_named():
    places = (("pci", "/sys/bus/pci/devices"), ("modules", "/proc/modules"))
    host = HostFacts(unknown=places)
    assert why_not([{"pci_vendor": "10de", "kernel_module": "nvidia", "os": ["Linux"]}], host) == (
        "looked for a PCI device of vendor 10de (/sys/bus/pci/devices cannot be read) "
        "and kernel module nvidia (/proc/modules cannot be read) "
        "and system Linux (this system is unknown)"
    )


# --- properties --------------------------------------------------------------------------

devices = st.sampled_from([H200, H200_B, SWITCH, NPU, NIC])
hosts = st.builds(
    HostFacts,
    os=st.builds(
        OsFacts,
        st.sampled_from([None, "Linux", "Darwin"]),
        st.none(),
        st.sampled_from([None, "x86_64", "arm64"]),
    ),
    pci=st.lists(devices, unique=True).map(tuple),
    nodes=st.lists(st.sampled_from(NODES), unique=True).map(tuple),
    modules=st.lists(st.sampled_from(["nvidia", "amdgpu"]), unique=True).map(tuple),
)


def some(*values):
    return st.lists(st.sampled_from(values), min_size=1, max_size=2)


entry = st.fixed_dictionaries(
    {},
    optional={
        "pci_vendor": st.sampled_from(["10de", "19e5"]),
        "pci_device": some("2335", "d802", "22a3"),
        "pci_class": some("0x0302", "0x120000", "0x0680"),
        "device_node": st.sampled_from(["/dev/nvidia*", "/dev/kfd"]),
        "machine": some("x86_64", "aarch64"),
        "os": some("Linux", "Windows"),
        "kernel_module": st.sampled_from(["nvidia", "xe"]),
    },
).filter(bool)


def by_definition(entry, host):
    """The rule of the design document, written as plainly as possible."""

    def wanted(key):
        return entry[key] if isinstance(entry[key], list) else [entry[key]]

    tests = {
        "device_node": lambda v: any(n.path.startswith(v[0].rstrip("*")) for n in host.nodes),
        "machine": lambda v: {"arm64": "aarch64"}.get(host.os.machine, host.os.machine) in v,
        "os": lambda v: host.os.name in v,
        "kernel_module": lambda v: v[0] in host.modules,
    }
    pci = {
        "pci_vendor": lambda v, d: d.vendor in v,
        "pci_device": lambda v, d: d.device in v,
        "pci_class": lambda v, d: any(d.class_code[: len(c)] == c for c in v),
    }
    if not all(tests[key](wanted(key)) for key in entry if key in tests):
        return None
    keys = [key for key in entry if key in pci]
    found = {d for d in host.pci if all(pci[key](wanted(key), d) for key in keys)}
    return (found if keys else set()) if found or not keys else None


@given(st.lists(entry, max_size=3), hosts)
def test_match_is_its_definition(entries, host):
    held = [found for e in entries if (found := by_definition(e, host)) is not None]
    got = match(entries, host)
    assert (got is None) == (not held)
    if got:
        assert set(got.pci) == set().union(*held)
        assert len(got.pci) == len(set(got.pci))
        assert got.evidence


@given(st.lists(entry, max_size=3), hosts)
def test_why_not_is_one_sentence(entries, host):
    said = why_not(entries, host)
    assert said and "\n" not in said
    if match(entries, host) is None:
        assert said != "everything that one entry looks for is here"


REPORT = HostFacts(
    accelerators=(Accelerator("cuda", 0, "nvidia-smi"), Accelerator("cuda", 1, "nvidia-smi")),
    report=(Line(1, "NVIDIA-SMI"),),
)


def test_a_vendors_tool_is_evidence_where_no_bus_is_known():
    assert match([NVIDIA], REPORT) == Match(("nvidia-smi lists a device of NVIDIA",))
    assert match([{"pci_vendor": "1002"}], REPORT) is None
    assert match([{**NVIDIA, "machine": ["x86_64"]}], REPORT) is None


def test_a_known_bus_or_a_wanted_device_id_is_not_replaced_by_a_tool():
    assert match([NVIDIA], dataclasses.replace(REPORT, pci=(NIC,))) is None
    assert match([{**NVIDIA, "pci_device": ["2335"]}], REPORT) is None


def test_a_live_machine_without_the_node_does_not_match_by_its_tool():
    assert match([NVIDIA], dataclasses.replace(REPORT, report=())) is None
    other = (DeviceNode("/dev/kfd", "char", True, True),)
    assert match([NVIDIA], dataclasses.replace(REPORT, nodes=other)) is None
