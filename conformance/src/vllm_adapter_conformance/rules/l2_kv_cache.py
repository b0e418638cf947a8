"""L2: what is written to the paged KV cache is what attention reads, over steps and reuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import (
    Facts,
    OpFacts,
    base_cases,
    declared,
    refusal,
    variations,
)

if TYPE_CHECKING:
    import torch

    from vllm_adapter.engine.kv_cache import BlockTable, PagedKVCache
    from vllm_adapter.engine.ops.bind import Binding
    from vllm_adapter_conformance.ops.draw import RandomTensors

KV_HEADS: Final = 2


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for dtype in DTYPES if target.capability else ():
        yield _case(target, dtype)


def _case(target: Target, dtype: str) -> Case | NotDeclaredCase:
    """The first base case of attention whose cache can be written too; or why there is none."""
    capability = declared(target)
    served = [
        base
        for base in base_cases(capability, "paged_attention")
        if base.facts["dtype"] == dtype and base.facts["kv_dtype"] == "auto"
    ]
    first = next(c for c in variations(capability, "paged_attention") if c.facts["dtype"] == dtype)
    refusals = [first.refusal]
    for base in served:
        write = _write_facts(base.facts)
        refusals.append(refusal(capability, "reshape_and_cache", write))
        if refusals[-1] is None:
            return Case(dtype, {"attend": base.facts, "write": write}, base.pointer)
    missing = next(r for r in refusals if r)
    return NotDeclaredCase(dtype, missing.pointer, str(missing))


def _write_facts(attend: Facts) -> Facts:
    names = OPERATORS["reshape_and_cache"].bind_facts
    return {name: attend[name] for name in ("dtype", *names)}


@rule(
    "L2.kv_cache",
    summary="reshape_and_cache, then paged_attention, equals attention without a cache",
    why="Each operator may be right alone and both wrong together: keys stored as values, a slot "
    "computed with another block size, a block that still holds a finished sequence. In serving "
    "this mixes the contexts of users. The failure names the step and the sequence; a fault that "
    "starts with the step after the release is a stale block, one in the first step is layout.",
    cases=_cases,
    needs=("L2.reshape_and_cache.correct", "L2.paged_attention.correct"),
)
def check(bench: Bench, case: Case) -> Observation:
    """Prefill, decode, release, reuse of the blocks by another sequence, mixed steps."""
    rounds = _CacheRounds(bench, dict(case.params["attend"]), dict(case.params["write"]))
    block = int(case.params["attend"]["block_size"])
    first, second = rounds.sequence(), rounds.sequence()
    rounds.step("prefill", {first: block + 3, second: 2})
    rounds.step("decode", {first: 1, second: 1})
    rounds.release(first)
    third = rounds.sequence()
    rounds.step("reuse of released blocks, beside a decode", {third: block + 5, second: 1})
    rounds.step("decode after reuse", {third: 1, second: 1})
    rounds.step("chunk of a prefill over a block's end", {second: block, third: 1})
    rounds.close()
    return Observation(rounds.worst, f"{rounds.steps} steps")


class _CacheRounds:
    """Sequences in a paged cache on the device, with everything they were given on the host."""

    def __init__(self, bench: Bench, attend: Facts, write: Facts) -> None:
        import torch

        from vllm_adapter.engine.kv_cache import BlockSize, PagedKVCache
        from vllm_adapter_conformance.ops import runs
        from vllm_adapter_conformance.ops.draw import RandomTensors

        self.bench, self.facts = bench, attend
        self.dtype: torch.dtype = getattr(torch, str(attend["dtype"]))
        size = BlockSize(
            layers=1,
            kv_heads=KV_HEADS,
            head_size=int(attend["head_size"]),
            element_bytes=self.dtype.itemsize,
            block_size=int(attend["block_size"]),
        )
        index = bench.opened.record.index
        # Just enough blocks: what a finished sequence held is taken again at once.
        self.cache: PagedKVCache = PagedKVCache(
            bench.runtime, index, size, self.dtype, blocks=4, max_blocks=4
        )
        for tensor in self.cache.layers[0]:
            tensor.fill_(torch.nan)
        self.writer: Binding = runs.bind_declared(bench, "reshape_and_cache", write)
        self.reader: Binding = runs.bind_declared(bench, "paged_attention", attend)
        self.draw: RandomTensors = RandomTensors(bench.target.seed, "kv_cache")
        self.history: dict[int, list[torch.Tensor]] = {}
        self.tables: dict[int, BlockTable] = {}
        self.worst, self.steps = 0.0, 0

    def sequence(self) -> int:
        """A new sequence; its number."""
        number = len(self.history)
        self.tables[number] = self.cache.new_sequence()
        self.history[number] = []
        return number

    def release(self, number: int) -> None:
        """Ends a sequence: its blocks are free, and still hold what they held."""
        self.cache.release([self.tables.pop(number)])

    def close(self) -> None:
        """Gives the cache's memory back."""
        self.cache.close()

    def step(self, name: str, tokens: dict[int, int]) -> None:
        """Appends random tokens to sequences, runs both operators, judges each sequence."""
        import torch

        size, heads = self.cache.size, KV_HEADS * int(self.facts["gqa_ratio"])
        step = self.cache.advance([self.tables[n] for n in tokens], list(tokens.values()))
        total = sum(tokens.values())
        query = self.draw.normal(total, heads, size.head_size, dtype=self.dtype)
        pair = self.draw.normal(2, total, KV_HEADS, size.head_size, dtype=self.dtype)
        keys, values = self.cache.layers[0]
        key, value = (self.bench.to_device(half.contiguous()) for half in pair)
        self.reader.plan(step)
        self.writer.run(key, value, keys, values, step.slot_mapping)
        result = self.reader.run(
            self.bench.to_device(query),
            keys,
            values,
            step.block_table,
            step.seq_lens,
            step.query_start_loc,
            size.head_size**-0.5,
            int(self.facts["window"]),
            float(self.facts["soft_cap"]),
            self.reader.handle,
        ).cpu()
        start = 0
        for number, count in tokens.items():
            rows = slice(start, start + count)
            start += count
            self.history[number].append(pair[:, rows])
            past = torch.cat(self.history[number], 1)
            self._judge(f"step {self.steps} ({name})", number, result[rows], query[rows], past)
        self.steps += 1

    def _judge(self, step: str, number: int, got: Any, query: Any, past: Any) -> None:
        """Holds one sequence's rows against attention over its history in one long block."""
        import torch

        from vllm_adapter_conformance.ops.tolerance import compare
        from vllm_adapter_conformance.ops.trials import TRIALS

        trial = TRIALS["paged_attention"]
        lengths = (torch.tensor([past.shape[1]]), torch.tensor([0, query.shape[0]]))
        options = (int(self.facts["window"]), float(self.facts["soft_cap"]), 0)
        (want,) = trial.reference(
            query.double(),
            *past.double()[:, None],
            torch.zeros(1, 1, dtype=torch.int32),
            *lengths,
            self.cache.size.head_size**-0.5,
            *options,
        )
        seen = compare(got, want, trial.terms(self.facts))
        self.worst = max(self.worst, seen.share)
        if seen.share > 1:
            raise Failure(
                f"sequence {number} in {step} to equal attention without a cache",
                f"{seen.share:.3g} of the budget at {list(seen.index)}: got {seen.got:.9g}, "
                f"want {seen.want:.9g}",
                share=seen.share,
                detail=f"{OpFacts('paged_attention', self.facts, None).id}; "
                f"seed {self.bench.target.seed}",
            )
