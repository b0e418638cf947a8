"""One call of an operator as plain data: drawn here, made where the device is.

Imports torch: rules import it inside their checks only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vllm_adapter_conformance.ops.cases import Facts
from vllm_adapter_conformance.ops.dimensions import SAMPLED
from vllm_adapter_conformance.ops.members import plain
from vllm_adapter_conformance.ops.trial import Sample
from vllm_adapter_conformance.ops.trials import TRIALS

PlainCall = Mapping[str, Any]
"""`op`, `facts`, `args` (host tensors and numbers) and `step` (lengths and blocks, or None)."""


def plain_call(op: str, facts: Facts, sample: Sample) -> PlainCall:
    """A sample as data that another process can be given."""
    step = sample.step(torch.device("cpu")) if sample.step else None
    return {
        "op": op,
        "facts": dict(facts),
        "args": list(sample.build(torch.Tensor.clone)),
        "step": step
        and {
            "query_lens": step.query_lens,
            "context_lens": step.context_lens,
            "block_table": step.block_table.tolist(),
            "block_size": step.block_size,
        },
    }


def sized(op: str, facts: Facts, sizes: Mapping[str, Any], seed: str) -> Sample:
    """A sample of these sizes; what they leave open is plain. Names that an operator lacks do
    not matter."""
    given = {name: value for name, value in sizes.items() if name in SAMPLED[op]}
    return TRIALS[op].draw(facts, {**plain(op), **given}, seed)
