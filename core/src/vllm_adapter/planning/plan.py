"""How a model runs on the devices of a box: every decision as a line with its reason."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter.planning.advice import Advice
from vllm_adapter.planning.box import PlanBox
from vllm_adapter.planning.demand import ModelDemand
from vllm_adapter.planning.dtypes import BITS
from vllm_adapter.planning.launch_lines import compile_line, numa_line, serving_lines
from vllm_adapter.planning.line import Figures, PlanLine
from vllm_adapter.planning.negotiate import AgreedDtypes, agree
from vllm_adapter.planning.parallel import choose
from vllm_adapter.planning.phases import phases
from vllm_adapter.planning.remedies import Remedy, remedies
from vllm_adapter.planning.roofline import Gemm, Phase, Rates, gemms, power_of_two, rates
from vllm_adapter.planning.sizing import GIB, RankGroups, Sizing, SizingInput, size, step_tokens
from vllm_adapter.planning.workload import Workload

SCHEMA: Final = "vllm-adapter/plan/1.0"
SHARE: Final = 0.92
"""vLLM's own default of --gpu-memory-utilization.

# upstream: vllm@v0.32.0 vllm/config/cache.py:102
"""
CPU_SHARE: Final = 0.75
RESERVE: Final = GIB // 2
GROUP_RESERVE: Final = GIB
CPU_RESERVE: Final = 3 * GIB // 4
"""What a worker of vLLM on a CPU takes without weights and KV cache; on one host it was 0.74."""
CPU_BLOCK: Final = 32
"""vLLM's own attention on a CPU refuses a block of tokens that is no multiple of it.

