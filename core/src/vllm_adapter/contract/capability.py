"""A capability descriptor: what one arch can do, with the source of each figure.

The JSON Schema of the file is `vllm_adapter_schemas`' `capability`; it documents every field.
This module reads a file with plain checks (no jsonschema) into frozen objects whose attributes
are the file's own names: `cap.memory.bandwidth_gb_s` is a number or None, and
`cap.source("/memory/bandwidth_gb_s")` says where it is from. Unknown is None, never a guess.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter.contract.capability_check import UNIT_DTYPES, Checker, Fault, escaped
from vllm_adapter.contract.decision import OperatorEntry
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.errors import CapabilityError, NewerFormat
from vllm_adapter.files import PACKAGE_BYTES, read_json, schema_version, shown

SCHEMA_NAME: Final = "vllm-adapter/capability"
SCHEMA_VERSION: Final = (1, 0)
DEFAULT_BLOCK: Final = 16


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
    """Peak of one dtype, dense. `emulated`: the dtype is stored, but computed in another.

    `accumulate` is the dtype of sums, where the rate depends on it.
    """

    throughput_gflops: float | None = None
    ops_per_clock_per_unit: float | None = None
    units: int | None = None
    clock_ghz: float | None = None
    max_threads: int | None = None
    emulated: bool | None = None
    accumulate: str | None = None

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
    """Number formats whose meaning differs between chips.

    `native_fp8` and `native_fp4` are False where the chip has no such matrix unit, None where
    nobody knows.
    """

    fp8_flavour: str | None = None
    fp8_max: float | None = None
    deterministic: bool | None = None
    native_fp8: bool | None = None
    native_bfloat16: bool | None = None
    native_fp4: bool | None = None


@dataclass(frozen=True, slots=True)
class Kv:
    """Paged KV cache: sizes in tokens."""

    block_multiple: int | None = None
    preferred_block: int | None = None

    @property
    def block_size(self) -> int:
        """Tokens of a block where nobody asks for another size: one that the chip can use."""
        step = self.block_multiple or 1
        return self.preferred_block or -(-DEFAULT_BLOCK // step) * step


@dataclass(frozen=True, slots=True)
class Vllm:
    """Names that vLLM asks a platform for."""

    dist_backend: str | None = None
    visible_devices_variable: str | None = None
    container_visible_devices_variable: str | None = None


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
    advice: tuple[str, ...]
    operators: Mapping[str, tuple[OperatorEntry, ...]]
    match: Sequence[Mapping[str, Any]]
    raw: Mapping[str, Any]
    origin: str

    def source(self, pointer: str) -> Source:
        """Where the figure at a JSON pointer is from; `sources` wins over its section's.

        Raises:
            CapabilityError: the pointer names nothing in this descriptor.
        """
        parts = pointer.split("/")[1:]
        value: Any = self.raw
        for part in parts:
            try:
                value = _child(value, part)
            except (KeyError, IndexError):
                raise CapabilityError(
                    f"{self.origin} has nothing at {pointer!r}",
                    hint="write a JSON pointer such as /memory/bandwidth_gb_s",
                ) from None
        overrides = self.raw.get("sources", {})
        nearest = ("/" + "/".join(parts[:depth]) for depth in range(len(parts), 0, -1))
        given = next((overrides[key] for key in nearest if key in overrides), None)
        section = self.raw.get(parts[0]) if parts else None
        if given is None and isinstance(section, Mapping):
            given = section.get("source")
        if given is None:
            raise CapabilityError(
                f"{self.origin} gives no source for {pointer or 'the whole file'}",
                hint='add "source": {"kind": ...} to its section, or its pointer to "sources"',
            )
        return Source(given["kind"], given.get("reference"))

    def refined(self, live: Mapping[str, Any]) -> Capability:
        """This descriptor with live values merged in, each marked `queried`.

        `live` has the file's own shape and only the fields that are known live, such as
        `{"memory": {"capacity_bytes": 25769803776}}`.

        Raises:
            CapabilityError: a value that the descriptor's schema does not allow.
        """
        raw = copy.deepcopy(dict(self.raw))
        try:
            if not isinstance(live, Mapping):
                raise Fault("", f"is {shown(live)}, not an object")
            _merge(raw, live, "", raw.setdefault("sources", {}))
            return _parse(raw, self.origin)
        except Fault as fault:
            raise CapabilityError(
                f"live values for {self.origin} cannot be used: {fault}",
                hint="correct the adapter's describe hook: it gives values in the file's shape",
            ) from None


def load_capability(path: Path) -> Capability:
    """Reads a descriptor file.

    Raises:
        CapabilityError: missing, not JSON, a newer major version, or a word we do not know.
    """
    return parse_capability(
        read_json(path, "the descriptor", CapabilityError, limit=PACKAGE_BYTES), str(path)
    )


def parse_capability(raw: Any, origin: str) -> Capability:
    """Builds a Capability from parsed JSON; errors as `load_capability`."""
    try:
        return _parse(raw, origin)
    except Fault as fault:
        raise _bad(origin, fault) from None


def _parse(raw: Any, origin: str) -> Capability:
    if not isinstance(raw, dict):
        raise Fault("", "is not a JSON object")
    check = Checker(newer=_is_newer_minor(raw.get("schema"), origin))
    identity = check.section(Identity, raw.get("identity", {}), "/identity")
    for key in ("vendor", "arch"):
        if key not in identity:
            raise Fault(f"/identity/{key}", "is missing")
    if identity.get("capability_id") is not None:
        identity["capability_id"] = tuple(identity["capability_id"])
    units = check.table(raw.get("compute_units", {}), UNIT_DTYPES, "/compute_units")
    operators = check.table(raw.get("operators", {}), tuple(OPERATORS), "/operators")
    check.sources(raw.get("sources", {}))
    if not check.newer:
        for key in raw:
            if key not in _KEYS:
                raise Fault(f"/{escaped(key)}", f"is unknown; known: {', '.join(_KEYS)}")
    return Capability(
        identity=Identity(**({"torch_type": None} | identity)),
        compute_units={
            dtype: ComputeUnit(**check.section(ComputeUnit, unit, f"/compute_units/{dtype}"))
            for dtype, unit in units.items()
        },
        memory=Memory(**check.section(Memory, raw.get("memory", {}), "/memory")),
        dma=Dma(**check.section(Dma, raw.get("dma", {}), "/dma")),
        execution=Execution(**check.section(Execution, raw.get("execution", {}), "/execution")),
        numerics=Numerics(**check.section(Numerics, raw.get("numerics", {}), "/numerics")),
        kv=Kv(**check.section(Kv, raw.get("kv", {}), "/kv")),
        vllm=Vllm(**check.section(Vllm, raw.get("vllm", {}), "/vllm")),
        driver=check.driver(raw.get("driver", {})),
        advice=check.advice(raw.get("advice", [])),
        operators={name: check.entries(name, value) for name, value in operators.items()},
        match=check.match(raw.get("match", [])),
        raw=raw,
        origin=origin,
    )


_KEYS: Final = (
    "schema",
    "identity",
    "match",
    "compute_units",
    "memory",
    "dma",
    "execution",
    "numerics",
    "kv",
    "vllm",
    "driver",
    "advice",
    "operators",
    "sources",
)


def _is_newer_minor(tag: Any, origin: str) -> bool:
    """Warns of a newer minor; refuses another major, and what is no version of ours."""
    version = schema_version(tag, SCHEMA_NAME)
    if version is None:
        raise CapabilityError(
            f'{origin}: "schema" is {shown(tag)}, not "{SCHEMA_NAME}/MAJOR.MINOR"',
            hint=f"an older format converts with `vllm-adapter validate --convert {origin}`",
        )
    ours = ".".join(map(str, SCHEMA_VERSION))
    if version[0] != SCHEMA_VERSION[0]:
        raise CapabilityError(
            f"{origin} has {tag}; this release reads {SCHEMA_NAME}/{ours}",
            hint="upgrade vllm-adapter, or take the adapter's release for this one",
        )
    if version > SCHEMA_VERSION:
        warnings.warn(
            f"{origin} has {tag}, newer than {ours}: new fields are ignored",
            NewerFormat,
            stacklevel=5,
        )
    return version > SCHEMA_VERSION


def _child(value: Any, part: str) -> Any:
    """One step of a JSON pointer; KeyError or IndexError where it leads nowhere."""
    if isinstance(value, list) and part.isascii() and part.isdigit():
        return value[int(part[:9])]
    if not isinstance(value, Mapping):
        raise KeyError(part)
    return value[part.replace("~1", "/").replace("~0", "~")]


def _merge(
    into: dict[str, Any], live: Mapping[str, Any], at: str, sources: dict[str, Any]
) -> None:
    for key, value in ((str(name), item) for name, item in live.items()):
        pointer = f"{at}/{escaped(key)}"
        if isinstance(value, Mapping):
            if not isinstance(into.get(key), dict):
                into[key] = {}
            _merge(into[key], value, pointer, sources)
        else:
            into[key] = value
            sources[pointer] = {"kind": "queried", "reference": "live host facts"}


def _bad(origin: str, fault: Fault) -> CapabilityError:
    return CapabilityError(
        f"{origin}: {fault}",
        hint="`vllm-adapter validate` checks the whole file against its schema",
    )
