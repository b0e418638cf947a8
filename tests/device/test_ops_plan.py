"""Planned operators: what changes between steps is behind a handle that does not."""

from __future__ import annotations

import pytest
import torch
from op_kernels import CALLS

from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.engine.ops.step import make_step
from vllm_adapter.settings import Fallback, Settings
from vllm_adapter_conformance.device_side.tracing import compiled

pytestmark = pytest.mark.device

SETTINGS = Settings(fallback=Fallback.ERROR)
BLOCK, HEADS, SIZE = 16, 2, 32
CASE = OpCase.of(
    "paged_attention",
    "cpu",
    {
        "dtype": "float32",
        "head_size": SIZE,
        "block_size": BLOCK,
        "gqa_ratio": 1,
        "window": 0,
        "soft_cap": 0.0,
        "kv_dtype": "auto",
    },
)
BY_PHASE = [
    {"run": "decode", "limits": {"phase": ["decode"]}, "variant": "short"},
    {"run": "general", "plan": "plan"},
]
# Of one shape each, so that only the phase differs between them.
STEPS = {
    "decode": ((1, 1, 1, 1), (2, 3, 9, 4)),
    "prefill": ((1, 1, 1, 1), (1, 1, 1, 1)),
    "mixed": ((2, 1, 1, 0), (2, 3, 1, 5)),
}


class Owner:
    """Stands for a KV cache."""


def step_of(phase):
    return make_step(*STEPS[phase], [[3], [0], [2], [1]], BLOCK)


def arguments(step, handle):
    torch.manual_seed(0)
    query = torch.randn(4, HEADS, SIZE)
    keys, values = torch.randn(2, 4, BLOCK, HEADS, SIZE).unbind()
    tables = (step.block_table, step.seq_lens, step.query_start_loc)
    return query, keys, values, *tables, SIZE**-0.5, 0, 0.0, handle


@pytest.mark.parametrize("phase", STEPS)
def test_the_winner_of_the_phase_runs_behind_selected(use, calls, phase):
    name = use(paged_attention=BY_PHASE)
    binding = bind(CASE, SETTINGS)
    assert binding.run == torch.ops.vllm_adapter.paged_attention.selected
    assert binding.providers == (f"{name} (short)", name)
    step = step_of(phase)
    assert step.phase == phase
    binding.plan(step)
    found = binding.run(*arguments(step, binding.handle))
    assert calls == (["decode"] if phase == "decode" else ["plan", "general"])
    assert torch.equal(found, generic.paged_attention(*arguments(step, 0)[:-1], None))


def test_selected_before_any_plan_is_an_error(use):
    use(paged_attention=BY_PHASE)
    binding = bind(CASE, SETTINGS, Owner())
    with pytest.raises(RuntimeError, match=r"before plan\(step\)"):
        binding.run(*arguments(step_of("decode"), binding.handle))


@pytest.mark.parametrize("entries", [BY_PHASE, {"run": "general", "plan": "plan"}])
def test_one_compile_over_all_phases(use, calls, entries):
    use(paged_attention=entries)
    binding = bind(CASE, SETTINGS)
    handle = binding.handle

    def layer(query, keys, values, table, lengths, starts):
        options = (SIZE**-0.5, 0, 0.0, handle)
        return binding.run(query * 2, keys, values, table, lengths, starts, *options)

    run, graphs = compiled(layer)
    for phase in (*STEPS, *STEPS):
        step = step_of(phase)
        binding.plan(step)
        given = arguments(step, handle)[:6]
        want = generic.paged_attention(given[0] * 2, *arguments(step, 0)[1:-1], None)
        assert torch.equal(run(*given), want)
    assert len(graphs.modules) == 1
    assert binding.handle == handle


def test_a_plan_serves_all_layers_of_a_step(use, calls):
    use(paged_attention={"run": "general", "plan": "plan"})
    cache = Owner()
    layers = [bind(CASE, SETTINGS, cache) for _ in range(3)]
    for phase in STEPS:
        layers[0].plan(step_of(phase))
        for layer in layers:
            layer.run(*arguments(step_of(phase), layer.handle))
    assert CALLS.count("plan") == len(STEPS)
    assert CALLS.count("general") == len(STEPS) * len(layers)


def test_each_winner_gets_back_its_own_state(use, calls):
    decode = {"run": "stated_decode", "plan": "plan_decode", "variant": "short"}
    use(
        paged_attention=[
            decode | {"limits": {"phase": ["decode"]}},
            {"run": "stated", "plan": "plan_general"},
        ]
    )
    binding = bind(CASE, SETTINGS)
    for phase in ("decode", "mixed", "decode"):
        binding.plan(step_of(phase))
        binding.run(*arguments(step_of(phase), binding.handle))
    assert calls == [
        "plan_decode after None",
        "runs a decode",
        "plan_general after None",
        "runs another phase",
        "plan_decode after a decode",
        "runs a decode",
    ]
