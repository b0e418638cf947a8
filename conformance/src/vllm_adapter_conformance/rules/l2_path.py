"""L2: a kernel does its work on the device: nothing crosses the link, and the host stays idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import Facts, base_cases, declared, large_facts

if TYPE_CHECKING:
    import torch

SIZES: Final[Mapping[str, Any]] = {
    "rows": (1024,),
    "tokens": 1024,
    "batch": 4,
    "phase": "prefill",
    "context": 512,
    "queries": 512,
    "vocabulary": 4096,
}
"""Of calls whose tensors are larger by far than their lengths, ids and tables."""
MANY: Final[Mapping[str, Any]] = {**SIZES, "rows": (4096,), "tokens": 4096}
"""Of calls that cost the host some ten milliseconds."""
SMALL: Final[Mapping[str, Any]] = {
    "rows": (1,),
    "tokens": 1,
    "batch": 1,
    "phase": "decode",
    "context": "short",
    "queries": 1,
}
"""Of calls that are done at once."""
SPARE_BYTES: Final = 4096
MOVES: Final = 10
"""A small call may take as long as so many plain moves of its tensors, and `LAUNCH_S` more."""
LAUNCH_S: Final = 1e-3
BATCHES, BATCH = 10, 5
"""Calls that are timed: the fastest batch, so that the way to the device's process is shared."""
PRODUCTS: Final = ("linear", "paged_attention", "attention")
"""Operators with so much work for each element that an emulator takes long."""
HOST_SHARE: Final = 0.5
HOST_S: Final = 5e-3
_HOST: Final = "the device is the host's CPU"


def _one_each(target: Target) -> Iterator[tuple[str, Facts, str | None]]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op):
            yield f"{op}-{base.id}", base.facts, base.pointer


def on_cpu(target: Target) -> bool:
    """Whether torch's device is the host's CPU."""
    return target.device is not None and target.device.torch.partition(":")[0] == "cpu"


