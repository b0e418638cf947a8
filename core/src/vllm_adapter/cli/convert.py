"""Descriptors of the older format (`device_type`, `fp16`, ...) in the present one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm_adapter.contract.capability import SCHEMA_NAME, SCHEMA_VERSION
from vllm_adapter.contract.reading import escaped
from vllm_adapter.contract.sections import UNIT_DTYPES
from vllm_adapter.errors import InputError
from vllm_adapter.files import shown

_TORCH_TYPES: Final = {"ascend": "npu", "intel_xpu": "xpu", "cuda": "cuda", "cpu": "cpu"}
_DTYPES: Final = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "compute_units": ("max_threads", "throughput_gflops"),
    "memory": ("bandwidth_gb_s", "alignment_bytes", "managed_memory_supported"),
    "dma": ("engine_count", "max_concurrent_transfers"),
}


def convert(raw: Any, file_name: str) -> tuple[dict[str, Any], list[str]]:
    """The descriptor, and the JSON pointers of what the older file holds and it does not.

    The arch is the file's name up to its first dot. Every section with figures is marked
    `assumed`, with a reference to the file; the values themselves are carried over as they are,
    and so still have to be checked.

    Raises:
        InputError: not of the older format.
    """
    device_type = raw.get("device_type") if isinstance(raw, dict) else None
    if not isinstance(device_type, str) or "schema" in raw:
        why = (
            'it has a "schema"' if isinstance(raw, dict) and "schema" in raw else "no device_type"
        )
        raise InputError(
            f"{file_name} is not a descriptor of the older format: {why}",
            hint="check a file of the present format without --convert",
        )
    source = {
        "kind": "assumed",
        "reference": f"converted from {file_name}, which names no source for its figures",
    }
    lost = [f"/{escaped(key)}" for key in raw if key not in ("device_type", *_FIELDS)]
    result: dict[str, Any] = {
        "schema": f"{SCHEMA_NAME}/{SCHEMA_VERSION[0]}.{SCHEMA_VERSION[1]}",
        "identity": {
            "vendor": device_type,
            "arch": file_name.partition(".")[0],
            "torch_type": _TORCH_TYPES.get(device_type),
            "capability_id": None,
            "source": source,
        },
    }
    for section in (key for key in _FIELDS if key in raw):
        values = _object(raw[section], f"/{section}", file_name)
        if section == "compute_units":
            result[section] = _units(values, file_name, lost)
        else:
            result[section] = _kept(values, section, f"/{section}", lost)
        result[section]["source"] = source
    return result, lost


def _units(values: Mapping[str, Any], file_name: str, lost: list[str]) -> dict[str, Any]:
    units = {}
    for old, unit in values.items():
        pointer = f"/compute_units/{escaped(old)}"
        dtype = _DTYPES.get(old, old)
        if dtype not in UNIT_DTYPES or dtype in units:
            lost.append(pointer)
            continue
        units[dtype] = _kept(_object(unit, pointer, file_name), "compute_units", pointer, lost)
    return units


def _kept(
    values: Mapping[str, Any], section: str, pointer: str, lost: list[str]
) -> dict[str, Any]:
    known = _FIELDS[section]
    lost.extend(f"{pointer}/{escaped(key)}" for key in values if key not in known)
    return {key: values[key] for key in known if key in values}


def _object(value: Any, pointer: str, file_name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(
            f"{file_name}: {pointer} is {shown(value)}, not an object",
            hint="correct the file, then convert it again",
        )
    return value
