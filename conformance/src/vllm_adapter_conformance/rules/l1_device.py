"""L1: the device as its runtime presents it."""

from __future__ import annotations

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
from vllm_adapter_conformance.device_side.device import (
    TRIES,
    capability_twice,
    count,
    live,
    on_each,
    on_no_device,
    opened,
    waited_on,
)
from vllm_adapter_conformance.rules._drawn import content
from vllm_adapter_conformance.rules._expect import (
    descriptor,
    expect_bytes,
    expect_refused,
    index,
    torch_type,
)
from vllm_adapter_conformance.rules._streams import has_streams

SHARES: Final = (0.85, 1.1)
"""What a device shows of its declared size: drivers and error correction take some, and a GB in a
data sheet may be a GiB."""


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
    return Observation(note=bench.observe(opened))


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
    probed = bench.target.record.devices
    for found in bench.observe(count):
        if found != len(probed) or not 0 <= index(bench) < found:
            raise Failure(
                f"{len(probed)} device(s), as the probe found, among them {index(bench)}",
                str(found),
            )
    return Observation(note=f"{len(probed)} device(s)")


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
    first, again = bench.observe(capability_twice, device=index(bench))
    if first != again or isinstance(first, str):
        raise Failure("None or a pair of whole numbers, twice the same", f"{first!r}, {again!r}")
    declared = descriptor(bench).identity.capability_id
    if None not in (first, declared) and tuple(first) != tuple(declared or ()):
        raise Failure(f"the descriptor's capability id {declared}", str(first))
    return Observation(note=f"runtime {first}, descriptor {declared}")


def _live(target: Target) -> Iterator[Case | NotDeclaredCase]:
    capability = target.capability
    memory = capability.memory if capability else None
    identity = capability.identity if capability else None
    declared = {
        "memory size": ("/memory/capacity_bytes", memory and memory.capacity_bytes),
        "name": ("/identity/name", identity and identity.name),
        "arch": ("/identity/arch", identity and identity.arch),
        "alignment": ("/memory/alignment_bytes", memory and memory.alignment_bytes),
        "subgroup": (
            "/execution/subgroup_size",
            capability and capability.execution.subgroup_size,
        ),
    }
    for name, (pointer, value) in declared.items():
        if target.emulator is not None:
            reason = f"the device is {target.emulator.name}'s, no chip's"
            yield NotDeclaredCase(name, pointer, reason)
        elif value is None:
            yield NotDeclaredCase(name, pointer, "the descriptor does not say")
        else:
            yield Case(name, {"declared": value}, pointer)
    yield Case("total and size")


@rule(
    "L1.device.live",
    summary="memory size, name, arch, alignment and subgroup are the descriptor's and agree",
    why="The planner, the cases of this suite and the choice of kernels go by the descriptor. One "
    "that is another chip's, or a device that shows half its memory, makes every figure after it "
    "wrong, and a certificate names a chip that never ran. Mend the descriptor, add one for this "
    "chip, or mend what the library says of its device.",
    cases=_live,
    needs=("L1.memory.capacity",),
)
def check_live(bench: Bench, case: Case) -> Observation:
    """Compares what the device says with the descriptor; what it does not say is noted."""
    seen = bench.observe(live, device=index(bench))
    if case.id == "total and size":
        size, total = seen.get("size"), seen["total"]
        if torch_type(bench.target) == "cpu":
            size = bench.target.host.memory.total_bytes
            right = size is None or total <= size
        else:
            right = size is None or 0.9 * size <= total <= 1.01 * size
        if not right:
            raise Failure(
                f"query_memory_capacity to give the device's {size} bytes in all", f"{total} bytes"
            )
        return Observation(note=f"{total} bytes, the device says {size}")
    declared = case.params["declared"]
    if case.id == "memory size":
        low, high = (int(share * declared) for share in SHARES)
        if not low <= seen["total"] <= high:
            raise Failure(
                f"{low} to {high} bytes in all, as the descriptor says {declared}",
                f"{seen['total']} bytes",
            )
        return Observation(note=f"{seen['total']} bytes of {declared} declared")
    found = seen.get(case.id)
    if found is None:
        return Observation(note=f"the device does not tell its {case.id}; declared: {declared}")
    if case.id in ("name", "arch"):
        same = _same_name(str(found), str(declared))
    else:
        same = found == declared
    if not same:
        raise Failure(f"the {case.id} {declared}, as the descriptor says", str(found) or "nothing")
    return Observation(note=f"{found}; declared: {declared}")


def _same_name(found: str, declared: str) -> bool:
    """Whether both name one chip: drivers say `NVIDIA H200` for `H200 SXM`.

    A word with a digit that both have tells it; where one has none, any longer word does.
    """
    words, others = (set(_plain(name).split()) for name in (found, declared))
    numbers, other_numbers = (
        {word for word in known if any(c.isdigit() for c in word)} for known in (words, others)
    )
    if numbers and other_numbers:
        return bool(numbers & other_numbers)
    return bool({word for word in words & others if len(word) > 3}) or words == others != set()


def _plain(name: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _indices(target: Target) -> Iterator[Case]:
    for name in ("-1", "count", "2147483648", "255 and count"):
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
    """Allocates on it, waits for it, and asks for its memory."""
    devices = len(bench.target.record.devices)
    bad = {"count": devices, "255 and count": 256 + devices - 1}.get(case.id)
    bad = int(case.id) if bad is None else bad
    seen = bench.observe(on_no_device, own=index(bench), device=bad)
    for what in ("memory", "a wait"):
        expect_refused(seen[what], NoSuchDevice, f"{what} on device {bad}")
    expect_refused(seen["its free memory"], DeviceError, f"the free memory of device {bad}")
    if seen["its figures"] != {"gave": "(0, 0)"}:
        expect_refused(seen["its figures"], NoSuchDevice, f"what is in use on device {bad}")


def _named(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name in ("memory and copies", "a wait for its current stream"):
        if len(target.record.devices) < 2:
            yield NotDeclaredCase(name, "/devices", "there is one device only")
        elif name.startswith("a wait") and not has_streams(target):
            yield NotDeclaredCase(name, "/identity/torch_type", "the CPU has no streams")
        else:
            yield Case(name)


@rule(
    "L1.device.named",
    summary="work is done on the device that was named, not on the first one",
    why="Each rank of a parallel run names its device. A runtime that uses the first one for all "
    "fills its memory with the others' weights, and waits for work that is not its own.",
    cases=_named,
    needs=("L1.device.count", "L1.copy.round_trip"),
)
def check_named(bench: Bench, case: Case) -> None:
    """Uses every device at a time; waits for the last one's work."""
    devices, kind = len(bench.target.record.devices), torch_type(bench.target)
    if case.id != "memory and copies":
        reached = bench.observe(waited_on, device=devices - 1)
        if not all(reached):
            raise Failure(
                f"the work of device {devices - 1} to be done after a wait for that device",
                f"it was still running, in {reached.count(False)} of {TRIES} tries",
            )
        return
    contents = [content((bench.target.seed, "named", i), 5000 + i) for i in range(devices)]
    for device, seen in enumerate(bench.observe(on_each, contents=contents)):
        if (seen["device"], seen["torch"]) != (device, f"{kind}:{device}"):
            raise Failure(f"memory on {kind}:{device}", f"{seen['torch']} ({seen['device']})")
        expect_bytes(seen["back"], contents[device], f"what device {device} was given")
        if not seen["figures"]:
            raise Failure(f"memory that is held on device {device} in its figures", "none")
