"""Who may run operators on a device: the adapters in use, in rank order."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

import torch

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import LIBRARY
from vllm_adapter.contract.marks import entries_of
from vllm_adapter.contract.resolve import RANKS, Provider
from vllm_adapter.discovery.adapter import one_line, place
from vllm_adapter.engine.ops import c_library as library_kernels
from vllm_adapter.engine.ops.spec import Fn
from vllm_adapter.engine.registries import on_reset
from vllm_adapter.errors import AdapterError


class Providers:
    """The adapters in use by device. Bindings ask it when a layer is built, never per token."""

    def __init__(self) -> None:
        self._by_device: dict[str, dict[tuple[str, str | None], Provider]] = {}
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
        marked = entries_of(name, extra)
        self.add(Provider.of(name, capability, kernels_only=kernels_only, extra=marked), device)

    def add(self, provider: Provider, device: torch.device | str) -> None:
        """As `use`, for what was read already."""
        known = self._by_device.setdefault(device_key(device), {})
        key = provider.name, provider.beside
        if known.get(key) != provider:
            known[key] = provider
            self.generation += 1

    def clear(self) -> None:
        """Forgets every adapter."""
        self._by_device.clear()
        self.generation += 1

    def serving(self, device: torch.device | str) -> Sequence[Provider]:
        """The adapters in use on a device, best rank first, then in the order of their opening."""
        known = self._by_device.get(device_key(device), {}).values()
        order = tuple(RANKS)
        return sorted(known, key=lambda provider: order.index(provider.rank))


def device_key(device: torch.device | str) -> str:
    """The device with its index spelt out: "cuda" is "cuda:0"; the CPU has none."""
    found = torch.device(device)
    if found.type == "cpu":
        return "cpu"
    return f"{found.type}:{found.index or 0}"


def load(dotted: str, who: str) -> Any:
    """The function at `module:name`, or the adapter's library's implementation at `library:name`.

    Raises:
        AdapterError: it cannot be imported, or is no function; names the adapter, the line and
            the original fault.
    """
    if dotted.startswith(LIBRARY):
        return library_kernels.kernel(dotted, who)
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
    if not callable(found):
        raise AdapterError(
            f"adapter {who} names {dotted}, which is no function but of type "
            f"{type(found).__name__}",
            hint=f"`vllm-adapter validate {who}` checks every path of its descriptors",
        )
    return found


PROVIDERS: Final = Providers()
"""The process's own: the default overloads ask it."""
on_reset(PROVIDERS.clear)
