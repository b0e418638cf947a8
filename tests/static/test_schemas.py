"""The schemas document every field, and say exactly what the readers say."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import vllm_adapter_schemas
from vllm_adapter.cli.checks import schema_faults
from vllm_adapter.contract import capability, manifest
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.contract.reading import Fault, read
from vllm_adapter.errors import CapabilityError, InputError
from vllm_adapter.files import schema_version
from vllm_adapter_conformance.certificate.format import Certificate
from vllm_adapter_doctor.report.document import from_document

pytestmark = pytest.mark.static

MANIFEST = {
    "schema": "vllm-adapter/manifest/1.0",
    "name": "acme",
    "vendor": "Acme",
    "api": ">=1.0,<2",
    "device": {"torch_type": "acme", "torch_module": "torch_acme"},
    "match": [{"pci_vendor": "fff1", "pci_class": ["0x1200"]}, {"machine": ["x86_64"]}],
    "capabilities": "capabilities/*.json",
    "plugin": "vllm_adapter_acme.plugin:AcmePlugin",
    "emulated": False,
    "tested_on": ["a1"],
}
DESCRIPTOR = {
    "schema": "vllm-adapter/capability/1.0",
    "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "acme", "capability_id": [9, 4]},
    "match": [
        {"pci_vendor": "fff1", "pci_device": ["0001"]},
        {"arch": ["a1"], "device_name": ["Acme A1*"]},
    ],
    "compute_units": {
        "float16": {"throughput_gflops": 1e5, "max_threads": 64, "accumulate": "float32"},
        "source": {"kind": "datasheet", "reference": "page 3"},
    },
    "memory": {"capacity_bytes": 2**34, "unified": False, "source": {"kind": "queried"}},
    "dma": {"engine_count": 0},
    "execution": {"subgroup_size": None, "fence_scope": "wavefront"},
    "numerics": {"fp8_flavour": "e4m3fn", "fp8_max": 448.0, "native_fp4": None},
    "kv": {"block_multiple": 16},
    "vllm": {"dist_backend": "gloo", "visible_devices_variable": None},
    "driver": {
        "component": "acme",
        "minimum": "1.2",
        "builds": [{"runtime": "acme", "version": "7", "minimum": "1.1", "tested": ["1.2"]}],
        "blocked": ["1.3"],
        "downgrades": [{"feature": "fp8", "below": "2", "to": "float16", "reason": "old"}],
    },
    "advice": ["Blocks of 16."],
    "operators": {
        "rms_norm": {
            "support": "full",
            "dtypes": ["float16"],
            "limits": {"hidden": {"multiple_of": 16}},
            "form": "kernel",
            "run": "vllm_adapter_acme.kernels:rms_norm",
        },
        "paged_attention": [
            {
                "support": "versioned",
                "first_version": "2.0",
                "dtypes": ["float16", "bfloat16"],
                "run": "k:attention",
                "plan": "k:plan",
                "variant": "decode",
                "limits": {"phase": ["decode"], "head_size": [64, 128], "soft_cap": {"min": 0}},
            },
            {"support": "unsupported", "limits": {"kv_dtype": ["float8_e4m3fn"]}},
        ],
        "linear": {"support": "not_implemented", "limits": {"bias": [True]}},
    },
    "sources": {"/memory/capacity_bytes": {"kind": "measured", "reference": None}},
}
FACTS = {
    "schema": "vllm-adapter/facts/1.0",
    "os": {"name": "Linux", "environment": ["docker"]},
    "pci": [
        {"bdf": "0000:3b:00.0", "vendor": "10de", "device": "2335", "class_code": "0x030200"},
    ],
    "nodes": [{"path": "/dev/x", "kind": "char", "readable": True, "writable": False, "group": 4}],
    "cgroup": {"memory_limit_bytes": 1024, "cpu_quota_cores": 1.5},
    "torch": {"version": "2.13.0", "archs": ["sm_90"], "available": None},
    "unknown": [["memory.total_bytes", "/proc/meminfo"]],
    "accelerators": [
        {"vendor": "cuda", "index": 0, "source": "nvidia-smi", "health": {"power_w": 70}},
    ],
    "links": [
        {
            "source": "nvidia-smi",
            "vendor": "cuda",
            "devices": ["GPU0"],
            "indices": [0],
            "links": [{"first": "GPU0", "second": "NIC0", "text": "PIX"}],
        }
    ],
    "vllm": {"plugins": [["vllm.platform_plugins", "acme", "acme:register"]]},
    "report": [{"number": 1, "text": "x"}],
}
SHA = "0123456789abcdef" * 4
CASE = {"case": "float32", "seconds": 0.5, "share": None, "pointer": "/operators", "message": None}
CERTIFICATE = {
    "schema": "vllm-adapter/certificate/1.0",
    "adapter": {
        "name": "acme",
        "dist": "vllm-adapter-acme",
        "version": "1.0",
        "files": {"adapter.json": SHA},
        "editable": False,
        "emulated": False,
        "tested_on": ["a1"],
    },
    "level_asked": "L2",
    "level_reached": None,
    "grade": "release",
    "emulated": False,
    "badge": "L2",
    "created": "2026-01-31T12:00:00Z",
    "suite": {"version": "1.0", "files_sha256": SHA, "mustpass_sha256": SHA},
    "core": {"version": "1.0", "files_sha256": SHA},
    "descriptor": {"path": "capabilities/a1.json", "sha256": SHA},
    "host": {"machine": "x86_64", "os": "Linux", "cpu": None, "pci": ["PCI"]},
    "device": {
        "name": "Acme A1",
        "torch": "acme:0",
        "arch": "a1",
        "emulated_by": {"name": "sim", "dist": "sim", "version": "1", "library_sha256": SHA},
    },
    "environment": {"python": "3.11", "core": "1.0", "torch": "2.13.0"},
    "settings": {"VA_FALLBACK": "error"},
    "seed": 3,
    "headline": "acme does not reach L2",
    "coverage": {"linear": {"float32": "pass"}},
    "counts": {"pass": 1, "fail": 0, "not_declared": 1, "waived": 1, "blocked": 1},
    "counters": {"L5.x": {"engine": {"linear": {"acme": 3}}}},
    "rules": [
        {
            "rule": "L2.linear.correct",
            "level": "L2",
            "preview": False,
            "cases": [
                CASE | {"outcome": "pass", "waiver": None, "blocked_by": None},
                CASE
                | {
                    "outcome": "waived",
                    "waiver": {"issue": "#1", "expires": "2026-01-31", "reason": None},
                    "blocked_by": None,
                },
                CASE | {"outcome": "blocked", "waiver": None, "blocked_by": "L0.x"},
            ],
            "not_declared": [{"case": "bfloat16", "pointer": None, "reason": "no entry"}],
        }
    ],
    "digest": SHA,
}
WORDS = st.sampled_from(
    (
        *(
            "",
            " ",
            "\n",
            "acme\n",
            "Acme",
            "torch",
            "if",
            "a.b:c",
            "a.b",
            "0x1200",
            "fff1",
            "FFF1",
        ),
        *("/a", "../a", "a/../b.json", "x*.json", ">=1", "> 1.0 ,<2", "1", "\u0661", ">=\u0661"),
        *("e4m3fn", "float16", "full", "versioned", "decode", "kind", "min", "auto", "/memory"),
        *("vllm-adapter/manifest/1.0", "vllm-adapter/manifest/1.7", "vllm-adapter/manifest/1.0\n"),
        *("vllm-adapter/capability/1.0", "vllm-adapter/capability/1.7"),
        *("vllm-adapter/capability/2.0", "measured", "hidden", "torch_type", "library", "source"),
        *("x", "a\u2028", "~/", "schema", "if/then"),
        *("vllm-adapter/facts/1.0", "vllm-adapter/facts/1.7", "0000:3b:00.0", "bdf", "health"),
        *("vllm-adapter/certificate/1.7", SHA, "L0", "pass", "waived", "blocked", "development"),
    )
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 1.0, 0.5, 16.0, -0.0, 2**53, 2**53 + 2, 10**30, 1e300])
    | WORDS
    | st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value, at=()):
    """Every path into a JSON value."""
    yield at
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*at, key))


@st.composite
def mutated(draw, document):
    """The document after one to three edits: a value replaced, removed, added or swapped in."""
    result = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(result))))
        if not path:
            continue
        parent = result
        for part in path[:-1]:
            parent = parent[part]
        kind = draw(st.sampled_from(["replace", "remove", "add", "other"]))
        if kind == "remove":
            del parent[path[-1]]
        elif kind == "replace":
            parent[path[-1]] = draw(VALUES)
        elif kind == "other":
            other = draw(st.sampled_from(list(places(document))))
            value = document
            for part in other:
                value = value[part]
            parent[path[-1]] = copy.deepcopy(value)
        elif isinstance(parent, dict):
            parent[draw(WORDS)] = draw(VALUES)
        else:
            parent.append(draw(VALUES))
    return result


def is_newer(kind, raw):
    tag = raw.get("schema") if isinstance(raw, dict) else None
    return (schema_version(tag, f"vllm-adapter/{kind}") or (0, 0)) > (1, 0)


def schema_accepts(kind, raw):
    return not schema_faults(kind, raw, newer=is_newer(kind, raw))[0]


def manifest_accepts(raw):
    try:
        manifest.parse_manifest(raw)
    except Fault:
        return False
    return True


def capability_accepts(raw):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a newer minor version
        try:
            capability.parse_capability(raw, "test")
        except CapabilityError:
            return False
    return True


def facts_accepts(raw):
    if not isinstance(raw, dict) or "schema" not in raw:  # which a bundle's facts may leave out
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a newer minor version
        try:
            from_document(raw)
        except InputError:
            return False
    return True


def certificate_accepts(raw):
    try:
        read(raw, Certificate, newer=is_newer("certificate", raw))
    except Fault:
        return False
    return True


def test_the_examples_are_good():
    assert manifest_accepts(MANIFEST)
    assert schema_accepts("manifest", MANIFEST)
    assert capability_accepts(DESCRIPTOR)
    assert schema_accepts("capability", DESCRIPTOR)
    assert facts_accepts(FACTS)
    assert schema_accepts("facts", FACTS)
    assert certificate_accepts(CERTIFICATE)
    assert schema_accepts("certificate", CERTIFICATE)


@settings(max_examples=examples(600))
@given(mutated(MANIFEST))
def test_the_reader_of_manifests_agrees_with_the_schema(raw):
    assert schema_accepts("manifest", raw) == manifest_accepts(raw)


@settings(max_examples=examples(1200))
@given(mutated(DESCRIPTOR))
def test_the_reader_of_descriptors_agrees_with_the_schema(raw):
    assert schema_accepts("capability", raw) == capability_accepts(raw)


@settings(max_examples=examples(800))
@given(mutated(FACTS))
def test_the_reader_of_facts_agrees_with_the_schema(raw):
    assert schema_accepts("facts", raw) == facts_accepts(raw)


@settings(max_examples=examples(800))
@given(mutated(CERTIFICATE))
def test_the_types_of_certificates_agree_with_the_schema(raw):
    assert schema_accepts("certificate", raw) == certificate_accepts(raw)


@settings(max_examples=examples(300))
@given(VALUES)
def test_any_json_is_judged_and_never_crashes(raw):
    assert schema_accepts("manifest", raw) == manifest_accepts(raw)
    assert schema_accepts("capability", raw) == capability_accepts(raw)
    assert schema_accepts("facts", raw) == facts_accepts(raw)
    assert schema_accepts("certificate", raw) == certificate_accepts(raw)


@pytest.mark.parametrize("section", [k for k in DESCRIPTOR if k not in ("schema", "identity")])
@pytest.mark.parametrize("value", [None, 3, "float32", [], [3], {"x": 1}, True])
def test_a_section_of_a_wrong_type_is_a_typed_error(section, value):
    raw = copy.deepcopy(DESCRIPTOR) | {section: value}
    assert capability_accepts(raw) == schema_accepts("capability", raw)


def subschemas(node):
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from subschemas(value)
    elif isinstance(node, list):
        for value in node:
            yield from subschemas(value)


@pytest.mark.parametrize("kind", vllm_adapter_schemas.KINDS)
def test_every_field_is_described(kind):
    schema = vllm_adapter_schemas.load(kind)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:vllm-adapter:{kind}:{vllm_adapter_schemas.versions(kind)[-1]}"
    assert vllm_adapter_schemas.versions(kind) == ("1.1" if kind == "certificate" else "1.0",)
    for node in subschemas(schema):
        # Nodes without a type are conditions on fields that are described elsewhere.
        for name, field in node.get("properties", {}).items() if "type" in node else ():
            assert field.get("description"), f"{kind}: {name}"


def test_units_are_in_the_names():
    schema = vllm_adapter_schemas.load("capability")
    memory = schema["properties"]["memory"]["properties"]
    sizes = [n for n, f in memory.items() if "integer" in f.get("type", ())]
    assert sizes and all(name.endswith("_bytes") for name in sizes)


def test_capability_schema_has_the_operators_and_their_facts():
    schema = vllm_adapter_schemas.load("capability")
    declared = schema["properties"]["operators"]["properties"]
    assert set(declared) - {"source"} == set(OPERATORS)
    for name, operator in OPERATORS.items():
        limits = schema["$defs"][name]["properties"]["limits"]
        assert limits["propertyNames"]["enum"] == list(operator.facts), name
        assert list(limits["properties"]) == list(operator.facts), name
        for fact, spec in operator.facts.items():
            said = limits["properties"][fact]["description"]
            assert said[1:] == spec.summary[1:] + ".", (name, fact)


@pytest.mark.parametrize(
    ("operator", "limits", "good"),
    [
        ("linear", {"in_features": [64, 1.0]}, True),
        ("linear", {"in_features": [0.5]}, False),
        ("linear", {"in_features": {"min": 0.5}}, True),
        ("linear", {"in_features": {"multiple_of": 0}}, False),
        ("linear", {"bias": [True]}, True),
        ("linear", {"bias": [1]}, False),
        ("linear", {"bias": {"min": 0}}, False),
        ("paged_attention", {"soft_cap": [0.5]}, True),
        ("paged_attention", {"kv_dtype": ["auto"]}, True),
        ("paged_attention", {"kv_dtype": [3]}, False),
        ("paged_attention", {"phase": ["decode"]}, True),
        ("paged_attention", {"phase": ["later"]}, False),
    ],
)
def test_a_limit_is_of_the_type_of_its_fact(operator, limits, good):
    entry = {"support": "unknown", "limits": limits}
    raw = copy.deepcopy(DESCRIPTOR) | {"operators": {operator: entry}}
    assert (capability_accepts(raw), schema_accepts("capability", raw)) == (good, good)


def test_no_descriptor_in_the_tree_is_at_fault():
    root = Path(__file__).parents[2] / "adapters"
    files = [*root.glob("*/src/*/capabilities/*.json"), *root.glob("*/src/*/adapter.json")]
    assert files
    for file in files:
        raw = json.loads(file.read_text(encoding="utf-8"))
        kind = raw["schema"].split("/")[1]
        assert schema_faults(kind, raw) == ([], []), file


def test_the_loader_needs_the_standard_library_alone():
    code = (
        "import sys; before = set(sys.modules); import vllm_adapter_schemas as s; "
        "s.load('certificate'); "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['vllm_adapter_schemas']"


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kinds: manifest"):
        vllm_adapter_schemas.load("../manifest")