# upstream: vllm@v0.32.0 vllm/v1/attention/backends/cpu_attn.py: get_supported_kernel_block_sizes
"""
CAPACITY: Final = 16 * GIB
LEAST_CHUNK: Final = 256
MOST_SEQUENCES: Final = 1024
OWN: Final = "the operator's own flag"
_CHUNK: Final = {"throughput": 16, "latency": 4}


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """The whole answer. `lines` are in the order in which they were decided."""

    demand: ModelDemand
    box: PlanBox
    workload: Workload
    lines: tuple[PlanLine, ...]
    groups: RankGroups
    sizing: Sizing
    asked: SizingInput
    rates: Rates
    gemms: tuple[Gemm, ...]
    phases: tuple[Phase, ...]
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    served_by: str = field(default="")

    @property
    def fits(self) -> bool:
        """Whether the demand fits."""
        return self.sizing.fits

    def line(self, key: str) -> PlanLine:
        """The line of a key. Raises StopIteration where there is none."""
        return next(line for line in self.lines if line.key == key)

    def flags(self) -> tuple[str, ...]:
        """Flags for `vllm serve`, without those that the operator gave."""
        return tuple(flag for line in self.lines for flag in line.flags)

    def environment(self) -> dict[str, str]:
        """Variables for the server's process."""
        found: dict[str, str] = {}
        for line in self.lines:
            found |= line.environment
        return found

    def command(self, own: tuple[str, ...] = ()) -> str:
        """The `vllm serve` line with its environment, for a POSIX shell; `own` flags last."""
        pairs = [f"{name}={shlex.quote(value)}" for name, value in self.environment().items()]
        return " ".join(
            [*pairs, shlex.join(["vllm", "serve", self.demand.name, *self.flags(), *own])]
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        element = BITS[self.asked.dtype] / 8
        products = [
            one.to_json(self.asked.sequences, step_tokens(self.asked), element, self.rates.ridge)
            for one in self.gemms
        ]
        return {
            "schema": SCHEMA,
            "fits": self.fits,
            "demand": self.demand.to_json(),
            "box": self.box.to_json(),
            "workload": {
                "context": self.asked.context,
                "concurrency": self.asked.concurrency,
                "objective": self.workload.objective,
            },
            "lines": [line.to_json() for line in self.lines],
            "memory": {
                **self.sizing.memory.to_json(),
                "kv_bytes": max(0, self.sizing.room),
                "kv_need_bytes": self.sizing.need,
                "kv_block_bytes": self.sizing.block_bytes,
                "kv_blocks": self.sizing.blocks,
                "kv_tokens": self.sizing.blocks * self.asked.block,
                "sequences_at_full_context": round(self.sizing.at_full_context, 2),
            },
            "roofline": {
                "flops": self.rates.flops,
                "bytes_a_second": self.rates.bytes,
                "ridge_flops_a_byte": round(self.rates.ridge, 2),
                "phases": [one.to_json(self.rates.ridge) for one in self.phases],
            },
            "gemms": products,
            "remedies": [one.to_json() for one in self.remedies],
            "environment": self.environment(),
            "container": [
                {"flag": one.text, "why": one.why, "source": one.source or "assumption"}
                for one in self.box.container
            ],
            "vllm_serve": self.command(),
            "notes": list(self.notes),
        }


def make_plan(
    demand: ModelDemand, box: PlanBox, workload: Workload, advice: Advice | None = None
) -> ExecutionPlan:
    """The plan, also of what does not fit: then with what would make it fit.

    Raises:
        InputError: a value of the operator that the model or the chip cannot have.
    """
    return _Planner(demand, box, workload, advice or Advice()).plan()


class _Planner:
    def __init__(
        self, demand: ModelDemand, box: PlanBox, workload: Workload, advice: Advice
    ) -> None:
        self.demand, self.box, self.workload, self.advice = demand, box, workload, advice
        self.figures = Figures(box.capability)
        self.own: Mapping[str, str] = workload.own
        self.lines: list[PlanLine] = []

    def plan(self) -> ExecutionPlan:
        context = self.context()
        dtypes = agree(self.demand, self.box, self.figures, self.own, self.advice.text("kv_dtype"))
        self.lines += dtypes.lines
        peaks = rates(self.figures, dtypes.rate)
        concurrency = self.workload.concurrency or 1
        sequences = self.sequences(dtypes, peaks)
        chunk = self.chunk(dtypes, peaks, sequences, context)
        block = self.block()
        share, capacity = self.share(), self.capacity()
        reserve = self.reserve()
        shared = self.workload.concurrency is not None and "sequences" not in self.own
        fixed_kv = int(self.own["kv_bytes"]) if "kv_bytes" in self.own else None

        def asked(groups: RankGroups) -> SizingInput:
            kept = reserve
            if groups.ranks > 1 and not self.box.cpu:
                kept += GROUP_RESERVE
            return SizingInput(
                self.demand,
                dtypes.dtype,
                dtypes.packing,
                dtypes.kv,
                capacity,
                share,
                kept,
                groups,
                -(-sequences // groups.data) if shared else sequences,
                chunk,
                block,
                context,
                concurrency,
                fixed_kv,
            )

        fixed = {
            key: int(self.own[key])
            for key in ("tensor_parallel", "pipeline_parallel", "data_parallel")
            if key in self.own
        }
        groups, why, holds = choose(
            self.demand,
            self.box,
            self.workload.objective,
            lambda one: size(asked(one)),
            fixed,
            self.advice.number("tensor_parallel"),
        )
        inputs = asked(groups)
        sizing = size(inputs)
        self.sequences_of_a_replica(inputs)
        if self.box.cpu and fixed_kv is None and sizing.fits:
            sizing = self.no_more_than_useful(inputs, sizing)
        self.parallel_lines(groups, why, holds)
        self.lines += serving_lines(self.demand, self.figures, inputs, sizing, self.own, self.box)
        self.lines.append(
            compile_line(self.figures, self.workload.objective, self.own, self.advice)
        )
        self.lines += numa_line(self.box, groups, self.figures, self.own)
        self.advice_lines()
        products = gemms(
            self.demand, groups.tensor, inputs.sequences, dtypes.dtype, dtypes.packing
        )
        better = () if sizing.fits else remedies(inputs, self.box, dtypes, self.figures)
        return ExecutionPlan(
            self.demand,
            self.box,
            self.workload,
            tuple(self.lines),
            groups,
            sizing,
            inputs,
            peaks,
            products,
            phases(self.demand, inputs, peaks, dtypes),
            better,
            (*self.box.notes, *self.advice.notes),
        )

    def context(self) -> int:
        positions = self.demand.shape.positions
        own = self.own.get("context")
        wanted = int(own) if own else self.workload.context
        if wanted is not None and wanted > positions:
            raise InputError(
                f"a context of {wanted} tokens: {self.demand.name} has {positions} positions",
                hint=f"ask for at most {positions}",
            )
        context = wanted or positions
        if own:
            line = self.figures.line("context", context, OWN, owner="operator")
        else:
            why = "asked for" if wanted else "all positions that the model has"
            line = self.figures.line(
                "context", context, why, flags=("--max-model-len", str(context))
            )
        self.lines.append(line)
        return context

    def sequences(self, dtypes: AgreedDtypes, peaks: Rates) -> int:
        weight = BITS[dtypes.packing.dtype if dtypes.packing else dtypes.dtype] / 8
        turn = peaks.ridge * weight / 2
        reason = (
            f"one weight of {weight:g} bytes serves 2 operations a sequence: at "
            f"{peaks.ridge:.1f} operations a byte, decoding {turn:.0f} sequences is where "
            "computing takes as long as reading the weights"
        )
        share = 1 if self.workload.objective == "throughput" else 8
        wanted = min(MOST_SEQUENCES, power_of_two(turn / share))
        if share > 1:
            reason += "; latency takes an eighth"
        advised = self.advice.number("sequences")
        flags: tuple[str, ...] | None = None
        owner = "planner"
        if "sequences" in self.own:
            wanted, reason, owner, flags = (
                int(self.own["sequences"]),
                OWN,
                "operator",
                (),
            )
        elif self.workload.concurrency is not None:
            wanted, reason = self.workload.concurrency, f"asked for; {reason}"
        elif advised is not None:
            wanted, reason, owner = advised, self.advice.reason, "adapter"
        self.lines.append(
            self.figures.line(
                "sequences",
                wanted,
                reason,
                flags=("--max-num-seqs", str(wanted)) if flags is None else flags,
                owner=owner,
            )
        )
        return wanted

    def sequences_of_a_replica(self, asked: SizingInput) -> None:
        """What was asked of all replicas is shared by them; vLLM's flag is of one."""
        at = next(i for i, line in enumerate(self.lines) if line.key == "sequences")
        line = self.lines[at]
        if line.value != asked.sequences:
            self.lines[at] = replace(
                line,
                value=asked.sequences,
                reason=f"{line.value} in all, shared by {asked.groups.data} replicas; "
                f"{line.reason}",
                flags=("--max-num-seqs", str(asked.sequences)),
            )

    def chunk(self, dtypes: AgreedDtypes, peaks: Rates, sequences: int, context: int) -> int:
        weight = BITS[dtypes.packing.dtype if dtypes.packing else dtypes.dtype] / 8
        self.figures.read("/memory/bandwidth_gb_s")
        engines = self.figures.read("/dma/engine_count")
        at_once = self.figures.read("/dma/max_concurrent_transfers")
        together = (
            min(one for one in (engines, at_once) if one is not None)
            if (engines is not None or at_once is not None)
            else None
        )
        times = _CHUNK[self.workload.objective]
        turn = peaks.ridge * weight / 2
        if together is None:
            self.figures.assume("copy engines are not known: assumed that a step waits for copies")
        overlapped = together is not None and together >= 2
        wanted = power_of_two(turn * times) * (1 if overlapped else 2)
        reason = (
            f"{times} times the {turn:.0f} tokens at which computing takes as long as reading the "
            "weights"
        )
        if overlapped:
            reason += f"; {together} copies at once run beside it, so no more is needed"
        else:
            reason += "; twice that, since a step waits for its copies"
        if wanted < LEAST_CHUNK:
            wanted = LEAST_CHUNK
            reason += f"; at least {LEAST_CHUNK}, so that a step's fixed cost is shared"
        if wanted < sequences:
            wanted, reason = sequences, f"one token for each of {sequences} sequences"
        advised = self.advice.number("prefill_chunk")
        owner, flags = "planner", True
        if "prefill_chunk" in self.own:
            wanted, reason = int(self.own["prefill_chunk"]), OWN
            owner, flags = "operator", False
        elif advised is not None:
            wanted, reason, owner = max(advised, sequences), self.advice.reason, "adapter"
        self.lines.append(
            self.figures.line(
                "prefill_chunk",
                wanted,
                reason,
                flags=("--max-num-batched-tokens", str(wanted)) if flags else (),
                owner=owner,
            )
        )
        return wanted

    def block(self) -> int:
        kv = self.box.capability.kv
        multiple = self.figures.read("/kv/block_multiple") or 1
        preferred = self.figures.read("/kv/preferred_block")
        advised, own = self.advice.number("block_size"), self.own.get("block_size")
        if own is not None:
            found, reason, owner = int(own), OWN, "operator"
        elif advised is not None:
            found, reason, owner = advised, self.advice.reason, "adapter"
        else:
            found, owner = kv.block_size, "planner"
            reason = "what the kernels run best with"
            if preferred is None:
                reason = f"the smallest multiple of {multiple} from 16 on"
                self.figures.assume("no block is said to be best: 16 tokens assumed")
            if self.box.cpu and found % CPU_BLOCK:
                found = math.lcm(multiple, CPU_BLOCK)
                reason = (
                    f"vLLM's own kernels, which run on a CPU what they run faster, take multiples "
                    f"of {CPU_BLOCK}"
                )
        if found % multiple:
            raise InputError(
                f"a block of {found} tokens: this chip takes multiples of {multiple}",
                hint=f"take --block-size {-(-found // multiple) * multiple}",
            )
        flags = () if own is not None else ("--block-size", str(found))
        if not self.demand.kv_layers:
            flags, reason = (), "an encoder has no KV cache"
        self.lines.append(self.figures.line("block_size", found, reason, flags=flags, owner=owner))
        return found

    def capacity(self) -> int:
        found = self.figures.read("/memory/capacity_bytes")
        if found is None:
            found = CAPACITY
            self.figures.assume(f"memory is not known: {CAPACITY // GIB} GiB assumed")
        self.lines.append(
            self.figures.line("device_memory", found, f"{found / GIB:.2f} GiB of one device")
        )
        return int(found)

    def share(self) -> float:
        own = self.own.get("memory_share")
        if own is not None:
            share, reason = float(own), OWN
            line = self.figures.line("memory_share", share, reason, owner="operator")
        else:
            share = CPU_SHARE if self.box.cpu else SHARE
            reason = "vLLM's own default"
            if self.box.cpu:
                reason = "a quarter is left to the system, the server's front and other programs"
                self.figures.assume("what else runs on this host: a quarter of its memory")
            free, whole = self.box.free_bytes, self.figures.read("/memory/capacity_bytes")
            if free is not None and whole and free < share * whole:
                share = max(0.01, int(free / whole * 100) / 100)
                reason = f"{free / GIB:.1f} GiB are free now; others have the rest"
            flags = () if self.box.cpu else ("--gpu-memory-utilization", f"{share:g}")
            line = self.figures.line("memory_share", share, reason, flags=flags)
        self.lines.append(line)
        return share

    def reserve(self) -> int:
        found = self.figures.read("/memory/runtime_reserve_bytes")
        reason = "what driver and runtime keep on each device"
        if found is None:
            found = CPU_RESERVE if self.box.cpu else RESERVE
            self.figures.assume(f"the runtime's share is not known: {found / GIB:g} GiB assumed")
        if len(self.box.devices) > 1:
            reason += f"; {GROUP_RESERVE // GIB} GiB more for the buffers of a group of ranks"
        self.lines.append(self.figures.line("runtime_reserve", int(found), reason))
        return int(found)

    def no_more_than_useful(self, asked: SizingInput, sizing: Sizing) -> Sizing:
        """On a CPU the rest of the memory is not the cache's: as much as all sequences can use."""
        useful = max(asked.sequences * sizing.each_sequence, sizing.need)
        room = min(sizing.room, useful)
        if sizing.block_bytes:
            room = room // sizing.block_bytes * sizing.block_bytes
        return Sizing(sizing.memory, sizing.need, sizing.block_bytes, sizing.each_sequence, room)

    def parallel_lines(self, groups: RankGroups, why: str, holds: bool) -> None:
        for key, count, flag in (
            ("tensor_parallel", groups.tensor, "--tensor-parallel-size"),
            ("pipeline_parallel", groups.pipeline, "--pipeline-parallel-size"),
            ("data_parallel", groups.data, "--data-parallel-size"),
        ):
            own = key in self.own
            flags = (flag, str(count)) if count > 1 and not own else ()
            self.lines.append(
                self.figures.line(
                    key, count, why, flags=flags, owner="operator" if own else "planner"
                )
            )

    def advice_lines(self) -> None:
        for name, value in self.advice.environment.items():
            self.lines.append(
                self.figures.line(
                    f"environment:{name}",
                    value,
                    self.advice.reason,
                    environment={name: value},
                    owner="adapter",
                )
            )
