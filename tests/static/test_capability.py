"""Descriptors: reading, versions, sources, live values."""

from __future__ import annotations

import copy
import json

import pytest

from vllm_adapter.contract.capability import Source, load_capability, parse_capability
from vllm_adapter.contract.manifest import api_accepts, read_manifest
from vllm_adapter.errors import CapabilityError, ManifestError
from vllm_adapter.files import MAX_DEPTH, read_json

pytestmark = pytest.mark.static

RAW = {
    "schema": "vllm-adapter/capability/1.0",
    "identity": {"vendor": "Acme", "arch": "a1", "capability_id": [9, 4]},
    "compute_units": {
        "float16": {"throughput_gflops": 100.0},
        "int8": {"ops_per_clock_per_unit": 512, "units": 4, "clock_ghz": 1.5},
        "int4": {"units": 4},
        "source": {"kind": "datasheet", "reference": "page 3"},
    },
    "memory": {
        "capacity_bytes": 1024,
        "bandwidth_gb_s": 2.5,
        "source": {"kind": "queried"},
    },
    "kv": {"block_multiple": 16.0},
    "operators": {
        "rms_norm": {
            "support": "full",
            "dtypes": ["float16"],
            "limits": {"hidden": {"multiple_of": 16}},
            "run": "k:f",
        }
    },
    "sources": {"/memory/bandwidth_gb_s": {"kind": "measured", "reference": "bench"}},
}


def changed(**sections):
    return copy.deepcopy(RAW) | sections


def test_fields_carry_the_names_of_the_file():
    cap = parse_capability(RAW, "x.json")
    assert cap.identity.capability_id == (9, 4)
    assert cap.identity.torch_type is None
    assert cap.memory.bandwidth_gb_s == 2.5
    assert cap.memory.unified is None
    assert cap.kv.block_multiple == 16 and isinstance(cap.kv.block_multiple, int)
    assert cap.operators["rms_norm"][0].pointer == "/operators/rms_norm"


def test_peak_is_declared_or_computed_or_unknown():
    units = parse_capability(RAW, "x.json").compute_units
    assert units["float16"].peak_gflops == 100.0
    assert units["int8"].peak_gflops == 512 * 4 * 1.5
    assert units["int4"].peak_gflops is None


def test_a_source_is_the_nearest_override_or_the_section_s():
    cap = parse_capability(RAW, "x.json")
    assert cap.source("/memory/bandwidth_gb_s") == Source("measured", "bench")
    assert cap.source("/memory/capacity_bytes") == Source("queried")
    assert cap.source("/compute_units/int8/units") == Source("datasheet", "page 3")


@pytest.mark.parametrize("pointer", ["", "/", "/nope", "/memory/nope", "/memory/capacity_bytes/x"])
def test_a_pointer_to_nothing_is_an_error(pointer):
    with pytest.raises(CapabilityError):
        parse_capability(RAW, "x.json").source(pointer)


def test_a_section_without_a_source_says_so():
    with pytest.raises(CapabilityError, match="gives no source for /kv/block_multiple"):
        parse_capability(RAW, "x.json").source("/kv/block_multiple")


def test_a_pointer_may_lead_through_a_list():
    entry = RAW["operators"]["rms_norm"]
    operators = {"rms_norm": [entry], "source": {"kind": "assumed"}}
    cap = parse_capability(changed(operators=operators), "x.json")
    assert cap.source("/operators/rms_norm/0/limits/hidden").kind == "assumed"
    with pytest.raises(CapabilityError):
        cap.source("/operators/rms_norm/1")


def test_live_values_are_marked_queried():
    cap = parse_capability(RAW, "x.json").refined(
        {"memory": {"capacity_bytes": 2048}, "compute_units": {"float16": {"units": 2}}}
    )
    assert cap.memory.capacity_bytes == 2048
    assert cap.compute_units["float16"].units == 2
    assert cap.source("/memory/capacity_bytes") == Source("queried", "live host facts")
    assert cap.source("/memory/bandwidth_gb_s").kind == "measured"
    assert RAW["memory"]["capacity_bytes"] == 1024


@pytest.mark.parametrize(
    "live", [[], "x", {"memory": 3}, {"memory": {"capacity_bytes": {"x": 1}}}, {3: 4}, {"x": 1}]
)
def test_live_values_of_a_wrong_shape_are_a_typed_error(live):
    with pytest.raises(CapabilityError):
        parse_capability(RAW, "x.json").refined(live)


