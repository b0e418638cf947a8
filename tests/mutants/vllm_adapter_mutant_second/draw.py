"""Arguments of calls, for the examples of this set."""

from __future__ import annotations

import torch

F16, B16, F32 = torch.float16, torch.bfloat16, torch.float32


def normal(*shape, dtype=F32, size=1.0, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (made * size).to(dtype)


def linear(rows, k, n, bias=False, dtype=F32):
    """(x, weight, bias, out_features)."""
    return (
        normal(rows, k, dtype=dtype, seed=1),
        normal(n, k, dtype=dtype, size=k**-0.5, seed=2),
        normal(n, dtype=dtype, seed=3) if bias else None,
        n,
    )


def norm(rows, width, dtype=F32, eps=1e-6, size=1.0):
    """(x, weight, eps)."""
    return (
        normal(rows, width, dtype=dtype, size=size, seed=1),
        (1 + normal(width, size=0.1, seed=2)).to(dtype),
        eps,
    )


def fused(rows, width, dtype=F32, eps=1e-6, size=1.0):
    """(x, residual, weight, eps)."""
    x, weight, eps = norm(rows, width, dtype, eps, size)
    return x, normal(rows, width, dtype=dtype, size=size, seed=3), weight, eps


def layer(rows, width, bias=True, dtype=F32, eps=1e-5):
    """(x, weight, bias, eps)."""
    x, weight, eps = norm(rows, width, dtype, eps)
    return x, weight, normal(width, dtype=dtype, seed=3) if bias else None, eps


def angles(rows, width, base=10000.0, dtype=F32):
    """A table cos_sin[rows, width] of rotary embedding."""
    rates = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    turned = torch.arange(rows, dtype=torch.float64)[:, None] * rates
    return torch.cat((turned.cos(), turned.sin()), -1).to(dtype)


def rope(
    positions, heads=4, kv=2, head=64, width=None, interleaved=False, dtype=F32, base=10000.0
):
    """(positions, query, key, cos_sin_cache, interleaved)."""
    places = torch.as_tensor(positions)
    count = len(places)
    return (
        places,
        normal(count, heads, head, dtype=dtype, seed=1),
        normal(count, kv, head, dtype=dtype, seed=2),
        angles(int(places.max()) + 1, width or head, base, dtype),
        interleaved,
    )


def store(slots, kv=2, head=64, block=16, blocks=8, dtype=F32):
    """(key, value, key_cache, value_cache, slot_mapping)."""
    places = torch.as_tensor(slots)
    shape = blocks, block, kv, head
    return (
        normal(len(places), kv, head, dtype=dtype, seed=1),
        normal(len(places), kv, head, dtype=dtype, seed=2),
        normal(*shape, dtype=dtype, seed=3),
        normal(*shape, dtype=dtype, seed=4),
        places,
    )


def paged(
    contexts,
    lengths=None,
    heads=4,
    kv=2,
    head=64,
    block=16,
    window=0,
    cap=0.0,
    size=1.0,
    dtype=F32,
):
    """The arguments of paged_attention; by default each sequence decodes one token."""
    lengths = lengths or [1] * len(contexts)
    widest = max(-(-c // block) for c in contexts)
    blocks = len(contexts) * widest
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(9))
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    shape = blocks, block, kv, head
    return (
        normal(sum(lengths), heads, head, size=size, dtype=dtype, seed=1),
        normal(*shape, dtype=dtype, seed=2),
        normal(*shape, dtype=dtype, seed=3),
        order.view(len(contexts), widest).to(torch.int32),
        torch.tensor(contexts, dtype=torch.int32),
        starts,
        head**-0.5,
        window,
        cap,
        None,
    )


def packed(lengths, heads=4, kv=2, head=64, causal=False, window=0, cap=0.0, size=1.0, dtype=F32):
    """The arguments of attention."""
    count = sum(lengths)
    return (
        normal(count, heads, head, size=size, dtype=dtype, seed=1),
        normal(count, kv, head, dtype=dtype, seed=2),
        normal(count, kv, head, dtype=dtype, seed=3),
        torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        head**-0.5,
        causal,
        window,
        cap,
    )
