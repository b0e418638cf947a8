"""Lines of a plan that launch the server: KV cache, compile mode, NUMA, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from vllm_adapter.planning.advice import Advice
from vllm_adapter.planning.box import PlanBox, PlanDevice
from vllm_adapter.planning.demand import ModelDemand
from vllm_adapter.planning.dtypes import BITS
from vllm_adapter.planning.line import Figures, PlanLine
from vllm_adapter.planning.sizing import GIB, RankGroups, Sizing, SizingInput

if TYPE_CHECKING:
    from vllm_adapter.planning.workload import Objective

GRAPHS: Final = {"throughput": "max-autotune", "latency": "reduce-overhead"}
MODES: Final = ("eager", *GRAPHS.values())


def serving_lines(
    demand: ModelDemand,
    figures: Figures,
    asked: SizingInput,
    sizing: Sizing,
    own: Mapping[str, str],
    box: PlanBox,
) -> list[PlanLine]:
    """Memory and KV cache of one rank."""
    memory = sizing.memory
    lines = [
        figures.line("weight_bytes", memory.weights, f"{memory.weights / GIB:.2f} GiB a rank"),
        figures.line(
            "activation_bytes",
            memory.activations,
            f"the most that a step of {min(asked.chunk, asked.context * asked.sequences)} tokens, "
            f"or sampling for {asked.sequences} sequences, holds at once",
        ),
    ]
    if not demand.kv_layers:
        return lines
    token = demand.kv_bytes_a_token(asked.kv_dtype, asked.groups.tensor)
    lines.append(figures.line("kv_bytes_a_token", token, kv_arithmetic(demand, asked)))
    reason = (
        f"{memory.capacity / GIB:.2f} GiB x {asked.share:g} less weights, activations and reserve"
    )
    flags: tuple[str, ...] = ()
    owner = "planner"
    if "kv_bytes" in own:
        reason, owner = "the operator's own flag", "operator"
    elif box.cpu and sizing.fits:
        reason += f"; at most what {asked.sequences} sequences of {asked.context} tokens use"
        flags = ("--kv-cache-memory-bytes", str(sizing.room))
    lines.append(figures.line("kv_bytes", max(0, sizing.room), reason, flags=flags, owner=owner))
    blocks = sizing.blocks
    reason = (
        f"{max(0, sizing.room):,} bytes / {sizing.block_bytes:,} of a block of {asked.block} "
        f"tokens: {blocks * asked.block:,} tokens, {sizing.at_full_context:.2f} sequences of "
        f"{asked.context} tokens"
    )
    lines.append(figures.line("kv_blocks", blocks, reason))
    return lines


def kv_arithmetic(demand: ModelDemand, asked: SizingInput) -> str:
    """The product behind the bytes of a token, as one checks it by hand."""
    shape, element = demand.shape, BITS[asked.kv_dtype] // 8
    if shape.latent is not None:
        return (
            f"({shape.latent.rank} + {shape.latent.rope}) x {element} bytes x {shape.layers} "
            "layers: the latent, which every rank keeps"
        )
    heads = -(-shape.kv_heads // asked.groups.tensor)
    text = f"2 x {heads} KV heads x {shape.head_dim} x {element} bytes x {shape.layers} layers"
    windows = sum(1 for window in shape.windows if window)
    if windows:
        text += f"; {windows} layers keep a window of {max(shape.windows)} tokens alone"
    return text


def compile_line(
    figures: Figures, objective: Objective, own: Mapping[str, str], advice: Advice
) -> PlanLine:
    """Graphs where the chip captures them: tuned for throughput, few launches for latency."""
    captured = figures.read("/execution/graph_capture")
    if "compile_mode" in own:
        reason = "the operator's own flag"
        return figures.line("compile_mode", "eager", reason, owner="operator")
    advised = advice.text("compile_mode")
    if advised in MODES:
        mode, reason, owner = advised, advice.reason, "adapter"
    elif captured:
        mode, owner = GRAPHS[objective], "planner"
        reason = (
            "launches are captured and replayed; throughput: products are tuned for their shapes, "
            "and the cache on disk is used at the next start"
            if objective == "throughput"
            else "launches are captured and replayed; latency: the least of them a step"
        )
    else:
        mode, owner = "eager", "planner"
        reason = "launches cannot be captured: compiling would cost a start and save little"
        if captured is None:
            figures.assume("nothing says whether launches can be captured: assumed they cannot")
    assert mode is not None
    flags = ("--enforce-eager",) if mode == "eager" else ()
    environment = {}
    if mode == "reduce-overhead":
        environment["VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE"] = "0"
    return figures.line(
        "compile_mode", mode, reason, flags=flags, environment=environment, owner=owner
    )


def numa_line(
    box: PlanBox, groups: RankGroups, figures: Figures, own: Mapping[str, str]
) -> list[PlanLine]:
    """The ranks with their devices, nodes and CPUs; then what the process's environment needs."""
    used = placed(box, groups)
    ranks = [
        {
            "rank": i,
            "device": one.id,
            "domain": one.domain,
            "node": one.numa_node,
            "cpus": one.cpus,
        }
        for i, one in enumerate(used)
    ]
    lines = [figures.line("ranks", ranks, box.domains_why or "in the order of the devices")]
    if "numa" in own:
        lines.append(figures.line("numa", "own", "the operator's own flag", owner="operator"))
    elif not box.cpu:
        flags = numa_flags(box, used)
        value = "bound" if flags else "not bound"
        lines.append(figures.line("numa", value, box.numa_why, flags=flags))
    numbers = tuple(device.number for device in used)
    if all(numbers) and box.all_numbers and numbers != box.all_numbers[: len(numbers)]:
        why = "the process sees these devices alone, those of a group beside each other"
        for name, form in box.visible:
            text = form.format(numbers=",".join(numbers))
            lines.append(figures.line(f"environment:{name}", text, why, environment={name: text}))
    return lines


def placed(box: PlanBox, groups: RankGroups) -> list[PlanDevice]:
    """The device of each rank: those of a tensor-parallel group in one domain, if that can be."""
    found = box.in_groups(groups.tensor)
    if len(found) < groups.devices:  # wider than a domain, as an operator may want it
        found = list(box.devices)
    return found[: groups.devices]


def numa_flags(box: PlanBox, used: Sequence[PlanDevice]) -> tuple[str, ...]:
    """vLLM's flags that bind each worker, in the order of the ranks."""
    nodes = [device.numa_node for device in used]
    if not box.numa_bound or None in nodes:
        return ()
    flags = ["--numa-bind", "--numa-bind-nodes", *map(str, nodes)]
    if all(device.cpus for device in used):
        flags += ["--numa-bind-cpus", *(device.cpus for device in used)]
    return tuple(flags)
