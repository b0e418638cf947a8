"""bind: who wins, who is refused and why."""

from __future__ import annotations

import logging

import pytest
import torch

from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.bind import bind, resolved
from vllm_adapter.engine.ops.providers import PROVIDERS, load
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.errors import AdapterError, InputError, SettingError, UnsupportedCase
from vllm_adapter.settings import Fallback, Settings

pytestmark = pytest.mark.device

ERROR, WARN, ALLOW = (Settings(fallback=policy) for policy in Fallback)
ATTENTION = {
    "dtype": "float32",
    "head_size": 32,
    "block_size": 16,
    "gqa_ratio": 1,
    "window": 0,
    "soft_cap": 0.0,
    "kv_dtype": "auto",
}


class Owner:
    """Stands for a KV cache."""


def norm_case(dtype="float32", hidden=64):
    return OpCase.of("rms_norm", "cpu", {"dtype": dtype, "hidden": hidden})


def attention_case(**facts):
    return OpCase.of("paged_attention", "cpu", ATTENTION | facts)


def forced(ops, fallback=Fallback.ERROR):
    return Settings(fallback=fallback, ops=ops)


def test_rank_is_override_device_kernels_generic(use):
    # The kernels come first in time, and their rank is the lower one all the same.
    kernels = use(kernels_only=True, rms_norm={"run": "other_norm"})
    device = use(rms_norm={"run": "norm"})

    def order(settings):
        return [v.candidate.provider for v in resolved(norm_case(), settings).verdicts]

    assert order(ALLOW) == [device, kernels, "torch"]
    assert bind(norm_case(), ALLOW).providers == (device,)
    assert order(forced({"rms_norm": kernels})) == [kernels, device, "torch"]
    assert bind(norm_case(), forced({"rms_norm": kernels})).providers == (kernels,)
    assert bind(norm_case(), forced({"rms_norm": "torch"})).providers == ("torch",)


def test_who_does_not_accept_is_passed_over_and_kept(use):
    use(rms_norm={"run": "norm", "limits": {"hidden": {"multiple_of": 128}}})
    kernels = use(kernels_only=True, rms_norm={"run": "other_norm"})
    binding = bind(norm_case(), ERROR)
    assert binding.providers == (kernels,)
    assert "/operators/rms_norm/limits/hidden" in str(binding.verdicts[0].decision)
    assert len(binding.verdicts) == 3


def test_inside_an_adapter_the_order_of_its_entries_decides(use):
    name = use(rms_norm=[{"run": "norm"}, {"run": "other_norm", "variant": "second"}])
    assert bind(norm_case(), ERROR).providers == (name,)


def test_va_ops_of_an_operator_that_there_is_not_lists_those_there_are(use):
    use(rms_norm={"run": "norm"})
    with pytest.raises(InputError) as error:
        bind(norm_case(), forced({"rmsnorm": "torch"}))
    assert "did you mean rms_norm" in error.value.hint and "paged_attention" in error.value.hint


def test_va_ops_of_a_provider_that_there_is_not_lists_those_there_are(use):
    name = use(rms_norm={"run": "norm"})
    with pytest.raises(SettingError) as error:
        bind(norm_case(), forced({"rms_norm": "acmee"}))
    assert error.value.hint == f"use one of: {name}, torch"


def test_va_ops_of_a_provider_that_refuses_is_a_refusal_under_any_policy(use):
    name = use(rms_norm={"run": "norm"})
    for policy in Fallback:
        with pytest.raises(UnsupportedCase, match=f"VA_OPS asks for {name}"):
            bind(norm_case("float16"), forced({"rms_norm": name}, policy))


def test_policy_error_refuses_with_the_pointer(use):
    name = use(rms_norm={"run": "norm"})
    with pytest.raises(UnsupportedCase) as error:
        bind(norm_case("float16"), ERROR)
    assert "/operators/rms_norm/dtypes: got 'float16', need ['float32']" in str(error.value)
    assert f"asked: {name}, torch; `vllm-adapter explain {name} rms_norm`" in error.value.hint


@pytest.fixture
def warnings(caplog, fresh):
    """warnings() gives the sentences logged so far, in a process that has said none before."""
    caplog.set_level(logging.WARNING, "vllm_adapter.ops")
    return lambda: [record.getMessage() for record in caplog.records]


def test_policy_warn_says_each_reason_once(use, warnings):
    use(rms_norm={"run": "norm", "limits": {"hidden": {"multiple_of": 64}}})
    for _ in range(2):
        assert bind(norm_case("float16"), WARN).providers == ("torch",)
        bind(norm_case("float16", 128), WARN)
        bind(norm_case("bfloat16"), WARN)
        bind(norm_case(hidden=65), WARN)
        PROVIDERS.generation += 1  # as if all were bound anew
    found = warnings()
    assert len(found) == 3
    assert "dtype not declared (/operators/rms_norm/dtypes: got 'float16'" in found[0]
    assert "dtype not declared (/operators/rms_norm/dtypes: got 'bfloat16'" in found[1]
    assert "hidden outside its limits (/operators/rms_norm/limits/hidden: got 65" in found[2]


