"""Every operator of core has a trial in the suite, and no trial is of another."""

import subprocess
import sys

import pytest
import torch

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.engine.ops.catalog import SPECS
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
