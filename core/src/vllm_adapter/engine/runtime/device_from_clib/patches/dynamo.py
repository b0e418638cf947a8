"""torch.compile asks for an interface of the device.

# upstream: pytorch@2.13 torch/_dynamo/device_interface.py:635 raises where there is none
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend

_PACKAGE: Final = "vllm_adapter.engine.runtime.device_from_clib"


def apply(backend: Backend, module: ModuleType) -> None:
    """Registers it. Inductor has no code generator for the device: a compiled model needs a
    backend of its own, a callable."""
    from torch._dynamo import trace_rules
    from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

    # Guards ask torch.accelerator, which is ours, for the stream while frames are being compiled:
    # as dynamo leaves torch's own function alone, it leaves this package.
    # upstream: pytorch@2.13 torch/_dynamo/utils.py:5503, guards.py:1668
    trace_rules.add(_PACKAGE)
    streams = backend.streams

    def exchange(index: int) -> int:
        before = streams.current
        if index >= 0:
            module.set_device(index)
        return before

    def set_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        found = next(
            s for s in streams.live if (s.device_id, s.handle) == (device_index, stream_id)
        )
        streams.set(found)

    names = "set_device current_device device_count is_available stream current_stream set_stream"
    own: dict[str, Any] = {
        name: staticmethod(getattr(module, name))
        for name in [*names.split(), "synchronize", "is_bf16_supported", "memory_allocated"]
    }
    own |= {
        "device": module.device,
        "Event": module.Event,
        "Stream": module.Stream,
        "exchange_device": staticmethod(exchange),
        "maybe_exchange_device": staticmethod(exchange),
        "_set_stream_by_id": staticmethod(set_by_id),
        "get_raw_stream": staticmethod(streams.handle),
        "get_compute_capability": staticmethod(module.get_device_capability),
        "get_device_properties": staticmethod(module.get_device_properties),
    }
    interface = type("ClibInterface", (DeviceInterface,), own)
    register_interface_for_device(backend.name, interface)
    for index in range(backend.library.device_count()):
        register_interface_for_device(f"{backend.name}:{index}", interface)
