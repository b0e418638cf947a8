"""silu_and_mul: silu(first half) * second half."""

from __future__ import annotations

from typing import Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name

SPEC: Final = OpSpec(
    operator=OPERATORS["silu_and_mul"],
    schema="(Tensor x) -> Tensor",
    fake=lambda x: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)),
    generic=generic.silu_and_mul,
    facts_of=lambda x: {"dtype": dtype_name(x), "hidden": x.shape[-1] // 2},
    key_of=lambda x: (x.dtype, x.device, x.shape[-1]),
)
