"""A capability descriptor: what one arch can do, with the source of each figure.

The JSON Schema of the file is `vllm_adapter_schemas`' `capability`; it documents every field.
This module reads a file with plain checks (no jsonschema) into frozen objects whose attributes
are the file's own names: `cap.memory.bandwidth_gb_s` is a number or None, and
`cap.source("/memory/bandwidth_gb_s")` says where it is from. Unknown is None, never a guess.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from vllm_adapter.decision import OperatorEntry, Rule
from vllm_adapter.errors import CapabilityError
from vllm_adapter.operators import DTYPES, OPERATORS

SCHEMA_NAME: Final = "vllm-adapter/capability"
SCHEMA_VERSION: Final = (1, 0)
SUPPORT: Final = ("full", "versioned", "not_implemented", "unsupported", "unknown")
SOURCES: Final = ("measured", "queried", "datasheet", "assumed")
FORMS: Final = ("kernel", "torch")
LIMIT_WORDS: Final = ("min", "max", "multiple_of")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which device this is. `capability_id` is None where the vendor has no such number."""

    vendor: str
    arch: str
    torch_type: str | None
    name: str | None = None
    capability_id: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ComputeUnit:
    """Peak of one dtype, dense. `emulated`: the dtype is stored, but computed in another."""

    throughput_gflops: float | None = None
    ops_per_clock_per_unit: float | None = None
    units: int | None = None
    clock_ghz: float | None = None
    max_threads: int | None = None
    emulated: bool | None = None

    @property
    def peak_gflops(self) -> float | None:
        """The declared throughput, or ops per clock per unit x units x clock."""
        if self.throughput_gflops is not None:
            return self.throughput_gflops
        if None in (self.ops_per_clock_per_unit, self.units, self.clock_ghz):
            return None
        assert self.ops_per_clock_per_unit is not None and self.units is not None
        assert self.clock_ghz is not None
        return self.ops_per_clock_per_unit * self.units * self.clock_ghz


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory. `unified`: it is the host's memory, not the device's own."""

    capacity_bytes: int | None = None
    bandwidth_gb_s: float | None = None
    alignment_bytes: int | None = None
    transfer_alignment_bytes: int | None = None
    managed_memory_supported: bool | None = None
    unified: bool | None = None
    runtime_reserve_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Dma:
    """Copy engines."""

    engine_count: int | None = None
    max_concurrent_transfers: int | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """How kernels run. `subgroup_size` is None where a chip has no such thing."""

    subgroup_size: int | None = None
    shared_memory_bytes: int | None = None
    max_grid: int | None = None
    fence_scope: str | None = None
    graph_capture: bool | None = None


@dataclass(frozen=True, slots=True)
class Numerics:
    """Number formats whose meaning differs between chips."""

    fp8_flavour: str | None = None
    fp8_max: float | None = None
    deterministic: bool | None = None


@dataclass(frozen=True, slots=True)
class Kv:
    """Paged KV cache: sizes in tokens."""

    block_multiple: int | None = None
    preferred_block: int | None = None


@dataclass(frozen=True, slots=True)
class Vllm:
    """Names that vLLM asks a platform for."""

    dist_backend: str | None = None
    visible_devices_variable: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a figure is from: one of `SOURCES`, with a reference a reader can follow."""

    kind: str
    reference: str | None = None


