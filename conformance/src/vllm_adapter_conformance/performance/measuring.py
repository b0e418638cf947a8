"""Measures the device itself, and calls of operators beside it, by the judge's clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.device_side.speed import (
    BESIDE,
    CALL,
    MIB,
    ready_launch,
    ready_operator,
    ready_plain,
    room,
)
from vllm_adapter_conformance.performance.clock import FEW_SAMPLES, SAMPLES, SLOW_S, JudgeClock

COPIED: Final = (MIB // 4, 4 * MIB, 32 * MIB, 256 * MIB)
"""Bytes that one copy reads, and as many again that it writes."""
SIDES: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Of the square matrices that are multiplied."""
ONE_CALL_S: Final = 0.02
"""No larger product is tried after one that took so long."""
SLOW_READ: Final = 3.0
LONG_COPY_S: Final = 0.005
"""The same of copies: by then a launch is nothing to them."""
ENOUGH_S: Final = 15.0
"""No larger size is begun after so long."""
LEAST_SAMPLES: Final = 6
"""From six on the interval of a median has a confidence."""


def measure_memory(bench: Bench) -> dict[str, Any]:
    """Seconds of copies and reads at several sizes, and of a launch, with the bytes of each.

    Gives `cache_bytes` (what the device or system says, or None), `launch` (seconds) and rows
    `what, bytes, beyond, seconds`; `beyond`: its buffers are several times the caches.
    """
    there = bench.observe(room)
    with JudgeClock(bench) as clock:
        bench.observe(ready_launch)
        clock.warm(CALL)
        launch = clock.samples(CALL)
        rows = _copies(bench, clock, there["free_bytes"])
    return {"cache_bytes": there["cache_bytes"], "launch": launch, "rows": rows}


def _copies(bench: Bench, clock: JudgeClock, free: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    reads, until = True, time.monotonic() + ENOUGH_S
    for size in COPIED:
        if 2 * size > free:
            break
        copied = _plain(bench, clock, {"what": "copy", "bytes": 2 * size})
        rows.append(copied)
        least = min(copied["seconds"])
        if reads:
            rows.append(_plain(bench, clock, {"what": "read", "bytes": size}))
            # Sums that are so much slower than copies are no reads, and say nothing.
            reads = min(rows[-1]["seconds"]) < SLOW_READ * least
        if least > LONG_COPY_S and (copied["beyond"] or least > ONE_CALL_S):
            break
        if time.monotonic() > until:
            break
    return rows


def measure_products(bench: Bench, dtype: str, *, own_linear: bool) -> dict[str, Any]:
    """Seconds of products of square matrices: rows `side, flops, seconds`."""
    rows: list[dict[str, Any]] = []
    free, until = bench.observe(room)["free_bytes"], time.monotonic() + ENOUGH_S
    with JudgeClock(bench) as clock:
        for side in SIDES:
            if 4 * side * side * 4 > free:
                break
            what = {"what": "gemm", "side": side, "dtype": dtype, "own_linear": own_linear}
            taken = _plain(bench, clock, what)["seconds"]
            rows.append({"side": side, "flops": 2 * side**3, "seconds": taken})
            if min(taken) > ONE_CALL_S or time.monotonic() > until:
                break
    return {"rows": rows}


def measure_call(
    bench: Bench,
    *,
    op: str,
    facts: Mapping[str, Any],
    dims: Mapping[str, int],
    beside: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """Seconds of calls of an operator, and in turn of what bounds it, as `ready_plain` has it.

    About `seconds` are spent. Gives `taken` and `beside`, lists of equal length, `turns` and
    `beyond` as `ready_operator`, torch's version and its threads.
    """
    there = bench.observe(room)
    taken: list[float] = []
    others: list[float] = []
    with JudgeClock(bench) as clock:
        ready = bench.observe(ready_operator, op=op, facts=facts, dims=dims, beside=beside)
        numbers = clock.calls_for(CALL), clock.calls_for(BESIDE)
        until = time.monotonic() + seconds
        least = LEAST_SAMPLES
        while len(taken) < least or (len(taken) < 4 * SAMPLES and time.monotonic() < until):
            taken.append(clock.seconds(CALL, numbers[0]))
            others.append(clock.seconds(BESIDE, numbers[1]))
            least = FEW_SAMPLES if min(taken) > SLOW_S else LEAST_SAMPLES
    conditions = {name: there[name] for name in ("torch", "threads")}
    return {"taken": taken, "beside": others, **ready, **conditions}


def _plain(bench: Bench, clock: JudgeClock, what: Mapping[str, Any]) -> dict[str, Any]:
    beyond = bench.observe(ready_plain, what=dict(what))
    return {**what, "beyond": beyond, "seconds": clock.samples(CALL)}
