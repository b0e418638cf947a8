"""L1: the device as its runtime presents it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from vllm_adapter.errors import DeviceError, NoSuchDevice
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import (
    Case,
    Failure,
    NotDeclaredCase,
    Observation,
    once,
    rule,
)
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules._memory import (
    allocated,
    expect_bytes,
    expect_error,
    index,
    pattern,
    read,
    write,
)

THREADS: Final = 2
ROUNDS: Final = 25


@rule(
    "L1.device.open",
    summary="the device opens: its torch module, its runtime, its operators",
    why="Everything else needs it. The message has the adapter's own error and its place; "
    "`vllm-adapter list --probe` asks the same questions one by one.",
    cases=once,
    seconds=180.0,
)
def check_open(bench: Bench, case: Case) -> Observation:
    """Opens it; the time includes the first import of torch."""
    return Observation(note=f"{type(bench.runtime).__name__} on {bench.device}")


@rule(
    "L1.device.count",
    summary="the runtime counts at least one device, and the one that was probed",
    why="Ranks of a parallel run are placed by this count. A count of zero on a working device "
    "makes vLLM refuse it; one that is too high sends a rank to a device that is not there.",
    cases=once,
    needs=("L1.device.open",),
)
def check_count(bench: Bench, case: Case) -> Observation:
    """Compares the count with the probe's devices."""
    count, probed = bench.runtime.get_device_count(), bench.target.record.devices
    if count != len(probed) or not 0 <= index(bench) < count:
        raise Failure(
            f"{len(probed)} device(s), as the probe found, among them {index(bench)}", str(count)
        )
    return Observation(note=f"{count} device(s)")


@rule(
    "L1.device.capability",
    summary="the capability id is stable, and is the descriptor's",
    why="Kernels are chosen by it. It is a pair of numbers or None, and where the descriptor "
    "names one too, both must agree: else cases are tested for another arch than the one that "
    "runs. Mend the descriptor, or return None where the vendor has no such number.",
    cases=once,
    needs=("L1.device.open",),
)
def check_capability(bench: Bench, case: Case) -> Observation:
    """Asks twice, and compares with the descriptor."""
    first, again = (bench.runtime.get_device_capability(index(bench)) for _ in range(2))
    pair = isinstance(first, tuple) and len(first) == 2 and all(type(n) is int for n in first)
    if first != again or not (first is None or pair):
        raise Failure("None or a pair of whole numbers, twice the same", f"{first!r}, {again!r}")
    declared = bench.opened.capability.identity.capability_id
    if None not in (first, declared) and first != declared:
        raise Failure(f"the descriptor's capability id {declared}", str(first))
    return Observation(note=f"runtime {first}, descriptor {declared}")


def _indices(target: Target) -> Iterator[Case]:
    for name in ("-1", "count", "2147483648"):
        yield Case(name)


@rule(
    "L1.device.index",
    summary="an index that is no device raises NoSuchDevice",
    why="A wrong local rank must end in that sentence. Where the index wraps around or is cut "
    "off, two ranks share a device and run out of memory much later.",
    cases=_indices,
    needs=("L1.device.count",),
)
def check_index(bench: Bench, case: Case) -> None:
    """Allocates on it, and waits for it."""
    bad = bench.runtime.get_device_count() if case.id == "count" else int(case.id)
    runtime = bench.runtime
    expect_error(NoSuchDevice, f"memory on device {bad}", lambda: runtime.allocate_memory(64, bad))
    expect_error(
        NoSuchDevice, f"waiting for device {bad}", lambda: runtime.synchronize_stream(bad)
    )


@rule(
    "L1.memory.capacity",
    summary="the reported memory is right: total above zero, free within it, unified as declared",
    why="The KV cache is sized by these figures, on the machine and not in the datasheet. A free "
    "figure above the total overcommits; a wrong `unified` counts the host's memory twice.",
    cases=once,
    needs=("L1.device.open",),
)
def check_capacity(bench: Bench, case: Case) -> Observation:
    """Asks for bytes in all and free."""
    try:
        found = bench.runtime.query_memory_capacity(index(bench))
    except DeviceError as error:
        raise Failure("query_memory_capacity to answer", error.message) from error
    if found.total_bytes <= 0 or not 0 <= found.free_bytes <= found.total_bytes:
        raise Failure(
            "0 < total and 0 <= free <= total",
            f"total {found.total_bytes}, free {found.free_bytes} bytes",
        )
    declared = bench.opened.capability.memory.unified
    if declared is not None and found.unified != declared:
        raise Failure(f"unified to be {declared}, as the descriptor says", str(found.unified))
    return Observation(note=f"{found.free_bytes} of {found.total_bytes} bytes free")


def _threads(target: Target) -> Iterator[Case | NotDeclaredCase]:
    yield Case(f"{THREADS} threads")


@rule(
    "L1.device.threads",
    summary="two threads may allocate, copy and free at a time",
    why="vLLM loads weights and serves requests from several threads. A runtime that keeps the "
    "current device or a staging buffer in one place for all of them mixes their data.",
    cases=_threads,
    needs=("L1.copy.round_trip", "L1.memory.allocate"),
)
def check_threads(bench: Bench, case: Case) -> None:
    """Each thread writes and reads its own memory many times."""
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def work(number: int) -> None:
        try:
            start.wait()
            for turn in range(ROUNDS):
                data = pattern(bench, 4097 + turn, f"thread {number}")
                with allocated(bench, len(data)) as memory:
                    write(bench, memory, data)
                    expect_bytes(read(bench, memory), data, f"thread {number}, turn {turn}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
