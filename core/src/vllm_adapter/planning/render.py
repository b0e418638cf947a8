"""A plan as text for a terminal: each line, its reason, and the figures it stands on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

from vllm_adapter.planning.diff import LineChange
from vllm_adapter.planning.line import PlanLine, Reading
from vllm_adapter.planning.plan import ExecutionPlan
from vllm_adapter.planning.sizing import GIB, step_tokens

WIDTH: Final = 96
_IN_BYTES: Final = ("device_memory", "runtime_reserve")


def shown(key: str, value: Any) -> str:
    """A line's value as people read it."""
    if key == "ranks":
        return f"{len(value)} rank" + ("s" if len(value) != 1 else "")
    if isinstance(value, int) and ("bytes" in key or key in _IN_BYTES):
        return f"{value:,} bytes"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


def plan_text(plan: ExecutionPlan, own: tuple[str, ...] = ()) -> Iterator[str]:
    """The whole plan, line by line."""
    yield from head(plan)
    yield ""
    yield from reasons(plan)
    yield ""
    yield from memory_bar(plan)
    yield from rooflines(plan)
    yield from products(plan)
    if not plan.fits:
        yield ""
        yield from what_would_fit(plan)
    for note in plan.notes:
        yield f"note: {note}"
    for who, why in plan.box.refused:
        yield f"not planned on {who}: {why}"
    if plan.box.container:
        yield "container flags: " + " ".join(one.text for one in plan.box.container)
        yield "  (`vllm-adapter container` has the reason and source of each)"
    yield ""
    yield plan.command(own) if plan.fits else "no command: the model does not fit as asked"


def head(plan: ExecutionPlan) -> Iterator[str]:
    """What is planned, where, and whether it fits."""
    demand, box, sizing = plan.demand, plan.box, plan.sizing
    yield (
        f"model    {demand.name}: {demand.shape.family.name}, {demand.parameters:,} parameters, "
        f"{demand.weight_bytes():,} bytes of weights in {demand.weight_dtype}"
    )
    files = demand.files.files
    if files is not None and not demand.files.gguf:
        same = "the same" if files.total == demand.weight_bytes() else f"{files.total:,} bytes"
        yield f"         the {files.tensors} tensors in its files: {same}"
    name = box.capability.identity.name or box.capability.identity.arch
    yield f"devices  {len(box.devices)} x {name} ({box.origin}; {box.capability.origin})"
    need, have = sizing.need / GIB, max(0, sizing.room) / GIB
    if plan.fits:
        yield f"fits     {plan.asked.concurrency} x {plan.asked.context} tokens" + (
            f" need {need:.2f} of {have:.2f} GiB of KV cache a rank" if sizing.need else ""
        )
    elif sizing.memory.kv < 0:
        yield f"does not fit: {-sizing.memory.kv / GIB:.2f} GiB too little for the weights alone"
    elif sizing.room > sizing.memory.kv:
        yield (
            f"does not fit: a KV cache of {have:.2f} GiB a rank was asked for, and beside the "
            f"weights there is room for {sizing.memory.kv / GIB:.2f}"
        )
    else:
        yield (
            f"does not fit: {plan.asked.concurrency} x {plan.asked.context} tokens need "
            f"{need:.2f} GiB of KV cache a rank, and there is room for {have:.2f}"
        )


def reasons(plan: ExecutionPlan) -> Iterator[str]:
    """Every line with its reason, figures and assumptions."""
    width = max(len(line.key) for line in plan.lines)
    for line in plan.lines:
        value = shown(line.key, line.value)
        owner = "" if line.owner == "planner" else f" [{line.owner}]"
        yield f"{line.key:<{width}}  {value}{owner}"
        yield from _under(line.reason, width)
        for one in line.reads:
            yield from _under(figure(one), width)
        for sentence in line.assumptions:
            yield from _under(f"assumed: {sentence}", width)
        if line.key == "ranks":
            yield from (
                " " * (width + 2)
                + f"rank {one['rank']}: {one['device']}, link domain {one['domain']}"
                + (f", node {one['node']}" if one["node"] is not None else "")
                + (f", CPUs {one['cpus']}" if one["cpus"] else "")
                for one in line.value
            )


