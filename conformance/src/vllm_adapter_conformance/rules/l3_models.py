"""L3: whole tiny models through the adapter's operators equal transformers on the host."""

from __future__ import annotations

from typing import Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Cases, Failure, Observation, rule
from vllm_adapter_conformance.models.shape import VOCABULARY, model_cases, shape_of

STEPS: Final = 4
"""Decode steps behind a prefill."""
_NAMES: Final = {"llama": "Llama", "qwen3": "Qwen3"}
_MEND: Final = (
    "Every operator may be right in the cases of L2 and the model still wrong: look for what an "
    "operator keeps between calls (buffers, tables, a plan of another step), for an argument that "
    "it takes from elsewhere than its arguments (a scale, a rope table, a cache), and for sizes "
    "that L2 did not try. The truth is the same model in float64 on the host; the reference is "
    "plain transformers there in the case's dtype, and ours may be four times as far from the "
    "truth, as the root of the mean square over all logits."
)


def _cases(kind: str) -> Cases:
    return lambda target: model_cases(target, kind)


def _check_decoder(bench: Bench, case: Case) -> Observation:
    from vllm_adapter_conformance.device_side import models
    from vllm_adapter_conformance.models import tiny
    from vllm_adapter_conformance.ops.draw import RandomTensors

    seed, shape = bench.target.seed, shape_of(case)
    model = tiny.plain(shape, seed)
    given = tiny.padded(seed, left=True)
    more = RandomTensors(seed, "more").integers(3, VOCABULARY, len(tiny.LENGTHS), STEPS)
    seen = tiny.observed(
        bench, models.decoder_logits, model=tiny.sent(shape, model), inputs=given, more=more
    )
    reference = models.logits(model, given, more)
    truth = models.logits(model.double(), given, more)
    return _judged(tiny.share(seen["found"], reference, truth), "logits", case, bench)


for _kind, _name in _NAMES.items():
    rule(
        f"L3.{_kind}.logits",
        summary=f"logits of a tiny {_name} are as close to the truth as the host's own",
        why="A prefill of unequal rows and several decode steps, in every dtype that is declared; "
        "a wrong rope table, scale, window or KV cache shows here. " + _MEND,
        cases=_cases(_kind),
        needs=("L2.coverage.core", "L2.kv_cache"),
        seconds=120.0,
    )(_check_decoder)


@rule(
    "L3.bert.hidden",
    summary="hidden states of a tiny BERT are as close to the truth as the host's own",
    why="Embedding models are encoders: unequal rows are packed, and each must see all of itself "
    "and nothing of its neighbours. " + _MEND,
    cases=_cases("bert"),
    needs=("L2.coverage.core",),
    seconds=120.0,
)
def check_bert(bench: Bench, case: Case) -> Observation:
    """One batch of unequal rows."""
    from vllm_adapter_conformance.device_side import models
    from vllm_adapter_conformance.models import tiny

    seed, shape = bench.target.seed, shape_of(case)
    model = tiny.plain(shape, seed)
    given = tiny.padded(seed, left=False)
    seen = tiny.observed(bench, models.encoder_states, model=tiny.sent(shape, model), inputs=given)
    reference = models.hidden_states(model, given)
    truth = models.hidden_states(model.double(), given)
    return _judged(tiny.share(seen["found"], reference, truth), "hidden states", case, bench)


def _judged(share: float, what: str, case: Case, bench: Bench) -> Observation:
    if share > 1:
        raise Failure(
            f"{what} within four times the reference's own distance from float64",
            f"{share:.3g} of that",
            share=share,
            detail=f"{shape_of(case)}; seed {bench.target.seed}; device {bench.where}",
        )
    return Observation(share)
