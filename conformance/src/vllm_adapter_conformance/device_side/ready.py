"""Calls that are made ready once, and run as often as whoever asks says: who asks has the clock.

A clock of this process would be the adapter's as much as ours.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

Call = Callable[[], Any]
_READY: Final[weakref.WeakKeyDictionary[HeldDevice, dict[str, Call]]] = weakref.WeakKeyDictionary()


def make_ready(device: HeldDevice, name: str, call: Call) -> None:
    """Keeps a call under a name, in place of an earlier one, until `forget_ready`."""
    _READY.setdefault(device, {})[name] = call


def run_ready(device: HeldDevice, *, name: str, times: int) -> None:
    """Makes a call so many times, and waits until the device has done them."""
    call = _READY[device][name]
    for _ in range(times):
        call()
    device.runtime.synchronize_stream(device.index)


def forget_ready(device: HeldDevice) -> None:
    """Lets all of them go, with what they hold."""
    _READY.pop(device, None)


def in_turn(calls: Sequence[Call]) -> Call:
    """A call that makes each of several in turn, so that none finds its data in a cache."""
    at = 0

    def call() -> Any:
        nonlocal at
        at = (at + 1) % len(calls)
        return calls[at]()

    return call