@pytest.mark.parametrize(
    ("sections", "pointer"),
    [
        ({"memory": []}, "/memory "),
        ({"memory": {"capacity_bytes": "8"}}, "/memory/capacity_bytes "),
        ({"memory": {"bandwith": 3}}, "/memory/bandwith "),
        ({"memory": {"source": {"kind": "guess"}}}, "/memory/source/kind "),
        ({"kv": {"block_multiple": 0}}, "/kv/block_multiple "),
        (
            {"identity": {"vendor": "A", "arch": "b", "capability_id": 7}},
            "/identity/capability_id ",
        ),
        ({"identity": {"vendor": "A"}}, "/identity/arch "),
        ({"sources": []}, "/sources "),
        ({"operators": {"rms_norm": []}}, "/operators/rms_norm "),
        ({"operators": {"conv": {}}}, "/operators/conv "),
        ({"operators": {"rms_norm": {"support": "full"}}}, "/operators/rms_norm is full and so"),
        ({"operators": {"rms_norm": {"support": "unknown", "limits": 3}}}, "/limits "),
        ({"operators": {"rms_norm": {"support": "unknown", "dtypes": "float32"}}}, "/dtypes "),
        (
            {"operators": {"rms_norm": {"support": "unknown", "limits": {"window": [1]}}}},
            "/operators/rms_norm/limits/window is an unknown key; keys: hidden",
        ),
        ({"x/y": 1}, "/x~1y "),
    ],
)
def test_a_fault_names_its_pointer(sections, pointer):
    with pytest.raises(CapabilityError) as caught:
        parse_capability(changed(**sections), "x.json")
    assert pointer in caught.value.message


def test_a_newer_minor_is_read_with_a_warning():
    newer = changed(schema="vllm-adapter/capability/1.1", extra=1)
    newer["memory"]["colour"] = "red"
    newer["operators"]["conv"] = {"whatever": 1}
    with pytest.warns(UserWarning, match="newer than 1.0"):
        cap = parse_capability(newer, "x.json")
    assert cap.memory.capacity_bytes == 1024
    assert list(cap.operators) == ["rms_norm"]


def test_an_unknown_limit_is_refused_also_in_a_newer_minor():
    newer = changed(schema="vllm-adapter/capability/1.1")
    newer["operators"]["rms_norm"]["limits"]["rows"] = {"max": 1}
    said = "limits/rows is an unknown key; keys: hidden"
    with pytest.warns(UserWarning), pytest.raises(CapabilityError, match=said):
        parse_capability(newer, "x.json")


@pytest.mark.parametrize("version", ["2.0", "0.9", "1", "1.x", "1.99999"])
def test_another_major_or_no_version_is_refused(version):
    with pytest.raises(CapabilityError):
        parse_capability(changed(schema=f"vllm-adapter/capability/{version}"), "x.json")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"{", "is not JSON"),
        (b'{"a": NaN}', "NaN is no JSON value"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": 1, "a": 2}', "appears twice"),
        (b"9" * 5000, "is not JSON"),
        (b"[" * 100 + b"]" * 100, f"more than {MAX_DEPTH} levels"),
        (b"[" * 200_000, "more than|is not JSON"),
        (b"[]", "is not a JSON object"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, content, why):
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(CapabilityError, match=why) as caught:
        load_capability(file)
    assert "\n" not in caught.value.message


def test_missing_files_and_folders(tmp_path):
    for path, why in ((tmp_path / "no.json", "No such file"), (tmp_path, "[Dd]irectory")):
        with pytest.raises(CapabilityError, match=why):
            load_capability(path)
        with pytest.raises(ManifestError, match=why):
            read_manifest(path)


def test_depth_up_to_the_limit_is_read(tmp_path):
    file = tmp_path / "x.json"
    file.write_text("[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1))
    assert read_json(file, "the file")


def test_a_manifest_of_a_newer_minor_is_read_with_a_warning(tmp_path):
    file = tmp_path / "adapter.json"
    raw = {
        "schema": "vllm-adapter/manifest/1.2",
        "name": "acme",
        "vendor": "Acme",
        "api": ">=1.0",
        "device": {"torch_type": "acme", "bus": 1},
        "colour": "red",
    }
    file.write_text(json.dumps(raw))
    with pytest.warns(UserWarning, match="newer than this release"):
        assert read_manifest(file).device.torch_type == "acme"
    file.write_text(json.dumps(raw | {"match": [{"bus": "x"}]}))
    with pytest.raises(ManifestError, match="/match/0/bus is an unknown key; keys: pci_vendor"):
        read_manifest(file)


@pytest.mark.parametrize(
    ("api", "accepted"),
    [
        (">=1.0,<2", True),
        (">=1.1", False),
        ("==1.0", True),
        ("!=1", False),
        ("> 0.9 , <= 1", True),
    ],
)
def test_api_ranges(api, accepted):
    assert api_accepts(api) is accepted


@pytest.mark.parametrize(
    ("kv", "size"),
    [
        ({}, 16),
        ({"block_multiple": 1}, 16),
        ({"block_multiple": 24}, 24),
        ({"block_multiple": 12}, 24),
        ({"block_multiple": 8, "preferred_block": 32}, 32),
    ],
)
def test_a_block_of_the_kv_cache_is_one_that_the_chip_can_use(kv, size):
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "acme"},
        "kv": kv | {"source": {"kind": "assumed"}},
    }
    assert parse_capability(raw, "acme").kv.block_size == size