def test_policy_warn_names_the_phase_that_falls_back(use, warnings):
    name = use(paged_attention={"run": "decode", "limits": {"phase": ["decode"]}})
    assert bind(attention_case(), WARN).providers == (name, "torch")
    prefill, mixed = warnings()
    assert "at phase=prefill runs on core's portable" in prefill
    assert "/operators/paged_attention/limits/phase: got 'prefill'" in prefill
    assert "/operators/paged_attention/limits/phase: got 'mixed'" in mixed


def test_policy_warn_says_that_nobody_declares_it_only_where_nobody_does(use, warnings):
    use(linear={"run": "packed_linear", "prepare_weights": "pack"})
    bind(norm_case(), WARN)
    x, weight = torch.randn(2, 4), torch.randn(3, 4)
    torch.ops.vllm_adapter.linear(x, weight, None, 3)
    PROVIDERS.clear()
    bind(norm_case(), WARN)
    not_declared, direct, nobody = warnings()
    assert "rms_norm is not declared (/operators/rms_norm: got None" in not_declared
    assert "a direct call has no load and no step" in direct
    assert "no adapter is in use there" in nobody


def test_policy_allow_is_silent(use, caplog):
    use(rms_norm={"run": "norm"})
    with caplog.at_level(logging.DEBUG, "vllm_adapter.ops"):
        assert bind(norm_case("float16"), ALLOW).providers == ("torch",)
    assert not caplog.records


@pytest.mark.parametrize("form", ["kernel", "torch"])
def test_a_vendor_with_only_rms_norm_serves_the_fused_one(use, calls, form):
    name = use(rms_norm={"run": "norm", "form": form})
    case = OpCase.of("fused_add_rms_norm", "cpu", {"dtype": "float32", "hidden": 64})
    binding = bind(case, ERROR)
    assert binding.providers == (f"{name} (composed)",)
    x, residual, weight = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64)
    found = binding.run(x, residual, weight, 1e-6)
    assert calls == ["norm"]
    for got, want in zip(
        found, generic.fused_add_rms_norm(x, residual, weight, 1e-6), strict=True
    ):
        assert torch.equal(got, want)


def test_its_own_fused_kernel_comes_before_the_composed_one(use, calls):
    name = use(rms_norm={"run": "norm"}, fused_add_rms_norm={"run": "fused_norm"})
    case = OpCase.of("fused_add_rms_norm", "cpu", {"dtype": "float32", "hidden": 64})
    binding = bind(case, ERROR)
    assert binding.providers == (name,)
    binding.run(torch.randn(3, 64), torch.randn(3, 64), torch.randn(64), 1e-6)
    assert calls == ["fused_norm"]


def test_a_form_decides_between_the_function_and_an_overload(use):
    use(rms_norm={"run": "norm", "form": "torch"})
    assert getattr(bind(norm_case(), ERROR).run, "__name__", "") == "norm"
    name = use(rms_norm={"run": "norm"})
    assert bind(norm_case(), forced({"rms_norm": name})).run == getattr(
        torch.ops.vllm_adapter.rms_norm, name
    )


def test_an_opaque_operator_is_behind_an_overload_in_any_form(use):
    name = use(paged_attention={"run": "general", "form": "torch"})
    run = bind(attention_case(), ERROR).run
    assert run == getattr(torch.ops.vllm_adapter.paged_attention, name)


def test_prepared_weights_may_have_another_shape(use, calls):
    use(linear={"run": "packed_linear", "prepare_weights": "pack"})
    facts = {"dtype": "float32", "in_features": 4, "out_features": 3, "bias": False}
    binding = bind(OpCase.of("linear", "cpu", facts), ERROR)
    x, weight = torch.randn(2, 4), torch.randn(3, 4)
    packed = binding.prepare_weights(weight)
    assert packed.shape == (12,)
    assert torch.equal(binding.run(x, packed, None, 3), generic.linear(x, weight, None, 3))
    torch.library.opcheck(binding.run, (x, packed, None, 3))


def test_a_phase_that_nobody_serves_is_a_refusal_that_names_it(use):
    use(paged_attention={"run": "decode", "limits": {"phase": ["decode"]}})
    with pytest.raises(UnsupportedCase) as error:
        bind(attention_case(), ERROR)
    assert "/operators/paged_attention/limits/phase: got 'prefill'" in str(error.value)


def test_equal_cases_of_one_cache_share_a_binding_and_its_handle(use):
    use(paged_attention={"run": "general", "plan": "plan"})
    one, other = Owner(), Owner()
    first = bind(attention_case(), ERROR, one)
    assert bind(attention_case(), ERROR, one) is first
    assert bind(attention_case(), ERROR, other).handle != first.handle
    assert bind(attention_case(head_size=64), ERROR, one).handle != first.handle
    PROVIDERS.clear()
    with pytest.raises(UnsupportedCase):
        bind(attention_case(), ERROR, one)


@pytest.mark.parametrize(
    "dotted", ["math:pi", "sys:path", "os:name", "os:path", "sys:flags.debug"]
)
def test_what_is_no_function_names_the_adapter_and_the_path(dotted):
    with pytest.raises(AdapterError, match="no function but of type") as caught:
        load(dotted, "acme")
    assert caught.value.message.startswith(f"adapter acme names {dotted}, which is no function")
    assert len(caught.value.message) < 200
