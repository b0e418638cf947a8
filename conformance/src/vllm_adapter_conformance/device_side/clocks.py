"""What a call takes: CPU time of the host, and wall time of the fastest of many.

The fastest, since a busy machine only ever adds to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.catalog import SPECS

from .calls import ReadyCall, step_of

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

_SLEEP_S: Final = 1e-3
"""The first sleep; each is twice as long as the last, so that asking costs next to nothing."""
_LIMIT_S: Final = 30.0
_TIMES: Final = 3


def kernel_cpu_s(device: HeldDevice, *, call: Any, own_thread: bool) -> float:
    """CPU seconds from the launch of a call until the device is done; the least.

    They are of all threads of the process; with `own_thread` of the calling one alone, for an
    emulated device, whose others are the device. What it costs to allocate the results is left
    out. The end is waited for by sleeping: a runtime
    that waits by spinning would look like work.
    """
    clock = time.thread_time if own_thread else time.process_time
    ready = ReadyCall.on(device, call)
    shapes = [one.to("meta") for one in ready.run()]
    called = allocated = float("inf")
    for _ in range(_TIMES):  # each pair in turn, so that both get the same memory
        ready.reset()
        _wait(device)
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


def host_cpu_s(call: Any) -> float:
    """CPU seconds of core's portable code for the same call on the host, in float32 and by one
    thread; the least."""
    spec = SPECS[call["op"]]
    args = [
        one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for one in call["args"]
    ]
    if spec.operator.planned:
        args[-1] = generic.plan_paged_attention(step_of(call, "cpu"), None)
    least, threads = float("inf"), torch.get_num_threads()
    torch.set_num_threads(1)  # several would count their waiting for each other
    try:
        for _ in range(_TIMES):
            begin = time.process_time()
            spec.generic(*args)
            least = min(least, time.process_time() - begin)
    finally:
        torch.set_num_threads(threads)
    return least


def fastest_s(device: HeldDevice, *, call: Any, repeats: int) -> tuple[float, float]:
    """Seconds of the fastest call, and of the fastest copy of its largest tensor."""
    ready = ReadyCall.on(device, call)
    tensors = [one for one in ready.args if isinstance(one, torch.Tensor)]
    largest = max(tensors, key=lambda one: one.nbytes)
    return (
        _fastest(device, ready.run, repeats),
        _fastest(device, lambda: largest.clone(), repeats),
    )


def weight_times_s(device: HeldDevice, *, facts: Any, repeats: int) -> tuple[float, float]:
    """Seconds of one row through a weight [out, in] of a dtype, and of a copy of that weight."""
    dtype = getattr(torch, str(facts["dtype"]))
    binding = device.bind("linear", facts)
    weight = torch.zeros(facts["out_features"], facts["in_features"], dtype=dtype)
    there = device.to_device(weight)
    x = device.to_device(torch.zeros(1, facts["in_features"], dtype=dtype))
    prepared = binding.prepare_weights(there)
    return (
        _fastest(device, lambda: binding.run(x, prepared, None, weight.shape[0]), repeats),
        _fastest(device, lambda: there.clone(), repeats),
    )


def _fastest(device: HeldDevice, run: Callable[[], Any], repeats: int) -> float:
    least = float("inf")
    for _ in range(repeats):
        _wait(device)
        begin = time.perf_counter()
        run()
        _wait(device)
        least = min(least, time.perf_counter() - begin)
    return least


def _wait(device: HeldDevice) -> None:
    device.runtime.synchronize_stream(device.opened.record.index)


def _sleep_until_done(device: HeldDevice) -> None:
    try:
        event = torch.Event(device.device)
        event.record()
        pause = _SLEEP_S
        while not event.query() and pause < _LIMIT_S:
            time.sleep(pause)
            pause *= 2
    except (RuntimeError, NotImplementedError):  # a device without events
        _wait(device)
