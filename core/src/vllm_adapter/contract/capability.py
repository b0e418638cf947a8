"""A capability descriptor: what one arch can do, with the source of each figure.

The types here are the file's format, from which its JSON Schema is made. Attributes are the
file's own names: `cap.memory.bandwidth_gb_s` is a number or None, and
`cap.source("/memory/bandwidth_gb_s")` says where it is from. Unknown is None, never a guess.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from vllm_adapter.contract.entries import Operators, finished
from vllm_adapter.contract.manifest import Condition
from vllm_adapter.contract.reading import OURS, Fault, Text, escaped, read, tag
from vllm_adapter.contract.sections import (
    Dma,
    DriverRequirement,
    Execution,
    Identity,
    Kv,
    Memory,
    Numerics,
    Source,
    Units,
    Vllm,
)
from vllm_adapter.errors import CapabilityError, NewerFormat
from vllm_adapter.files import PACKAGE_BYTES, read_json, schema_version, shown

SCHEMA_NAME: Final = "vllm-adapter/capability"
SCHEMA_VERSION: Final = (1, 0)


class Capability(Struct, frozen=True):
    """One descriptor. `raw` is the JSON it was read from, `origin` the file."""

    identity: Identity
    """Which device this is."""
    match: tuple[Condition, ...] = ()
    """Which of the adapter's devices this file is for, in the manifest's vocabulary. Any one entry
    suffices."""
    compute_units: Units = {}
    """Peak rates by dtype."""
    memory: Memory = Memory()
    """Device memory."""
    dma: Dma = Dma()
    """Copy engines."""
    execution: Execution = Execution()
    """How kernels run."""
    numerics: Numerics = Numerics()
    """Number formats whose meaning differs between chips."""
    kv: Kv = Kv()
    """Paged KV cache."""
    vllm: Vllm = Vllm()
    """Names that vLLM asks a platform for."""
    driver: DriverRequirement = {}
    """Driver versions, as the driver writes them."""
    advice: tuple[Text, ...] = ()
    """What a person who plans for this device should know, one sentence each."""
    operators: Operators = {}
    """The one declaration of coverage. An operator that is not named is not declared."""
    sources: Mapping[Annotated[str, Meta(pattern="^/")], Source] = {}
    """Sources of single figures by their JSON pointer; each wins over its section's source."""
    schema: Annotated[str, tag("capability")] = f"{SCHEMA_NAME}/1.0"
    raw: Annotated[Mapping[str, Any], OURS] = {}
    origin: Annotated[str, OURS] = ""

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
    newer = _is_newer_minor(raw.get("schema"), origin)
    found = read(raw, Capability, newer=newer)
    written = raw.get("operators", {})
    return replace(
        found,
        compute_units={d: unit for d, unit in found.compute_units.items() if d != "source"},
        operators={
            name: finished(f"/operators/{name}", entries, written[name])
            for name, entries in found.operators.items()
            if name != "source"
        },
        raw=raw,
        origin=origin,
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