def _link(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for id, facts, pointer in _one_each(target):
        if on_cpu(target):
            yield NotDeclaredCase(id, "/identity/torch_type", _HOST)
        else:
            yield Case(id, {"op": id.partition("-")[0], "facts": facts}, pointer)


@rule(
    "L2.path.link",
    summary="no tensor crosses to the host, or from it, while a kernel runs",
    why="A kernel that copies its arguments to the host, computes there and copies the result "
    "back is right in every case of this level, and makes the device useless: the link is a "
    "hundred times slower than its memory, and the host waits. Bytes are counted at the C "
    "library's table and where torch dispatches; lengths, ids and tables may be read on the "
    "host, the rest may not. Do that work on the device, or do not declare the operator.",
    cases=_link,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check_link(bench: Bench, case: Case) -> Observation:
    """Counts the bytes of one large call."""
    from vllm_adapter_conformance.device_side.traffic import traffic_of
    from vllm_adapter_conformance.ops.calls import plain_call, sized

    op, facts = case.params["op"], dict(case.params["facts"])
    call = plain_call(op, facts, sized(op, facts, SIZES, f"{bench.target.seed}/link"))
    small, large = _bytes(call)
    allowed = 2 * small + SPARE_BYTES
    seen = bench.observe(traffic_of, call=call)
    for way, size in seen.items():
        if size > allowed:
            raise Failure(
                f"{op}: at most {allowed} bytes {way.replace('_', ' the ')} in a call whose "
                f"tensors have {large}",
                f"{size}",
                detail=f"{case.id}; seed {bench.target.seed}",
            )
    return Observation(note=f"{seen['to_host']} bytes to the host, {seen['to_device']} from it")


def _bytes(call: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of a call's whole numbers, and of its other tensors."""
    tensors: list[torch.Tensor] = [one for one in call["args"] if hasattr(one, "nbytes")]
    small = sum(one.nbytes for one in tensors if not one.is_floating_point())
    return small, sum(one.nbytes for one in tensors if one.is_floating_point())


def _host_time(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op)[:1]:
            if on_cpu(target):
                yield NotDeclaredCase(op, "/identity/torch_type", _HOST)
            else:
                slow = _is_emulated(target) and op in PRODUCTS
                facts = base.facts if slow else large_facts(declared(target), base)
                yield Case(op, {"op": op, "facts": facts}, base.pointer)


def _is_emulated(target: Target) -> bool:
    return target.emulated or target.emulator is not None


@rule(
    "L2.path.host",
    summary="the host's CPU does not do a kernel's work",
    why="What a C library does inside of a call shows in no table. The host's own CPU time does: "
    "a launch costs the same whatever the sizes, and a kernel that runs on the host costs "
    "what the host needs for it. CPU time is counted over all threads of the process until "
    "the device is done, for which the suite sleeps (of an emulated device: over the calling "
    "thread, the others being the device); it is compared with core's portable code on the "
    "host. Waiting by spinning inside of a kernel's call counts too: return after the launch.",
    cases=_host_time,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check_host(bench: Bench, case: Case) -> Observation:
    """Compares CPU seconds of one large call with those of the host's own."""
    from vllm_adapter_conformance.device_side.clocks import kernel_cpu_s
    from vllm_adapter_conformance.ops.calls import host_cpu_s, plain_call, sized

    op, facts = case.params["op"], dict(case.params["facts"])
    emulated = _is_emulated(bench.target)  # and slow: less work tells as much
    sizes = SIZES if emulated and op != "linear" else MANY
    call = plain_call(op, facts, sized(op, facts, sizes, f"{bench.target.seed}/host"))
    own = host_cpu_s(call)
    seen = bench.observe(kernel_cpu_s, call=call, own_thread=emulated)
    if seen > max(HOST_S, HOST_SHARE * own):
        raise Failure(
            f"{op}: less than {HOST_SHARE:.0%} of the CPU time that the host needs for it "
            f"({1e3 * own:.1f} ms), or {1e3 * HOST_S:g} ms",
            f"{1e3 * seen:.1f} ms",
            detail=f"{case.id}; seed {bench.target.seed}",
        )
    return Observation(note=f"{1e3 * seen:.2f} ms of CPU; the host alone: {1e3 * own:.1f} ms")


def _small(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for id, facts, pointer in _one_each(target):
        yield Case(id, {"op": id.partition("-")[0], "facts": facts}, pointer)


@rule(
    "L2.path.latency",
    summary="a small call is done about as soon as its tensors can be moved",
    why="A decode step is hundreds of small calls: what each waits for, the user waits for. The "
    "fastest of many calls is held against the fastest plain copy of the same tensors on the "
    "same device; the bound is wide (ten copies and 1 ms), so that it is passed by anything "
    "that works, also on a busy machine. Usual causes are a sleep, a compile or a search at "
    "every call, a lock, a process that is asked, a file that is read.",
    cases=_small,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check_latency(bench: Bench, case: Case) -> Observation:
    """Times one small call and the copies of its tensors, the fastest of each."""
    from vllm_adapter_conformance.device_side.clocks import ready_small
    from vllm_adapter_conformance.ops.calls import plain_call, sized

    op, facts = case.params["op"], dict(case.params["facts"])
    call = plain_call(op, facts, sized(op, facts, SMALL, f"{bench.target.seed}/small"))
    took, move = _beside_a_copy(bench, ready_small, call=call)
    bound = LAUNCH_S + MOVES * move
    if took > bound:
        raise Failure(
            f"{op}: a small call within {1e3 * bound:.2f} ms, where a copy takes "
            f"{1e3 * move:.3f} ms",
            f"{1e3 * took:.2f} ms, the fastest {BATCH} of {BATCH * BATCHES}",
            detail=f"{case.id}; seed {bench.target.seed}",
        )
    return Observation(note=f"{1e3 * took:.3f} ms; a copy {1e3 * move:.3f} ms")


WIDE: Final = 8192
WEIGHT_COPIES: Final = 2.0
"""A copy reads and writes the weight; a call reads it once. One that writes it in a wider dtype
first, and reads that, moves five times as much as it has to."""


def _wide(target: Target) -> Iterator[Case | NotDeclaredCase]:
    """Of each low dtype: the widest square weight that is declared."""
    from vllm_adapter_conformance.ops.cases import refusal

    for dtype in DTYPES[1:] if target.capability else ():
        if on_cpu(target) or _is_emulated(target):
            yield NotDeclaredCase(dtype, "/identity/torch_type", "the CPU computes, as it can")
            continue
        pointer, unit = f"/compute_units/{dtype}", declared(target).compute_units.get(dtype)
        if unit is not None and unit.emulated:
            yield NotDeclaredCase(dtype, pointer, "the descriptor says that it is emulated")
            continue
        facts = {"dtype": dtype, "in_features": WIDE, "out_features": WIDE, "bias": False}
        refused = refusal(declared(target), "linear", facts)
        if refused is None:
            yield Case(dtype, {"facts": facts}, "/operators/linear")
        else:
            yield NotDeclaredCase(dtype, refused.pointer, str(refused))


@rule(
    "L2.path.movement",
    summary="linear of one row reads a low dtype's weight as it is",
    why="A kernel that converts the weight to float32 at each call is right, and five times "
    "slower than the memory: the dtype is declared and not served. The call is held against a "
    "plain copy of the same weight on the same device, which moves twice the bytes: it may "
    "take twice as long. Where the chip has no arithmetic in the dtype, say so in "
    '`"compute_units": {"float16": {"emulated": true}}`.',
    cases=_wide,
    needs=("L2.linear.correct",),
    seconds=180.0,
    preview=True,
    since="0.1",
)
def check_movement(bench: Bench, case: Case) -> Observation:
    """Times one row through a large weight, and a copy of the weight."""
    from vllm_adapter_conformance.device_side.clocks import ready_weight

    took, copy = _beside_a_copy(bench, ready_weight, facts=dict(case.params["facts"]))
    if took > WEIGHT_COPIES * copy:
        raise Failure(
            f"one row through a weight of {WIDE} x {WIDE} in {case.id} within "
            f"{1e6 * WEIGHT_COPIES * copy:.0f} us, two copies of the weight",
            f"{1e6 * took:.0f} us",
            detail=f"seed {bench.target.seed}",
        )
    return Observation(note=f"{1e6 * took:.0f} us; a copy of the weight {1e6 * copy:.0f} us")


def _beside_a_copy(bench: Bench, ready: Callable[..., None], **given: Any) -> tuple[float, float]:
    """Seconds of the fastest calls that `ready` makes ready, and copies, by the judge's clock."""
    from vllm_adapter_conformance.device_side.clocks import CALL, COPY
    from vllm_adapter_conformance.performance.clock import JudgeClock

    with JudgeClock(bench) as clock:
        bench.observe(ready, **given)
        return clock.least(CALL, BATCH, BATCHES), clock.least(COPY, BATCH, BATCHES)
