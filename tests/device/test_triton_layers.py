"""Triton's norms, gate, rotation and KV write against core's portable forms."""

from __future__ import annotations

import pytest
import torch
from triton_device import DEVICE

from vllm_adapter import generic
from vllm_adapter_triton import layers

DTYPES = [torch.float32, torch.float16]


def near(found, wanted):
    """Equal but for one rounding of the dtype."""
    size = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, wanted, rtol=2 * size, atol=2 * size)


def rows(*shape, dtype, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 64, 65, 576])
def test_norms_of_any_layout(dtype, width):
    x = rows(3, width + 5, dtype=dtype)[:, 3 : 3 + width]
    residual = rows(3, width, dtype=dtype, seed=1)
    weight = rows(2 * width, dtype=dtype, seed=2)[::2]
    near(layers.rms_norm(x, weight, 1e-5), generic.rms_norm(x, weight, 1e-5))
    found = layers.fused_add_rms_norm(x, residual, weight, 1e-6)
    for mine, wanted in zip(
        found, generic.fused_add_rms_norm(x, residual, weight, 1e-6), strict=True
    ):
        near(mine, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 63, 2049])
def test_the_gate_of_narrow_and_wide_rows(dtype, width):
    x = rows(2, 3, 2 * width, dtype=dtype)
    x[0, 0, 0] = 200.0 if dtype is torch.float32 else 60.0
    x[0, 1, 0] = -200.0
    near(layers.silu_and_mul(x), generic.silu_and_mul(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("head", "turned", "interleaved"),
    [(64, 64, False), (80, 40, True), (96, 96, True), (64, 32, False)],
)
def test_rotation_in_place(dtype, head, turned, interleaved):
    query, key = rows(5, 3, head, dtype=dtype), rows(5, 1, 2 * head, dtype=dtype)[:, :, ::2]
    table, positions = rows(100, turned, dtype=dtype), torch.tensor([0, 99, 7, 7, 50]).to(DEVICE)
    wanted = query.clone(), key.clone()
    generic.rotary_embedding(positions, *wanted, table, interleaved)
    layers.rotary_embedding(positions, query, key, table, interleaved)
    near(query, wanted[0])
    near(key, wanted[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_slots_are_written_and_padding_is_not(dtype):
    key, value = (rows(5, 2, 24, dtype=dtype, seed=seed) for seed in (0, 1))
    slots = torch.tensor([3, -1, 47, 20, 0]).to(DEVICE)
    caches = [rows(6, 8, 2, 48, dtype=dtype)[..., ::2], rows(6, 8, 2, 24, dtype=dtype)]
    wanted = [cache.clone() for cache in caches]
    generic.reshape_and_cache(key, value, *wanted, slots)
    layers.reshape_and_cache(key, value, *caches, slots)
    for mine, other in zip(caches, wanted, strict=True):
        assert torch.equal(mine, other)


def test_nothing_to_do():
    empty = rows(0, 64, dtype=torch.float32)
    assert layers.rms_norm(empty, rows(64, dtype=torch.float32), 1e-6).shape == (0, 64)
    assert layers.silu_and_mul(empty).shape == (0, 32)
