"""L2: each operator is right wherever its descriptor says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Cases, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import declared, operator_cases
from vllm_adapter_conformance.ops.space import drawn_cases

_EAGER: Final = (
    "transformers' eager attention rounds them to the dtype, before the scale and after it, which "
    "is beyond the budget in bfloat16, and infinite in float16 above 65,504; flash, paged and "
    "torch's fused kernels do not."
)
_BREAKS: Final = {
    "linear": "Every projection of a model is a linear: each token is computed from wrong "
    "activations, and the text is noise or slowly drifts.",
    "quantized_linear": "A projection with weights in fewer bits is wrong: a scale of another "
    "row, halves of a byte in the other order, or x not rounded row by row. Text degrades as if "
    "the form itself were too coarse.",
    "rms_norm": "Activations of every layer are scaled wrongly. A wrong epsilon shows only where "
    "the variance is small, which is where quantised models live.",
    "fused_add_rms_norm": "The residual stream is carried on wrongly, so that errors grow with "
    "each layer.",
    "silu_and_mul": "The feed-forward half of every layer is wrong. Large gates must saturate "
    "and not become NaN.",
    "layer_norm": "Encoders normalise twice a layer: embeddings of texts point in a wrong "
    "direction, and nearest neighbours are others.",
    "gelu": "The feed-forward half of every encoder layer is wrong, most where inputs are "
    "negative.",
    "gelu_and_mul": "The feed-forward half of every layer of a Gemma-like model is wrong.",
    "embedding": "A token becomes another token before the first layer.",
    "rotary_embedding": "Tokens lose their order: short prompts look fine, long ones fall apart.",
    "reshape_and_cache": "Keys and values land in slots of other tokens or sequences: one user "
    "reads another's context.",
    "paged_attention": "A token attends to what it must not see (the future, a freed block, "
    "another sequence) or misses what it must. Scores are asked for in float32: " + _EAGER,
    "attention": "A token of an encoder sees another text of the batch, or not all of its own. "
    "Scores are asked for in float32: " + _EAGER,
}
_MEND: Final = (
    "Cases with a few plain samples come first. Drawn ones follow, which span facts, sizes, "
    "layouts, values and what was called before: every two of them meet, and values at which "
    "kernels break are visited, with another seed in each run. "
    "The failure names the worst element, both values, the sample and the facts of the case. "
    "Compare there with the float64 reference in the operator's file in "
    "vllm_adapter_conformance.ops.trials. If the kernel cannot serve the case, narrow `dtypes` or "
    "`limits` of its entry: an undeclared case is refused, which is honest. The error budget is "
    "the suite's: rounding of the result and one intermediate to the dtype, accumulation in "
    "float32. A kernel may compile at its first call: a case that is over its limit is tried once "
    "more with 300 s."
)


def _cases(op: str) -> Cases:
    def cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
        if target.capability:
            yield from operator_cases(declared(target), op)
            yield from drawn_cases(declared(target), op, target.seed, target.budget)

    return cases


def _check(bench: Bench, case: Case) -> Observation:
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.ops import runs

    if "draws" in case.params:
        return _check_drawn(bench, case)
    op, facts = case.params["op"], dict(case.params["facts"])
    binding = runs.bind_declared(bench, op, facts)
    shares = [
        runs.judge(bench, runs.bound_call(bench, binding, op, sample), binding, facts)
        for sample in runs.samples(SPECS[op], facts, bench)
    ]
    return Observation(max(shares), f"{len(shares)} samples on {', '.join(binding.providers)}")


def _check_drawn(bench: Bench, case: Case) -> Observation:
    from vllm_adapter_conformance.ops.history import History

    op, worst = case.params["op"], 0.0
    for number, drawn in enumerate(case.params["draws"]):
        seed = f"{bench.target.seed}/{case.id}/{number}"
        history = History(bench, op, drawn["facts"], drawn["choice"], seed, drawn["between"])
        worst = max(worst, history.run())
    return Observation(worst, f"{len(case.params['draws'])} draws")


for _op in OPERATORS:
    rule(
        f"L2.{_op}.correct",
        summary=f"{_op} equals its float64 reference in every declared case",
        why=f"{_BREAKS[_op]} {_MEND}",
        cases=_cases(_op),
        needs=("L1.copy.round_trip", "L2.library.work"),
    )(_check)