def figure(one: Reading) -> str:
    """A reading as text."""
    value = one.value
    text = f"{value:,}" if isinstance(value, int | float) else str(value)
    if value is None or isinstance(value, bool):
        text = "null" if value is None else str(value).lower()
    return f"reads {one.pointer} = {text} ({one.source})"


def _under(text: str, width: int) -> list[str]:
    indent = " " * (width + 2)
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )


def memory_bar(plan: ExecutionPlan) -> Iterator[str]:
    """The memory of a rank, part by part."""
    memory = plan.sizing.memory
    yield "memory of a rank"
    for name, size in parts(plan):
        share = size / memory.capacity if memory.capacity else 0
        yield f"  {name:<12} {size / GIB:>9.2f} GiB  {'#' * round(40 * max(0.0, min(share, 1)))}"


def parts(plan: ExecutionPlan) -> list[tuple[str, int]]:
    """(name, bytes) of what shares the capacity; the last is left to others."""
    memory, room = plan.sizing.memory, max(0, plan.sizing.room)
    used = memory.weights + memory.activations + memory.reserve + room
    return [
        ("weights", memory.weights),
        ("activations", memory.activations),
        ("runtime", memory.reserve),
        ("KV cache", room),
        ("left", memory.capacity - used),
    ]


def rooflines(plan: ExecutionPlan) -> Iterator[str]:
    """The phases against the roofline."""
    yield (
        f"roofline: {plan.rates.flops / 1e12:.4g} TFLOP/s, {plan.rates.bytes / 1e9:.4g} GB/s, "
        f"both limits meet at {plan.rates.ridge:.1f} operations a byte"
    )
    for one in plan.phases:
        bound = "computing" if one.intensity >= plan.rates.ridge else "reading"
        yield (
            f"  {one.name}: {one.tokens} tokens a step, {one.intensity:.1f} operations a byte, "
            f"bound by {bound}, at best {one.seconds * 1e3:.3g} ms, "
            f"{one.tokens_a_second:,.0f} tokens/s a replica"
        )


def products(plan: ExecutionPlan) -> Iterator[str]:
    """The model's products by shape."""
    tokens = step_tokens(plan.asked)
    decode = plan.asked.sequences
    yield f"products of a rank (m x n x k; decode m = {decode}, prefill m = {tokens})"
    for one in plan.to_json()["gemms"]:
        single, many = one["decode"], one["prefill"]
        yield (
            f"  {one['name']:<44} n {single['shape'][1]:>7} k {single['shape'][2]:>6}  "
            f"{one['calls_a_step']:g} calls, operations a byte {single['flops_a_byte']:g} / "
            f"{many['flops_a_byte']:g} ({single['bound']} / {many['bound']})"
        )


def what_would_fit(plan: ExecutionPlan) -> Iterator[str]:
    """Each remedy with its cost."""
    yield "what would make it fit, one change at a time:"
    for one in plan.remedies:
        value = f"{one.value}" if one.enough else "no"
        flags = f"  {' '.join(one.flags)}" if one.flags else ""
        yield f"  {one.what:<13} {value}: {one.cost}{flags}"


def diff_text(changes: Sequence[LineChange]) -> Iterator[str]:
    """The changed lines, with the figures that differ."""
    if not changes:
        yield "no line of the plan changes"
    for one in changes:
        before, after = (_side(one.key, side) for side in (one.before, one.after))
        yield f"{one.key}: {before} -> {after}" if before != after else f"{one.key}: {before}"
        for pointer, old, new in one.figures:
            yield f"  {pointer}: {old} -> {new}"
        if one.before and one.after and one.before.reason != one.after.reason:
            yield f"  was: {one.before.reason}"
        if one.after:
            yield f"  now: {one.after.reason}"


def _side(key: str, line: PlanLine | None) -> str:
    return "not there" if line is None else shown(key, line.value)