@dataclass(frozen=True)
class Capability:
    """One descriptor. `raw` is the JSON it was read from, `origin` the file."""

    identity: Identity
    compute_units: Mapping[str, ComputeUnit]
    memory: Memory
    dma: Dma
    execution: Execution
    numerics: Numerics
    kv: Kv
    vllm: Vllm
    driver: Mapping[str, Any]
    operators: Mapping[str, tuple[OperatorEntry, ...]]
    match: Sequence[Mapping[str, Any]]
    raw: Mapping[str, Any]
    origin: str

    def source(self, pointer: str) -> Source:
        """Where the figure at a JSON pointer is from; `sources` wins over its section's.

        Raises:
            CapabilityError: the pointer names nothing in this descriptor.
        """
        parts = [p.replace("~1", "/").replace("~0", "~") for p in pointer.split("/")[1:]]
        value: Any = self.raw
        for part in parts:
            if not isinstance(value, Mapping) or part not in value:
                raise CapabilityError(
                    f"{self.origin} has nothing at {pointer!r}",
                    hint="write a JSON pointer such as /memory/bandwidth_gb_s",
                )
            value = value[part]
        override = self.raw.get("sources", {})
        for depth in range(len(parts), 0, -1):
            key = "/" + "/".join(parts[:depth])
            if key in override:
                return Source(override[key]["kind"], override[key].get("reference"))
        given = (
            self.raw[parts[0]].get("source") if isinstance(self.raw[parts[0]], Mapping) else None
        )
        if given is None:
            raise CapabilityError(
                f"{self.origin} gives no source for {pointer}",
                hint=f'add "source": {{"kind": ...}} to its section /{parts[0]}',
            )
        return Source(given["kind"], given.get("reference"))

    def refined(self, live: Mapping[str, Any]) -> Capability:
        """This descriptor with live values merged in, each marked `queried`.

        `live` has the file's own shape and only the fields that are known live, such as
        `{"memory": {"capacity_bytes": 25769803776}}`.
        """
        raw = copy.deepcopy(dict(self.raw))
        sources = raw.setdefault("sources", {})
        _merge(raw, live, "", sources)
        return parse_capability(raw, self.origin)


