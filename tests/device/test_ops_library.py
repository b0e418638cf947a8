"""Overloads, the default of each operator, and direct calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from op_kernels import norm, other_norm

from vllm_adapter.engine.ops import library
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.errors import AdapterError, UnsupportedCase
from vllm_adapter.settings import Fallback, Settings
from vllm_adapter_conformance.device_side.tracing import compiled, dispatched

pytestmark = pytest.mark.device

SPEC = SPECS["rms_norm"]
ERROR = Settings(fallback=Fallback.ERROR)
RESERVED = ("default", "op", "overloads", "out", "torch", "is", "910b", "a-b", "Acme", "")


def norm_args(dtype=torch.float32, hidden=64):
    return torch.ones(2, hidden, dtype=dtype), torch.ones(hidden, dtype=dtype), 1e-6


def packet(*args):
    return torch.ops.vllm_adapter.rms_norm(*args)


@pytest.mark.parametrize("name", RESERVED)
def test_a_name_that_cannot_name_an_overload_is_refused(name):
    with pytest.raises(AdapterError) as error:
        library.overload(SPEC, name, norm, "CPU", "x:y")
    assert "rename the adapter" in error.value.hint


def test_a_second_function_under_a_key_is_an_error(use):
    name = use(rms_norm={"run": "norm"})
    case = OpCase.of("rms_norm", "cpu", {"dtype": "float32", "hidden": 64})
    first = bind(case, ERROR).run
    assert library.overload(SPEC, name, norm, "CPU", "op_kernels:norm") is first
    with pytest.raises(AdapterError, match="already runs op_kernels:norm on CPU") as error:
        library.overload(SPEC, name, other_norm, "CPU", "op_kernels:other_norm")
    assert '"variant"' in error.value.hint


def test_two_kernels_of_one_adapter_need_a_variant(use):
    limits = ({"hidden": [64]}, {"hidden": [65]})
    entries = [
        {"run": r, "limits": w} for r, w in zip(("norm", "other_norm"), limits, strict=True)
    ]
    cases = [OpCase.of("rms_norm", "cpu", {"dtype": "float32", "hidden": h}) for h in (64, 65)]
    use(rms_norm=entries)
    bind(cases[0], ERROR)
    with pytest.raises(AdapterError, match="already runs"):
        bind(cases[1], ERROR)
    PROVIDERS.clear()
    name = use(rms_norm=[entries[0], entries[1] | {"variant": "odd"}])
    runs = [bind(case, ERROR).run for case in cases]
    assert [str(run) for run in runs] == [
        f"vllm_adapter.rms_norm.{name}",
        f"vllm_adapter.rms_norm.{name}_odd",
    ]


def test_all_overloads_of_an_operator_have_one_schema(use):
    use(rms_norm={"run": "norm"})
    bind(OpCase.of("rms_norm", "cpu", {"dtype": "float32", "hidden": 64}), ERROR)
    for op in SPECS:
        found = getattr(torch.ops.vllm_adapter, op)
        schemas = [str(getattr(found, name)._schema) for name in found.overloads()]
        assert len({schema[schema.index("(") :] for schema in schemas}) == 1
        assert found.overloads()[0] == "default"


def test_a_process_that_registered_operators_ends_with_code_0(tmp_path):
    tests = Path(__file__).parents[1]
    script = (
        f"import sys; sys.path.insert(0, {str(tests)!r})\n"
        "from pathlib import Path\n"
        "from zoo import descriptor, run_rules, target_of\n"
        f"target = target_of('acme', descriptor({{}}), Path({str(tmp_path)!r}))\n"
        "found = run_rules(target, 'L2.determinism', 'L2.packet.default')\n"
        "import torch\n"
        "print(torch.ops.vllm_adapter.rms_norm.overloads())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['default', 'acme']"


def test_a_direct_call_runs_the_default_and_its_kernel_not_the_overload(use, calls, monkeypatch):
    monkeypatch.setenv("VA_FALLBACK", "error")
    use(rms_norm={"run": "norm"})
    bind(OpCase.of("rms_norm", "cpu", {"dtype": "float32", "hidden": 64}), ERROR)
    given = norm_args()
    with dispatched() as names:
        packet(*given)
    assert names[0] == "vllm_adapter.rms_norm.default"
    assert [n for n in names if n.startswith("vllm_adapter.")] == names[:1]
    assert calls == ["norm"]
    run, graphs = compiled(packet)
    run(*norm_args())
    assert graphs.operators() == ["vllm_adapter.rms_norm.default"]


def test_the_table_of_direct_calls_follows_the_adapters_in_use(use, calls, monkeypatch):
    monkeypatch.setenv("VA_FALLBACK", "error")
    with pytest.raises(UnsupportedCase):
        packet(*norm_args())
    first = use(rms_norm={"run": "norm"})
    packet(*norm_args())
    use(first, rms_norm={"run": "other_norm"})
    packet(*norm_args())
    PROVIDERS.clear()
    with pytest.raises(UnsupportedCase):
        packet(*norm_args())
    assert calls == ["norm", "other_norm"]


def test_the_key_of_a_direct_call_holds_its_facts(use, calls, monkeypatch):
    monkeypatch.setenv("VA_FALLBACK", "error")
    use(rms_norm={"run": "norm", "limits": {"hidden": [64]}})
    packet(*norm_args())
    for refused in (norm_args(hidden=65), norm_args(torch.float16)):
        with pytest.raises(UnsupportedCase):
            packet(*refused)
    packet(*norm_args())
    assert calls == ["norm", "norm"]


def test_a_direct_call_of_a_kernel_with_a_plan_is_refused(use, monkeypatch):
    monkeypatch.setenv("VA_FALLBACK", "error")
    use(paged_attention={"run": "general", "plan": "plan"})
    query = torch.randn(1, 1, 32)
    cache = torch.randn(1, 16, 1, 32)
    lengths = torch.tensor([1], dtype=torch.int32)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(UnsupportedCase, match="a direct call has no load and no step"):
        torch.ops.vllm_adapter.paged_attention(
            query, cache, cache, lengths[None] * 0, lengths, starts, 1.0, 0, 0.0, 0
        )


def test_a_direct_call_of_a_kernel_with_prepared_weights_is_refused(use, monkeypatch):
    monkeypatch.setenv("VA_FALLBACK", "error")
    use(linear={"run": "packed_linear", "prepare_weights": "pack"})
    with pytest.raises(UnsupportedCase, match="a direct call has no load and no step"):
        torch.ops.vllm_adapter.linear(torch.ones(2, 4), torch.ones(3, 4), None, 3)


def test_a_refusal_while_tracing_keeps_its_text(use, monkeypatch):
    monkeypatch.setenv("VA_FALLBACK", "error")
    use(rms_norm={"run": "norm"})
    run, _ = compiled(packet)
    with pytest.raises(RuntimeError) as error:
        run(*norm_args(torch.float16))
    for part in ("UnsupportedCase", "nothing runs rms_norm", "/operators/rms_norm/dtypes"):
        assert part in str(error.value)
