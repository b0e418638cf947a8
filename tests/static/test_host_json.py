"""Host facts as JSON: round trips, and one sentence for what is not host facts."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts import facts as f

pytestmark = pytest.mark.static

some_text = st.text(max_size=8)
whole = st.integers(0, 2**63)
maybe_text = st.none() | some_text
maybe_whole = st.none() | whole
pci_devices = st.builds(
    f.PciDevice,
    bdf=st.from_regex(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", fullmatch=True),
    vendor=st.from_regex(r"[0-9a-f]{4}", fullmatch=True),
    device=st.from_regex(r"[0-9a-f]{4}", fullmatch=True),
    class_code=st.from_regex(r"0x[0-9a-f]{6}", fullmatch=True),
    numa_node=maybe_whole,
    driver=maybe_text,
)


def tuples(items):
    return st.lists(items, max_size=3).map(tuple)


host_facts = st.builds(
    f.HostFacts,
    os=st.builds(f.OsFacts, maybe_text, maybe_text, maybe_text),
    pci=tuples(pci_devices),
    nodes=tuples(st.builds(f.DeviceNode, some_text, some_text, st.booleans(), st.booleans())),
    modules=tuples(some_text),
    cpuset=st.builds(f.CpuSet, tuples(whole), tuples(whole)),
    cgroup=st.builds(
        f.CgroupLimits,
        maybe_whole,
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ),
    cpu=st.builds(
        f.CpuFacts, maybe_text, tuples(some_text), maybe_whole, maybe_whole, maybe_whole
    ),
    memory=st.builds(f.MemoryFacts, maybe_whole, maybe_whole),
    python=maybe_text,
    torch=st.none() | st.builds(f.TorchBuild, *[maybe_text] * 5),
    unknown=tuples(st.tuples(some_text, some_text)),
)


@given(host_facts)
def test_json_round_trip(facts):
    assert f.HostFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_facts_left_out_take_their_defaults():
    assert f.HostFacts.from_json({}) == f.HostFacts()
    assert f.HostFacts.from_json({"os": {"name": "Linux"}}).os == f.OsFacts("Linux")


DEVICE = {"bdf": "0000:3b:00.0", "vendor": "10de", "device": "2335", "class_code": "0x030200"}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ([], "the file is []; write an object"),
        (None, "the file is None; write an object"),
        ({"gpu": 1}, "/gpu is an unknown key; keys: os, pci,"),
        ({"os": {"name": 3}}, "/os/name is 3; write text, or null when it is unknown"),
        ({"pci": {}}, "/pci is {}; write a list"),
        ({"pci": [3]}, "/pci/0 is 3; write an object"),
        ({"pci": [{"bdf": "0000:3b:00.0"}]}, "/pci/0/vendor is missing"),
        (
            {"pci": [DEVICE | {"vendor": "0x10DE"}]},
            "/pci/0/vendor is '0x10DE'; write four lower-case hexadecimal digits",
        ),
        (
            {"pci": [DEVICE | {"numa_node": True}]},
            "/pci/0/numa_node is True; write a whole number",
        ),
        (
            {"nodes": [{"path": "", "kind": "", "readable": 1, "writable": True}]},
            "/nodes/0/readable is 1; write true or false",
        ),
        (
            {"cgroup": {"cpu_quota_cores": "2"}},
            "/cgroup/cpu_quota_cores is '2'; write a finite number",
        ),
        ({"cgroup": {"cpu_quota_cores": float("nan")}}, "write a finite number"),
        ({"cgroup": {"cpu_quota_cores": 10**400}}, "write a finite number"),
        ({"unknown": [["a"]]}, "/unknown/0 is ['a']; write a list of 2 items"),
        ({"torch": "2.13"}, "/torch is '2.13'; write an object"),
    ],
)
def test_json_of_another_shape_gets_one_sentence(raw, says):
    with pytest.raises(InputError) as error:
        f.HostFacts.from_json(raw)
    assert says in error.value.message
    assert "\n" not in error.value.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([x.name for x in dataclasses.fields(f.HostFacts)]), json_values
    )
)
def test_any_json_is_facts_or_an_input_error(raw):
    try:
        assert isinstance(f.HostFacts.from_json(raw), f.HostFacts)
    except InputError:
        pass


def test_facts_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        f.HostFacts().python = "4"