def load_capability(path: Path) -> Capability:
    """Reads a descriptor file.

    Raises:
        CapabilityError: missing, not JSON, a newer major version, or a word we do not know.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise CapabilityError(
            f"cannot read the descriptor {path}: {why}",
            hint="give the path of a capability descriptor (JSON)",
        ) from None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CapabilityError(
            f"{path} is not JSON: {error}", hint="run `vllm-adapter validate` on the file"
        ) from None
    return parse_capability(raw, str(path))


def parse_capability(raw: Any, origin: str) -> Capability:
    """Builds a Capability from parsed JSON; errors as `load_capability`."""
    if not isinstance(raw, dict):
        raise _bad(origin, "", "is not a JSON object")
    _check_version(raw.get("schema"), origin)
    identity = dict(_object(raw, "identity", origin))
    for key in ("vendor", "arch"):
        if not isinstance(identity.get(key), str):
            raise _bad(origin, f"/identity/{key}", "must be a string")
    if identity.get("capability_id") is not None:
        identity["capability_id"] = tuple(identity["capability_id"])
    units = _object(raw, "compute_units", origin)
    return Capability(
        identity=_section(Identity, {"torch_type": None} | identity),
        compute_units={
            dtype: _section(ComputeUnit, unit)
            for dtype, unit in units.items()
            if dtype != "source"
        },
        memory=_section(Memory, _object(raw, "memory", origin)),
        dma=_section(Dma, _object(raw, "dma", origin)),
        execution=_section(Execution, _object(raw, "execution", origin)),
        numerics=_section(Numerics, _object(raw, "numerics", origin)),
        kv=_section(Kv, _object(raw, "kv", origin)),
        vllm=_section(Vllm, _object(raw, "vllm", origin)),
        driver=_object(raw, "driver", origin),
        operators=_operators(_object(raw, "operators", origin), origin),
        match=raw.get("match", []),
        raw=raw,
        origin=origin,
    )


def _check_version(tag: Any, origin: str) -> None:
    name, _, version = tag.rpartition("/") if isinstance(tag, str) else ("", "", "")
    major, _, minor = version.partition(".")
    if name != SCHEMA_NAME or not (major.isdecimal() and minor.isdecimal()):
        raise CapabilityError(
            f'{origin}: "schema" is {tag!r}, not "{SCHEMA_NAME}/MAJOR.MINOR"',
            hint="an older format converts with `vllm-adapter validate --convert FILE`",
        )
    ours = ".".join(map(str, SCHEMA_VERSION))
    if int(major) > SCHEMA_VERSION[0]:
        raise CapabilityError(
            f"{origin} has schema version {version}; this release reads up to {ours}",
            hint="upgrade vllm-adapter, or take the adapter's release for this one",
        )
    if (int(major), int(minor)) > SCHEMA_VERSION:
        warnings.warn(
            f"{origin} has schema version {version}, newer than {ours}: its new fields are ignored",
            stacklevel=4,
        )


def _operators(
    declared: Mapping[str, Any], origin: str
) -> Mapping[str, tuple[OperatorEntry, ...]]:
    table = {}
    for name, value in declared.items():
        if name == "source":
            continue
        if name not in OPERATORS:
            raise _bad(origin, f"/operators/{name}", "is no operator of this release")
        base = f"/operators/{name}"
        given = value if isinstance(value, list) else [value]
        pointers = (
            [f"{base}/{i}" for i in range(len(given))] if isinstance(value, list) else [base]
        )
        table[name] = tuple(
            _entry(name, entry, pointer, origin)
            for entry, pointer in zip(given, pointers, strict=True)
        )
    return table


def _entry(name: str, entry: Any, pointer: str, origin: str) -> OperatorEntry:
    if not isinstance(entry, dict):
        raise _bad(origin, pointer, "must be an object")
    known = {f.name for f in fields(OperatorEntry)} - {"pointer"}
    for key in entry:
        if key not in known:
            raise _bad(
                origin, f"{pointer}/{key}", f"is unknown; known: {', '.join(sorted(known))}"
            )
    _one_of(entry.get("support"), SUPPORT, origin, f"{pointer}/support")
    _one_of(entry.get("form", "kernel"), FORMS, origin, f"{pointer}/form")
    for dtype in entry.get("dtypes", []):
        _one_of(dtype, DTYPES, origin, f"{pointer}/dtypes")
    limits = {
        fact: _rule(name, fact, rule, f"{pointer}/limits/{fact}", origin)
        for fact, rule in entry.get("limits", {}).items()
    }
    result = OperatorEntry(
        **(entry | {"limits": limits, "dtypes": tuple(entry.get("dtypes", ()))}), pointer=pointer
    )
    if result.declares and not (result.dtypes and result.run):
        raise _bad(origin, pointer, f"is {result.support} and so needs `dtypes` and `run`")
    return result


def _rule(operator: str, fact: str, rule: Any, pointer: str, origin: str) -> Rule:
    facts = OPERATORS[operator].facts
    if fact not in facts:
        raise _bad(origin, pointer, f"is no fact of {operator}; facts: {', '.join(facts)}")
    if isinstance(rule, list):
        return tuple(rule)
    if not isinstance(rule, dict):
        raise _bad(origin, pointer, "must be a list, or an object of min, max, multiple_of")
    for word, bound in rule.items():
        _one_of(word, LIMIT_WORDS, origin, f"{pointer}/{word}")
        if isinstance(bound, bool) or not isinstance(bound, (int, float)):
            raise _bad(origin, f"{pointer}/{word}", "must be a number")
        if word == "multiple_of" and bound <= 0:
            raise _bad(origin, f"{pointer}/{word}", "must be above zero")
    return rule


S = TypeVar("S")


def _section(kind: type[S], values: Mapping[str, Any]) -> S:
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]  # every S is a dataclass
    return kind(**{key: value for key, value in values.items() if key in known})


def _object(raw: Mapping[str, Any], key: str, origin: str) -> Mapping[str, Any]:
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise _bad(origin, f"/{key}", "must be an object")
    return value


def _one_of(value: Any, words: Sequence[str], origin: str, pointer: str) -> None:
    if value not in words:
        raise _bad(origin, pointer, f"is {value!r}; use one of: {', '.join(words)}")


def _merge(
    into: dict[str, Any], live: Mapping[str, Any], at: str, sources: dict[str, Any]
) -> None:
    for key, value in live.items():
        pointer = f"{at}/{key}"
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value, pointer, sources)
        else:
            into[key] = value
            sources[pointer] = {"kind": "queried", "reference": "live host facts"}


def _bad(origin: str, pointer: str, what: str) -> CapabilityError:
    return CapabilityError(
        f"{origin}: {pointer or 'the file'} {what}",
        hint="`vllm-adapter validate` checks the whole file against its schema",
    )
