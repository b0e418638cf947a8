"""Weights in fewer bits: what is stored, who decides, and what a model loses by it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import tiny

from vllm_adapter import (
    Generator,
    InputError,
    SamplingParams,
    UnsupportedModel,
    adapt,
    generic,
    open_device,
    unadapt,
)
from vllm_adapter.contract.operators import SCHEMES
from vllm_adapter.engine.integrations.quantized import QuantizedLinear, Quantizer
from vllm_adapter.engine.integrations.transformers.accuracy import TEXT, perplexity
from vllm_adapter.engine.ops.quantization import quantize_weight

FP8 = {"native_fp8": True, "fp8_flavour": "e4m3fn"}


@given(st.sampled_from(SCHEMES), st.integers(1, 70), st.integers(1, 9), st.integers(0, 2**31))
def test_a_weight_is_rounded_to_the_nearest(scheme, width, rows, seed):
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    weight[0] *= 1e-3
    found = quantize_weight(weight, scheme)
    error = (found.dequantized() - weight).abs()
    if scheme.startswith("float8"):
        # Half a step of three bits, or of the smallest numbers.
        allowed = weight.abs() / 16 + found.scale * 2.0**-10
    elif scheme == "int4":
        allowed = found.scale.repeat_interleave(32, 1)[:, :width] / 2
    else:
        allowed = found.scale.expand_as(weight) / 2
    assert bool((error <= allowed * 1.001 + 1e-7).all())


@given(st.sampled_from(SCHEMES), st.integers(1, 70), st.integers(0, 4), st.integers(0, 2**31))
def test_a_product_is_that_of_what_the_values_stand_for(scheme, width, rows, seed):
    random = torch.Generator().manual_seed(seed)
    found = quantize_weight(torch.randn(5, width, generator=random), scheme)
    x, bias = torch.randn(rows, width, generator=random), torch.randn(5, generator=random)
    parts = found.values, found.scale, found.zero
    got = generic.quantized_linear(x, *parts, bias, 5, scheme)
    wide = found.dequantized().double()
    wanted = x.double() @ wide.T + bias
    # Rows of x are rounded to the float as well.
    size = (x.double().abs() @ wide.abs().T + 1) * (1 / 16 if "float8" in scheme else 1e-6)
    assert got.shape == (rows, 5)
    assert bool(((got - wanted).abs() <= size * 1.05).all())


def test_rows_of_zeros_and_what_is_no_number():
    for scheme in SCHEMES:
        assert not quantize_weight(torch.zeros(3, 40), scheme).dequantized().any()
    with pytest.raises(InputError, match="no finite number"):
        quantize_weight(torch.tensor([[1.0, torch.inf]]), "int8")
    with pytest.raises(InputError, match="no scheme 'int3'"):
        quantize_weight(torch.ones(1, 1), "int3")


def lent(**numerics):
    """The CPU, with other number formats in its descriptor."""
    opened = open_device("cpu")
    return replace(opened, capability=opened.capability.refined({"numerics": numerics}))


@pytest.mark.parametrize(
    ("form", "scheme"), [("int8", "int8"), ("int4", "int4"), ("fp8", "float8_e4m3fn")]
)
def test_each_weight_is_decided_in_one_line(form, scheme, caplog):
    model = tiny()
    before = {name: p.clone() for name, p in model.named_parameters()}
    device = lent(**FP8)
    with caplog.at_level(logging.DEBUG, logger="vllm_adapter.ops.quantization"):
        found = adapt(model, device, quantize=form).quantization
    lines = [r.message for r in caplog.records if r.message.startswith("layers.")]
    assert [line.split()[0] for line in lines] == [
        f"layers.{i}.{name}" for i in (0, 1) for name in ("qkv", "out", "gate_up", "down")
    ]
    assert all(f"float32 -> {scheme}" in line and "bytes, by cpu" in line for line in lines)
    assert found.bytes_before == sum(
        p.nbytes for n, p in before.items() if "layers" in n and "norm" not in n
    )
    assert 0.12 < found.bytes_after / found.bytes_before < 0.3
    kinds = [m for m in model.modules() if isinstance(m, QuantizedLinear)]
    assert sum(m.quantized.nbytes for m in kinds) == found.bytes_after
    unadapt(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_without_the_units_the_next_form_is_taken_and_the_reason_kept():
    adapted = adapt(tiny(), "cpu", quantize="fp8")
    assert adapted.quantization.forms == ("int8",)
    assert "/numerics/native_fp8" in adapted.quantization.decisions[0].reasons[0]
    assert adapted.kv.dtype == torch.float32


def test_with_the_units_the_cache_is_of_the_float_too():
    model = tiny()
    adapted = adapt(model, lent(**FP8), quantize="fp8")
    assert adapted.kv.dtype == torch.float8_e4m3fn
    assert adapted.kv.size.element_bytes == 1
    prompts = [[5, 9, 2], [7] * 20]
    flat = Generator(model).generate(prompts, max_new_tokens=6)
    eager = [
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert flat == eager


def test_what_core_alone_would_run_stays_as_it_is(monkeypatch):
    opened = open_device("cpu")
    quantizer = Quantizer(opened.capability, "int8")
    from vllm_adapter.engine.integrations import quantized

    resolve = quantized.resolved
    monkeypatch.setattr(
        quantized,
        "resolved",
        lambda case, settings: resolve(replace(case, device="meta"), settings),
    )
    quantizer.linear("part", torch.randn(64, 64), None)
    (decision,) = quantizer.decisions
    assert decision.scheme is None and decision.bytes_before == decision.bytes_after
    assert "no adapter is in use there" in decision.reasons[0]


def own_text(model):
    """Tokens that the model itself draws: it foretells them as well as it can."""
    adapt(model, "cpu")
    sampling = SamplingParams(1.0, seed=1)
    (drawn,) = Generator(model).generate([[3]], max_new_tokens=250, sampling=sampling)
    unadapt(model)
    return torch.tensor([3, *drawn])


def spiked():
    """A seeded random model in whose weights one of 32 is far from the others."""
    model = tiny(eos_token_id=None)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "proj" in name:
                p[:, ::32] *= 12
    return model


def test_int4_is_refused_where_it_costs_too_much_and_the_model_is_as_before():
    model = spiked()
    text = own_text(model)
    before = perplexity(model, text)
    with pytest.raises(UnsupportedModel, match=r"int4 costs \d+\.\d+ % of perplexity .* of 8 %"):
        adapt(model, "cpu", quantize="int4", accuracy_text=text)
    assert perplexity(model, text) == before


def test_what_costs_little_is_taken_with_its_figures():
    model = tiny(eos_token_id=None, initializer_range=0.07)
    found = adapt(model, "cpu", quantize="int8", accuracy_text=own_text(model)).quantization
    assert found.forms == ("int8",) and "of 1 % at most" in found.accuracy[0]


def test_auto_goes_on_to_what_costs_less():
    model = spiked()
    text = own_text(model)
    found = adapt(model, lent(**FP8), quantize="auto", accuracy_text=text).quantization
    assert found.accuracy[0].startswith("fp8 costs")
    taken = found.forms if found.decisions else ("none",)
    assert taken in (("fp8",), ("int8",), ("none",))
    assert len(found.accuracy) == {"fp8": 1, "int8": 2, "none": 2}[taken[0]]


def test_words_that_are_none():
    with pytest.raises(InputError, match="no form 'int3'"):
        adapt(tiny(), "cpu", quantize="int3")
    with pytest.raises(InputError, match="has 1 tokens"):
        adapt(tiny(), "cpu", quantize="int8", accuracy_text=torch.tensor([1]))


def test_the_text_is_long_enough():
    assert len(TEXT.read_text(encoding="utf-8").split()) > 15_000
