"""L3: greedy tokens of whole tiny models equal those of the reference, but for near ties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Cases, Failure, Observation, rule
from vllm_adapter_conformance.models.shape import model_case, shape_of

if TYPE_CHECKING:
    import torch

NEW: Final = 20
"""Tokens generated a row: past a block's end for some."""
TIE: Final = 1e-4
"""Logits of the reference that are closer than this may change places."""


def _cases(kind: str) -> Cases:
    return lambda target: iter([model_case(target, kind, "float32")] * bool(target.capability))


def _check(bench: Bench, case: Case) -> Observation:
    from vllm_adapter_conformance.device_side import models
    from vllm_adapter_conformance.models import tiny

    seed, shape = bench.target.seed, shape_of(case)
    model = tiny.plain(shape, seed)
    given = tiny.padded(seed, left=True)
    seen = tiny.observed(
        bench, models.tokens, model=tiny.sent(shape, model), inputs=given, new=NEW
    )
    ours, want = seen["found"], models.greedy(model, given, NEW)
    if ours.shape != want.shape:
        raise Failure(f"tokens {tuple(want.shape)}", f"{tuple(ours.shape)}")
    width = given["input_ids"].shape[1]
    ties = 0
    for row in range(want.shape[0]):
        at = first_difference(ours[row], want[row])
        if at is None:
            continue
        real = int(given["attention_mask"][row].sum())
        gap = _gap(model, want[row, width - real : at])
        if not gap < TIE:
            raise Failure(
                f"row {row} to be {want[row, width:].tolist()}",
                f"{ours[row, width:].tolist()}, where the reference's best two logits are "
                f"{gap:.3g} apart at the first difference",
                detail=f"{shape_of(case)}; seed {seed}; device {bench.where}",
            )
        ties += 1
    return Observation(note=f"{want.shape[0]} rows of {NEW} tokens, {ties} parted at a near tie")


def first_difference(one: torch.Tensor, other: torch.Tensor) -> int | None:
    """The first place where two rows of tokens differ."""
    different = (one != other).nonzero()
    return int(different[0]) if different.numel() else None


def _gap(model: Any, tokens: torch.Tensor) -> float:
    """How far the best two logits behind these tokens are apart."""
    import torch

    with torch.no_grad():
        best = model(tokens[None]).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


for _kind, _name in (("llama", "Llama"), ("qwen3", "Qwen3")):
    rule(
        f"L3.{_kind}.generate",
        summary=f"a tiny {_name} generates the reference's greedy tokens in float32",
        why="What users see: transformers' own generation loop over unequal rows, with a KV cache "
        "that grows by a block on the way. A row may part from the reference only where the "
        "reference's best two logits are closer than 1e-4. If the logits of the same model are "
        "right (the rule that this one needs), look at what differs between steps: the plan, the "
        "block table, slots of a new block.",
        cases=_cases(_kind),
        needs=(f"L3.{_kind}.logits",),
        seconds=120.0,
    )(_check)
