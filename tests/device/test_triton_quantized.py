"""Triton's products of weights in fewer bits against what the values stand for, in float64."""

from __future__ import annotations

import pytest
import torch
from triton_device import DEVICE

from vllm_adapter.contract.operators import INT4_GROUP, SCHEMES
from vllm_adapter.engine.ops.generic.quantized import rounded_rows
from vllm_adapter.engine.ops.quantization import quantize_weight
from vllm_adapter_triton import quantized


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("rows", "width", "out", "dtype"),
    [
        (1, 64, 64, torch.float32),
        (5, 33, 7, torch.float32),
        (17, 130, 66, torch.float16),
        (0, 64, 3, torch.float32),
    ],
)
def test_products_of_any_size(scheme, rows, width, out, dtype):
    torch.manual_seed(rows + width)
    weight = quantize_weight(torch.randn(out, width) * width**-0.5, scheme)
    x = torch.randn(rows, 2 * width).to(dtype)[:, :width]
    bias = torch.randn(out).to(dtype) if width % 2 else None
    parts = [
        None if t is None else t.to(DEVICE) for t in (weight.values, weight.scale, weight.zero)
    ]
    given = None if bias is None else bias.to(DEVICE)
    got = quantized.quantized_linear(x.to(DEVICE), *parts, given, out, scheme).cpu()
    wide = x.double()
    if scheme.startswith("float8") and rows:
        values, by = rounded_rows(x, weight.values.dtype)
        wide = values.double() * by
    wanted = wide @ weight.dequantized().double().T + (0 if bias is None else bias.double())
    assert got.shape == (rows, out) and got.dtype == dtype
    # Where a value lies halfway, one step of the float may differ.
    step = 0.02 if scheme.startswith("float8") else 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), wanted, rtol=step, atol=step)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_rows_are_rounded_as_core_does(dtype):
    x = torch.randn(4, 100) * torch.tensor([[1.0], [1e4], [1e-6], [0.0]])
    got, by = quantized.round_rows(x.to(DEVICE), dtype)
    wanted, wanted_by = rounded_rows(x, dtype)
    torch.testing.assert_close(by.cpu(), wanted_by[:, 0])
    off = (got.cpu().float() - wanted.float()).abs()
    assert bool((off <= wanted.float().abs() / 8 + 2**-9).all())
    assert float((off > 0).float().mean()) < 0.02


def test_a_row_with_what_is_no_number_is_none_and_others_are():
    x = torch.ones(2, 40)
    x[1, 7] = torch.nan
    weight = quantize_weight(torch.ones(3, 40), "float8_e4m3fn")
    parts = weight.values.to(DEVICE), weight.scale.to(DEVICE), None, None
    got = quantized.quantized_linear(x.to(DEVICE), *parts, 3, weight.scheme).cpu()
    assert bool(got[0].isfinite().all()) and bool(got[1].isnan().all())


def test_the_group_is_core_s():
    assert quantized.GROUP == INT4_GROUP
