"""L2: the least coverage that can run a model."""

from __future__ import annotations

from vllm_adapter.contract.operators import DTYPES
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, Observation, once, rule
from vllm_adapter_conformance.models.layers import LAYERS, layer_gap
from vllm_adapter_conformance.ops.cases import declared


@rule(
    "L2.coverage.core",
    summary="a decoder's layer, or an encoder's, is `full` throughout in one dtype",
    why="An adapter that declares nothing has nothing that could fail, and operators that share "
    "no dtype, head size or block size serve no model. A decoder's layer is linear, rms_norm, "
    "fused_add_rms_norm (rms_norm composes it), silu_and_mul, rotary_embedding, reshape_and_cache "
    "and paged_attention; an encoder's is linear with a bias, layer_norm, gelu, embedding and "
    "attention. Without one of them everything runs on core's portable code, and a certificate "
    "would promise a device that does not serve. Declare them as `full`, with a `run`, in one "
    "dtype; operators of core's own torch code may be named where the chip has nothing better.",
    cases=once,
)
def check(bench: Bench, case: Case) -> Observation:
    """Looks for a dtype in which all of a layer's operators can be bound for every phase."""
    capability = declared(bench.target)
    served, lacking = [], []
    for kind in LAYERS:
        gaps = {dtype: layer_gap(capability, kind, dtype) for dtype in DTYPES}
        served += [f"{kind} in {dtype}" for dtype, gap in gaps.items() if gap is None]
        lacking += [f"{kind} in {dtype}: {gap}" for dtype, gap in gaps.items()]
    if not served:
        raise Failure(
            "a layer declared throughout in one dtype", "none", detail="\n".join(lacking)
        )
    return Observation(note=", ".join(served))
