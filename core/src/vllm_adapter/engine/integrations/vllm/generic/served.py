"""The device that this process serves vLLM with: the adapter's, made known to torch."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import torch

from vllm_adapter.broker.selection_file import shared_selection
from vllm_adapter.contract.capability import Capability
from vllm_adapter.discovery.adapter import Adapter
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.engine.device import open_record
from vllm_adapter.engine.registries import on_reset
from vllm_adapter.engine.runtime import RuntimeAdapter
from vllm_adapter.engine.runtime.c_library import CLibraryRuntime
from vllm_adapter.errors import AdapterError
from vllm_adapter.settings import Settings

_ORDER: Final = ("bfloat16", "float16", "float32")
"""Dtypes of weights, by what vLLM takes first where a model leaves it open."""
_HOST: Final = "cpu"


@dataclass(frozen=True)
class ServedDevice:
    """One adapter's devices, of one kind. `capability` and `name` are those of the first."""

    adapter: Adapter
    record: AdapterRecord
    torch_type: str
    name: str
    capability: Capability
    runtime: RuntimeAdapter

    @property
    def module(self) -> ModuleType:
        """`torch.<type>`."""
        found: ModuleType = getattr(torch, self.torch_type)
        return found

    @property
    def is_host(self) -> bool:
        """Whether the device is the CPU, which stands in for one."""
        return self.torch_type == _HOST

    @property
    def is_of_library(self) -> bool:
        """Whether a C library is behind it: torch has no engine, graph or pinned memory there."""
        return isinstance(self.runtime, CLibraryRuntime)

    @property
    def dist_backend(self) -> str:
        """The backend of torch.distributed; gloo where the descriptor names none."""
        return self.capability.vllm.dist_backend or "gloo"

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Dtypes that a model may have, the preferred first: those with units in the descriptor.

        A descriptor that says nothing of units refuses none.
        """
        units = self.capability.compute_units
        known = [name for name in _ORDER if name in units]
        return [getattr(torch, name) for name in known or _ORDER]

    def device(self, index: int) -> torch.device:
        """The torch device of an index; the CPU has none."""
        return torch.device(_HOST) if self.is_host else torch.device(self.torch_type, index)

    def asked(self, hook: str, **more: Any) -> str | None:
        """What the adapter gives as the dotted path of a class or function, if it does."""
        found: str | None = self.adapter.call(hook, device=str(self.device(0)), **more)
        return found


@functools.cache
def served() -> ServedDevice:
    """What the broker has chosen for this tree of processes, opened.

    Raises:
        AdapterError: nothing is chosen, or its device cannot be opened.
        CapabilityError: its descriptor cannot be used.
    """
    settings = Settings.from_environ()
    selection, _ = shared_selection(settings)
    record = selection.record
    if record is None or selection.torch_type is None:
        raise AdapterError(
            f"no adapter serves vLLM here: {selection.reason}",
            hint="`vllm-adapter doctor --vllm` shows how the choice was made",
        )
    opened = open_record(record, 0, settings)
    return ServedDevice(
        opened.adapter,
        record,
        selection.torch_type,
        opened.record.name,
        opened.capability,
        opened.runtime,
    )


on_reset(served.cache_clear)
