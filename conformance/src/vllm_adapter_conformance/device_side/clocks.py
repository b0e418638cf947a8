"""What a call takes of the host's CPU, and calls beside copies that the judge times."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from .calls import PlainCall, ReadyCall
from .ready import make_ready

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

CALL: Final = "call"
COPY: Final = "copy"
_SLEEP_S: Final = 1e-3
"""The first sleep; each is twice as long as the last, so that asking costs next to nothing."""
_LIMIT_S: Final = 30.0
_TIMES: Final = 3


def kernel_cpu_s(device: HeldDevice, *, call: PlainCall, own_thread: bool) -> float:
    """CPU seconds from the launch of a call until the device is done; the least.

    They are of all threads of the process; with `own_thread` of the calling one alone, for an
    emulated device, whose others are the device. What it costs to allocate the results is left
    out. The end is waited for by sleeping: a runtime
    that waits by spinning would look like work.
    """
    clock = time.thread_time if own_thread else time.process_time
    ready = ReadyCall(device, call)
    shapes = [one.to("meta") for one in ready.run()]
    called = allocated = float("inf")
    for _ in range(_TIMES):  # each pair in turn, so that both get the same memory
        ready.reset()
        device.synchronize()
        begin = clock()
        empty = [torch.empty_like(one, device=device.device) for one in shapes]
        allocated = min(allocated, clock() - begin)
        del empty
        begin = clock()
        results = ready.run()
        _sleep_until_done(device)
        called = min(called, clock() - begin)
        del results
    return max(0.0, called - allocated)


def ready_small(device: HeldDevice, *, call: PlainCall) -> None:
    """Makes a call ready, and a copy of its largest tensor under `COPY`."""
    ready = ReadyCall(device, call)
    tensors = [one for one in ready.args if isinstance(one, torch.Tensor)]
    largest = max(tensors, key=lambda one: one.nbytes)
    make_ready(device, CALL, ready.run)
    make_ready(device, COPY, lambda: largest.clone())


def ready_weight(device: HeldDevice, *, facts: Mapping[str, Any]) -> None:
    """Makes one row through a weight [out, in] of a dtype ready, and a copy of that weight."""
    dtype = getattr(torch, str(facts["dtype"]))
    binding = device.bind("linear", facts)
    weight = torch.zeros(facts["out_features"], facts["in_features"], dtype=dtype)
    there = device.to_device(weight)
    x = device.to_device(torch.zeros(1, facts["in_features"], dtype=dtype))
    prepared = binding.prepare_weights(there)
    make_ready(device, CALL, lambda: binding.run(x, prepared, None, weight.shape[0]))
    make_ready(device, COPY, lambda: there.clone())


def _sleep_until_done(device: HeldDevice) -> None:
    try:
        event = torch.Event(device.device)
        event.record()
        pause = _SLEEP_S
        while not event.query() and pause < _LIMIT_S:
            time.sleep(pause)
            pause *= 2
    except (RuntimeError, NotImplementedError):  # a device without events
        device.synchronize()
