"""Arguments of operators, the same at every call; sizes are as small as a fault allows."""

from __future__ import annotations

import torch

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def normal(*shape, dtype=F32, size=1.0, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed + 17))
    return (made * size).to(dtype)


def strided(tensor):
    """The same values, with three more elements behind each row."""
    room = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 3), 7, dtype=tensor.dtype)
    room[..., : tensor.shape[-1]] = tensor
    return room[..., : tensor.shape[-1]]


def spread(tensor):
    """The same values, at every second element."""
    room = torch.full((*tensor.shape, 2), 7, dtype=tensor.dtype)
    room[..., 0] = tensor
    return room[..., 0]


def offset(tensor):
    """The same values, contiguous, behind others in one storage."""
    room = torch.full((tensor.numel() + 64,), 7, dtype=tensor.dtype)
    room[64:] = tensor.flatten()
    return room[64:].view(tensor.shape)


def swapped(tensor):
    """The same values, with the first two dimensions in the other order in memory."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def changed(args, **at):
    """args with some replaced: changed(args, a1=...) is for argument 1."""
    return tuple(at.get(f"a{i}", arg) for i, arg in enumerate(args))


def linear(rows=3, k=64, n=64, bias=False, dtype=F32, size=1.0, seed=0):
    return (
        normal(rows, k, dtype=dtype, size=size, seed=seed),
        normal(n, k, dtype=dtype, seed=seed + 1),
        normal(n, dtype=dtype, seed=seed + 2) if bias else None,
        n,
    )


def norm(rows=3, width=64, dtype=F32, eps=1e-6, size=1.0, seed=0):
    return (
        normal(rows, width, dtype=dtype, size=size, seed=seed),
        normal(width, dtype=dtype, seed=seed + 1),
        eps,
    )


def fused(rows=3, width=64, dtype=F32, eps=1e-6, size=1.0, seed=0):
    x, weight, eps = norm(rows, width, dtype, eps, size, seed)
    return x, normal(rows, width, dtype=dtype, size=size, seed=seed + 5), weight, eps


def layer(rows=3, width=64, bias=True, dtype=F32, eps=1e-5, size=1.0, mean=0.0, seed=0):
    x, weight, eps = norm(rows, width, F32, eps, size, seed)
    shift = normal(width, dtype=dtype, seed=seed + 6) if bias else None
    return (x + mean).to(dtype), weight.to(dtype), shift, eps


def wave(rows=3, width=64, dtype=F32, low=-4.0, high=4.0):
    """Evenly spaced values, so that each part of a function is met."""
    return torch.linspace(low, high, rows * width).view(rows, width).to(dtype)


def gated(rows=3, d=64, dtype=F32, low=-4.0, high=4.0):
    return torch.cat((wave(rows, d, dtype, low, high), normal(rows, d, dtype=dtype)), -1)


def table(ids, rows=64, width=16, dtype=F32, seed=0):
    return torch.as_tensor(ids), normal(rows, width, dtype=dtype, seed=seed)


def rope(positions, heads=4, kv=2, head=64, turned=None, interleaved=False, dtype=F32, seed=0):
    positions = torch.as_tensor(positions)
    rows, turned = int(positions.max()) + 2, turned or head
    angles = torch.arange(rows)[:, None] * 100.0 ** -torch.linspace(0, 1, turned // 2)
    return (
        positions,
        normal(len(positions), heads, head, dtype=dtype, seed=seed),
        normal(len(positions), kv, head, dtype=dtype, seed=seed + 1),
        torch.cat((angles.cos(), angles.sin()), -1).to(dtype),
        interleaved,
    )


def store(slots, kv=2, head=64, block=16, blocks=None, dtype=F32, size=1.0, seed=0):
    slots = torch.as_tensor(slots)
    blocks = blocks or int(slots.max()) // block + 2
    return (
        normal(len(slots), kv, head, dtype=dtype, size=size, seed=seed),
        normal(len(slots), kv, head, dtype=dtype, size=size, seed=seed + 1),
        torch.full((blocks, block, kv, head), 3.0, dtype=dtype),
        torch.full((blocks, block, kv, head), 4.0, dtype=dtype),
        slots,
    )


def paged(
    queries=(1,),
    contexts=(40,),
    heads=4,
    kv=2,
    head=32,
    block=16,
    first=0,
    scale=None,
    window=0,
    soft_cap=0.0,
    dtype=F32,
    size=1.0,
    seed=0,
):
    """Blocks are given from number `first` on, the last of a sequence first; the rest is NaN."""
    counts = [-(-context // block) for context in contexts]
    numbers = list(range(first, first + sum(counts)))[::-1]
    block_table = torch.full((len(contexts), max(counts)), -1, dtype=torch.int32)
    caches = torch.full((2, first + sum(counts) + 1, block, kv, head), torch.nan, dtype=dtype)
    for i, (count, context) in enumerate(zip(counts, contexts, strict=True)):
        mine = torch.tensor([numbers.pop() for _ in range(count)][::-1])
        block_table[i, :count] = mine
        places = torch.arange(context)
        for cache, more in zip(caches, (10, 20), strict=True):
            new = normal(context, kv, head, dtype=dtype, seed=seed + more + i)
            cache[mine[places // block], places % block] = new
    starts = [0]
    for length in queries:
        starts.append(starts[-1] + length)
    return (
        normal(starts[-1], heads, head, dtype=dtype, size=size, seed=seed),
        caches[0].clone(),
        caches[1].clone(),
        block_table,
        torch.tensor(contexts, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        head**-0.5 if scale is None else scale,
        window,
        soft_cap,
        None,
    )


def sequences(
    lengths=(7, 9),
    heads=4,
    kv=2,
    head=32,
    scale=None,
    causal=False,
    window=0,
    soft_cap=0.0,
    dtype=F32,
    size=1.0,
    seed=0,
):
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    tokens = int(starts[-1])
    return (
        normal(tokens, heads, head, dtype=dtype, size=size, seed=seed),
        normal(tokens, kv, head, dtype=dtype, seed=seed + 1),
        normal(tokens, kv, head, dtype=dtype, seed=seed + 2),
        starts,
        head**-0.5 if scale is None else scale,
        causal,
        window,
        soft_cap,
    )
