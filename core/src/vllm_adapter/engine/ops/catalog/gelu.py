"""gelu and gelu_and_mul: x * Phi(x), alone and as the gate of a second half."""

from __future__ import annotations

from typing import Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name

GELU: Final = OpSpec(
    operator=OPERATORS["gelu"],
    schema="(Tensor x, bool tanh) -> Tensor",
    fake=lambda x, tanh: x.new_empty(x.shape),
    generic=generic.gelu,
    facts_of=lambda x, tanh: {"dtype": dtype_name(x), "hidden": x.shape[-1], "tanh": tanh},
    key_of=lambda x, tanh: (x.dtype, x.device, x.shape[-1], tanh),
)
GELU_AND_MUL: Final = OpSpec(
    operator=OPERATORS["gelu_and_mul"],
    schema="(Tensor x, bool tanh) -> Tensor",
    fake=lambda x, tanh: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)),
    generic=generic.gelu_and_mul,
    facts_of=lambda x, tanh: {"dtype": dtype_name(x), "hidden": x.shape[-1] // 2, "tanh": tanh},
    key_of=lambda x, tanh: (x.dtype, x.device, x.shape[-1], tanh),
)
