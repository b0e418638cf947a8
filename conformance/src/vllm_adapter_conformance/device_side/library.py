"""A C library's operators, and what torch has registered for ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vllm_adapter.engine.ops import c_library, library
from vllm_adapter.errors import VllmAdapterError

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice
    from vllm_adapter.engine.ops.c_library import LibraryOperators


def offers(device: HeldDevice, op: str) -> dict[str, Any]:
    """Whether the library has a function, in which dtypes, and the library's name."""
    served = _served(device)
    has = served.library.has(op)
    dtypes = list(served.dtypes(op, device.index)) if has else []
    return {"name": served.library.path.name, "has": has, "dtypes": dtypes}


def kernel(device: HeldDevice, op: str) -> int:
    """The library's function of an operator, for `HeldDevice.do_run`."""
    return device.keep(_served(device).kernel(op))


def foreign(device: HeldDevice, cases: Sequence[tuple[str, Any]]) -> list[str]:
    """What somebody else than core has registered, once the device is open and cases bound."""
    # What is found makes opening and binding fail, too: here it is told by itself.
    with suppress(VllmAdapterError):
        _ = device.opened
    for op, facts in cases:
        with suppress(VllmAdapterError):
            device.bind(op, facts)
    return [str(found) for found in library.foreign()]


def _served(device: HeldDevice) -> LibraryOperators:
    _ = device.opened
    return c_library.served(device.opened.adapter.record.name)
