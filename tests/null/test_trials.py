"""Every operator of core has a trial in the suite, and no trial is of another."""

import subprocess
import sys

import pytest
import torch

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter_conformance.ops.space import drawn
from vllm_adapter_conformance.ops.trials import TRIALS

pytestmark = pytest.mark.null


def first_facts(op):
    operator = OPERATORS[op]
    facts = {name: operator.facts[name].samples[0] for name in operator.bind_facts}
    return facts | {"dtype": "float32"}


def upcast(argument):
    is_float = isinstance(argument, torch.Tensor) and argument.is_floating_point()
    return argument.double() if is_float else argument


def test_each_operator_has_one_trial():
    assert list(TRIALS) == list(SPECS)
    assert set(TRIALS) == set(OPERATORS)


@pytest.mark.parametrize("op", OPERATORS)
def test_samples_are_read_by_core_as_the_case_they_were_made_for(op):
    facts, spec = first_facts(op), SPECS[op]
    samples = TRIALS[op].samples(facts, 0)
    assert samples and len({sample.name for sample in samples}) == len(samples)
    for sample in samples:
        assert spec.facts_of(*sample.build(torch.Tensor.clone)) == facts
        assert (sample.step is not None) == spec.operator.planned


@pytest.mark.parametrize("op", OPERATORS)
def test_a_reference_gives_one_expectation_a_result_and_a_written_argument(op):
    facts, spec = first_facts(op), SPECS[op]
    for sample in TRIALS[op].samples(facts, 0):
        arguments = sample.build(torch.Tensor.clone)
        result = spec.fake(*arguments)
        shapes = [result] if isinstance(result, torch.Tensor) else list(result or ())
        shapes += [arguments[i] for i in spec.mutates]
        wanted = TRIALS[op].reference(*map(upcast, arguments))
        assert [want.value.shape for want in wanted] == [tensor.shape for tensor in shapes]
        assert all(want.value.dtype == torch.float64 for want in wanted)


@pytest.mark.parametrize("op", OPERATORS)
def test_drawn_samples_are_read_by_core_as_the_facts_that_were_drawn(op):
    spec, trial = SPECS[op], TRIALS[op]
    for number, point in enumerate(drawn(everything(op), op, 1, 3.0).draws[:25]):
        facts, seed = dict(point.facts), f"1/{number}"
        sample, other = (trial.draw(facts, point.choice, seed, n) for n in (0, 1))
        one, again, changed = (made.build(torch.Tensor.clone) for made in (sample, sample, other))
        assert spec.facts_of(*one) == facts, point
        assert (sample.step is not None) == spec.operator.planned
        for mine, same, new in zip(one, again, changed, strict=True):
            if isinstance(mine, torch.Tensor):
                assert torch.equal(bits(mine), bits(same))
                assert mine.shape == new.shape and mine.stride() == new.stride()


def everything(op):
    """A descriptor that declares every case of an operator."""
    facts = OPERATORS[op].facts
    entry = {"support": "full", "dtypes": ["float32", "float16", "bfloat16"], "run": "acme:kernel"}
    limits = {name: list(fact.samples) for name, fact in facts.items() if fact.off is not None}
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1"},
        "operators": {op: entry | ({"limits": limits} if limits else {})},
    }
    return parse_capability(raw, "acme.json")


def bits(tensor):
    # A view of one element is contiguous to torch, whatever its stride, and has no bytes' view.
    return tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def test_core_binds_and_runs_without_the_suite():
    script = (
        "import sys\n"
        "sys.modules['vllm_adapter_conformance'] = None\n"
        "import vllm_adapter.engine.ops.bind, vllm_adapter.engine.device\n"
        "from vllm_adapter.engine.ops.catalog import SPECS\n"
        "print(len(SPECS))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == str(len(OPERATORS)), done.stderr
