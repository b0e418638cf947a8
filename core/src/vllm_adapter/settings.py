"""Every VA_* variable, read once and checked.

A value we cannot read is a SettingError; a VA_* name we do not know is kept in
`Settings.unknown`, so that the command line can warn of a typing error.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from vllm_adapter.errors import SettingError

PREFIX: Final = "VA_"
VARIABLES: Final[Mapping[str, str]] = {
    "VA_ADAPTERS": "which adapters may be used: `cuda,cpu` allows these, `-rocm` denies one",
    "VA_CAPABILITY": "a descriptor of the device's arch that replaces the adapter's own",
    "VA_COUNTERS": "a folder in which each vLLM process counts the calls of our operators",
    "VA_FALLBACK": "error | warn | allow: what happens where the device has no implementation",
    "VA_LIBRARY": "a C library that replaces the adapter's own",
    "VA_OPS": "overrides by operator: `rms_norm:torch,linear:acme`",
    "VA_REQUIRE_DEVICE": "refuse to start on any other torch device type",
    "VA_SELECTION": "the file in which the first process writes its choice for its children",
    "VA_SHAPE": "native | generic: what serves under vLLM, ours before its own platform or alone",
}

SHAPES: Final = ("native", "generic")


class Fallback(Enum):
    """What happens where no implementation of the device accepts a case."""

    ERROR = "error"
    """Refuse."""
    WARN = "warn"
    """Use core's portable torch code and log one sentence."""
    ALLOW = "allow"
    """Use core's portable torch code."""


@dataclass(frozen=True, slots=True)
class AdapterFilter:
    """`VA_ADAPTERS`. With any allowed name, all others are blocked; a denied name always is."""

    allowed: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    order: tuple[str, ...] = ()
    """The allowed names as they were written: the first is preferred where all else is equal."""

    def blocks(self, name: str) -> str | None:
        """The reason why `name` is blocked, or None."""
        if name in self.denied:
            return f"VA_ADAPTERS denies it (-{name})"
        if self.allowed and name not in self.allowed:
            return f"VA_ADAPTERS allows only {', '.join(sorted(self.allowed))}"
        return None


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment, parsed: build it with `from_environ`. `adapter` no variable sets."""

    adapters: AdapterFilter = AdapterFilter()
    adapter: str | None = None
    """The adapter that was named in a call: of those that own the device, it alone is asked."""
    capability: Path | None = None
    counters: Path | None = None
    fallback: Fallback = Fallback.WARN
    library: Path | None = None
    ops: Mapping[str, str] = field(default_factory=dict)
    require_device: str | None = None
    selection: Path | None = None
    shape: str | None = None
    unknown: tuple[str, ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads `environ` (default `os.environ`).

        Raises:
            SettingError: a value that cannot be read, with the values that can.
        """
        env = os.environ if environ is None else environ
        value = {name: env.get(name, "").strip() for name in VARIABLES}
        path = {
            key: Path(text) if (text := value[key]) else None
            for key in ("VA_CAPABILITY", "VA_COUNTERS", "VA_LIBRARY", "VA_SELECTION")
        }
        return cls(
            adapters=_adapter_filter(value["VA_ADAPTERS"]),
            capability=path["VA_CAPABILITY"],
            counters=path["VA_COUNTERS"],
            fallback=_fallback(value["VA_FALLBACK"]),
            library=path["VA_LIBRARY"],
            ops=_overrides(value["VA_OPS"]),
            require_device=value["VA_REQUIRE_DEVICE"] or None,
            selection=path["VA_SELECTION"],
            shape=_shape(value["VA_SHAPE"]),
            unknown=tuple(sorted(k for k in env if k.startswith(PREFIX) and k not in VARIABLES)),
        )

    def warnings(self) -> list[str]:
        """One sentence for each VA_* name that means nothing to us."""
        found = []
        for name in self.unknown:
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            found.append(f"the variable {name} is not one of ours{meant}")
        return found


def _adapter_filter(text: str) -> AdapterFilter:
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if not name.removeprefix("-").isidentifier():
            raise SettingError(
                f"VA_ADAPTERS holds {name!r}, which is no adapter name",
                hint="write names separated by commas, such as VA_ADAPTERS=cuda,-rocm",
            )
    allowed = tuple(dict.fromkeys(n for n in names if not n.startswith("-")))
    return AdapterFilter(
        allowed=frozenset(allowed),
        denied=frozenset(n[1:] for n in names if n.startswith("-")),
        order=allowed,
    )


def _fallback(text: str) -> Fallback:
    try:
        return Fallback(text.lower()) if text else Fallback.WARN
    except ValueError:
        raise SettingError(
            f"VA_FALLBACK is {text!r}", hint="use one of: error, warn, allow"
        ) from None


def _shape(text: str) -> str | None:
    if text.lower() not in ("", *SHAPES):
        raise SettingError(f"VA_SHAPE is {text!r}", hint=f"use one of: {', '.join(SHAPES)}")
    return text.lower() or None


def _overrides(text: str) -> Mapping[str, str]:
    overrides: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        op, colon, provider = part.partition(":")
        if not (colon and op.strip() and provider.strip()):
            raise SettingError(
                f"VA_OPS holds {part!r}",
                hint="write OPERATOR:PROVIDER pairs, such as VA_OPS=rms_norm:torch",
            )
        overrides[op.strip()] = provider.strip()
    return overrides
