"""L3: greedy tokens of whole tiny models equal those of the reference, but for near ties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.operators import DTYPES
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import (
    Case,
    Cases,
    Failure,
    NotDeclaredCase,
    Observation,
    rule,
)
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import model_case, shape_of

if TYPE_CHECKING:
    import torch

NEW: Final = 20
"""Tokens generated a row: past a block's end for some."""
TIE: Final = 1e-4
"""Logits of the reference that are closer than this may change places."""
TIMES: Final = 8.0
"""In low dtypes a token may be behind the best by this many times the reference's own error: two
logits may be off, each by four times as much as the reference's."""


def _cases(kind: str) -> Cases:
    def cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
        """Of the first dtype that is declared: float32 where it is."""
        first = ""
        for dtype in DTYPES if target.capability else ():
            found = model_case(target, kind, dtype)
            if first and isinstance(found, Case):
                found = NotDeclaredCase(dtype, "/operators", f"tokens are compared in {first}")
            elif isinstance(found, Case):
                first = dtype
            yield found

    return cases


def _check(bench: Bench, case: Case) -> Observation:
    from vllm_adapter_conformance.device_side import models
    from vllm_adapter_conformance.models import tiny

    if case.params["dtype"] != "float32":
        return _check_low(bench, case)
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


def _check_low(bench: Bench, case: Case) -> Observation:
    """In a low dtype the reference's own tokens mean little: each of ours must be near its best.

    The same rows go through the same model in float64; a token of ours may be behind the best
    one there by as much as the reference in that dtype is off at most, several times.
    """
    import torch

    from vllm_adapter_conformance.device_side import models
    from vllm_adapter_conformance.models import tiny

    seed, shape = bench.target.seed, shape_of(case)
    model = tiny.plain(shape, seed)
    given = tiny.padded(seed, left=True)
    seen = tiny.observed(
        bench, models.tokens, model=tiny.sent(shape, model), inputs=given, new=NEW
    )
    ours: torch.Tensor = seen["found"]
    width = given["input_ids"].shape[1]
    more = torch.ones(ours.shape[0], ours.shape[1] - width, dtype=torch.int64)
    whole = {"input_ids": ours, "attention_mask": torch.cat([given["attention_mask"], more], 1)}
    with torch.no_grad():
        reference = model(**whole).logits[:, width - 1 : -1].double()
        truth = model.double()(**whole).logits[:, width - 1 : -1]
    bound = TIMES * float((reference - truth).abs().max())
    chosen = truth.gather(-1, ours[:, width:, None]).squeeze(-1)
    behind = truth.max(-1).values - chosen
    if not float(behind.max()) <= bound:
        row, step = divmod(int(behind.argmax()), behind.shape[1])
        raise Failure(
            f"token {step} of row {row} within {bound:.3g} of the best logit in float64",
            f"{float(behind.max()):.3g} behind it",
            share=float(behind.max()) / bound if bound else None,
            detail=f"{shape}; seed {seed}; device {bench.where}",
        )
    share = float(behind.max()) / bound if bound else 0.0
    return Observation(share, f"{ours.shape[0]} rows of {NEW} tokens in {case.params['dtype']}")


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
        summary=f"a tiny {_name} generates the reference's greedy tokens, in float32 if declared",
        why="What users see: transformers' own generation loop over unequal rows, with a KV cache "
        "that grows by a block on the way. A row may part from the reference only where the "
        "reference's best two logits are closer than 1e-4. A chip without float32 is tried in its "
        "first dtype: every token must be as good, by the same model in float64, as that dtype's "
        "rounding allows. If the logits of the same model are "
        "right (the rule that this one needs), look at what differs between steps: the plan, the "
        "block table, slots of a new block.",
        cases=_cases(_kind),
        needs=(f"L3.{_kind}.logits",),
        seconds=120.0,
    )(_check)
