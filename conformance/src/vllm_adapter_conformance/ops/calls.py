"""One call of an operator as plain data: drawn here, for `device_side.calls` to make there.

Imports torch: rules import it inside their checks only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import torch

from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.step import make_step
from vllm_adapter_conformance.device_side.calls import PlainCall
from vllm_adapter_conformance.ops.cases import Facts
from vllm_adapter_conformance.ops.dimensions import SAMPLED
from vllm_adapter_conformance.ops.members import plain
from vllm_adapter_conformance.ops.trial import Sample
from vllm_adapter_conformance.ops.trials import TRIALS

_TIMES: Final = 3


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


def sized(op: str, facts: Facts, sizes: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    """A sample of these sizes; what they leave open is plain. Names that an operator lacks do
    not matter."""
    given = {name: value for name, value in sizes.items() if name in SAMPLED[op]}
    return TRIALS[op].draw(facts, {**plain(op), **given}, seed, contents)


def host_cpu_s(call: PlainCall) -> float:
    """CPU seconds of core's portable code for the same call on the host, in float32 and by one
    thread; the least."""
    spec = SPECS[call["op"]]
    args = [
        one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for one in call["args"]
    ]
    if spec.operator.planned:
        step = make_step(**call["step"], device="cpu")
        args[-1] = generic.plan_paged_attention(step, None)
    least, threads = float("inf"), torch.get_num_threads()
    torch.set_num_threads(1)  # several would count their waiting for each other
    try:
        for _ in range(_TIMES):
            begin = time.process_time()
            spec.generic(*args)
            least = min(least, time.process_time() - begin)
    finally:
        torch.set_num_threads(threads)
    return least
