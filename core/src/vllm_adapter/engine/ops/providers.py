"""Who may run operators on a device: the adapters in use, in rank order."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from vllm_adapter.adapter import one_line, place
from vllm_adapter.capability import Capability
from vllm_adapter.decision import LIBRARY, OperatorEntry
from vllm_adapter.engine.ops import clib
from vllm_adapter.engine.ops.implementation import entry_of
from vllm_adapter.engine.ops.spec import Fn
from vllm_adapter.errors import AdapterError, SettingError
from vllm_adapter.operators import DTYPES, OPERATORS, operator
from vllm_adapter.settings import Settings

GENERIC: Final = "torch"
"""The provider name of core's own portable code."""
RANKS: Final = ("override", "device", "kernels", "generic")


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One entry of one provider, for one operator. `composed_of`: it runs that one's entry."""

    provider: str
    rank: str
    entry: OperatorEntry
    composed_of: str | None = None


@dataclass(frozen=True)
class Provider:
    """An adapter whose implementations may be bound on a device."""

    name: str
    rank: str
    entries: Mapping[str, Sequence[OperatorEntry]]


class Providers:
    """The adapters in use by device. Bindings ask it when a layer is built, never per token."""

    def __init__(self) -> None:
        self._by_device: dict[str, dict[str, Provider]] = {}
        self.generation = 0
        """Grows with each change: what was bound before is bound anew."""

    def use(
        self,
        name: str,
        capability: Capability,
        device: torch.device | str,
        *,
        kernels_only: bool = False,
        extra: Sequence[Fn] = (),
    ) -> None:
        """Lets an adapter's descriptor (and `@implementation` functions) serve a device.

        Using a name again replaces what it declared, at its place. Adapters of other names stay
        beside it and are not touched.
        """
        entries: dict[str, list[OperatorEntry]] = {
            op: list(declared) for op, declared in capability.operators.items()
        }
        for function in extra:
            marked = entry_of(function)
            if marked is None:
                raise AdapterError(
                    f"{name} gives {function!r}, which is not marked by @implementation",
                    hint="decorate it, or name it in the descriptor",
                )
            op, entry = marked
            if all(known.run != entry.run for known in entries.get(op, ())):
                entries.setdefault(op, []).append(entry)
        provider = Provider(name, "kernels" if kernels_only else "device", entries)
        known = self._by_device.setdefault(device_key(device), {})
        if known.get(name) != provider:
            known[name] = provider
            self.generation += 1

    def clear(self) -> None:
        """Forgets every adapter; for tests."""
        self._by_device.clear()
        self.generation += 1

    def serving(self, device: torch.device | str) -> Sequence[Provider]:
        """The adapters in use on a device, best rank first, then in the order of their opening."""
        known = self._by_device.get(device_key(device), {}).values()
        return sorted(known, key=lambda provider: RANKS.index(provider.rank))

    def names(self, device: str) -> list[str]:
        """Providers that may be named in VA_OPS for a device."""
        return [p.name for p in self.serving(device)] + [GENERIC]

    def candidates(self, op: str, device: str, settings: Settings) -> list[Candidate]:
        """Every candidate for an operator, best first; generic is always the last one.

        Where `settings.adapter` names the device's adapter, others that own the device are none,
        unless VA_OPS names them: who opened what before must not matter.

        Raises:
            SettingError: VA_OPS names an operator or provider that there is not.
        """
        chosen = self._override(op, device, settings)
        composed = OPERATORS[op].composed_of
        found = []
        for provider in self.serving(device):
            rank = "override" if provider.name == chosen else provider.rank
            if rank == "device" and settings.adapter not in (None, provider.name):
                continue
            found += [Candidate(provider.name, rank, e) for e in provider.entries.get(op, ())]
            if composed:
                parts = provider.entries.get(composed, ())
                found += [Candidate(provider.name, rank, e, composed) for e in parts]
        rank = "override" if chosen == GENERIC else "generic"
        found.append(Candidate(GENERIC, rank, generic_entry(op)))
        return sorted(found, key=lambda candidate: RANKS.index(candidate.rank))

    def _override(self, op: str, device: str, settings: Settings) -> str | None:
        for name, provider in settings.ops.items():
            operator(name)
            if provider not in self.names(device) and name == op:
                raise SettingError(
                    f"VA_OPS={name}:{provider} names a provider that does not serve {device}",
                    hint=f"use one of: {', '.join(self.names(device))}",
                )
        return settings.ops.get(op)


def device_key(device: torch.device | str) -> str:
    """The device with its index spelt out: "cuda" is "cuda:0"; the CPU has none."""
    found = torch.device(device)
    if found.type == "cpu":
        return "cpu"
    return f"{found.type}:{found.index or 0}"


def generic_entry(op: str) -> OperatorEntry:
    """What core's portable code declares of itself."""
    return _GENERIC_ENTRIES[op]


_BOTH: Final = (False, True)
_ANY: Final = {"min": 0}
_LIMITS: Final[Mapping[str, Mapping[str, Any]]] = {
    "linear": {"bias": _BOTH},
    "layer_norm": {"bias": _BOTH},
    "gelu": {"tanh": _BOTH},
    "gelu_and_mul": {"tanh": _BOTH},
    "rotary_embedding": {"interleaved": _BOTH, "partial": _BOTH},
    "paged_attention": {"window": _ANY, "soft_cap": _ANY},
    "attention": {"causal": _BOTH, "window": _ANY, "soft_cap": _ANY},
}
"""The features that core's portable code serves."""
_GENERIC_ENTRIES: Final = {
    op: OperatorEntry(
        support="full",
        pointer=f"torch:/operators/{op}",
        dtypes=DTYPES,
        limits=_LIMITS.get(op, {}),
        form="torch",
        run=f"vllm_adapter.engine.ops.generic:{op}",
    )
    for op in OPERATORS
}


def resolve(dotted: str, who: str) -> Any:
    """The object at `module:name`, or the adapter's library's implementation at `library:name`.

    Raises:
        AdapterError: it cannot be imported; names the adapter, the line and the original fault.
    """
    if dotted.startswith(LIBRARY):
        return clib.kernel(dotted, who)
    module, _, path = dotted.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a vendor's module may raise anything
        raise AdapterError(
            f"adapter {who} names {dotted}, which cannot be imported: {type(error).__name__}: "
            f"{one_line(error)}{place(error)}",
            hint=f"`vllm-adapter validate {who}` checks every path of its descriptors",
        ) from error
    return found


PROVIDERS: Final = Providers()
"""The process's own: the default overloads ask it."""
