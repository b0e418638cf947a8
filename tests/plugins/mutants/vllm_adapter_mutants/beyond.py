"""Kernels that are right for the usual sizes, layouts, values and first calls, and only there."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from vllm_adapter import generic
from vllm_adapter_mutants.attention import _attend

_kept: dict[Any, torch.Tensor] = {}


def rows_of_four_thousand(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The mean is of the first 4,096 elements."""
    scale = torch.rsqrt(x[..., :4096].float().square().mean(-1, keepdim=True) + eps)
    return (x.float() * scale * weight.float()).to(x.dtype)


def rows_of_a_grid(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Rows from the 257th on are left out."""
    out = generic.rms_norm(x, weight, eps)
    out.view(-1, x.shape[-1])[256:] = 0
    return out


def usual_epsilon(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Takes every epsilon to be 1e-6."""
    return generic.rms_norm(x, weight, 1e-6)


def packed_weight(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Takes the weight to be contiguous."""
    return generic.rms_norm(x, weight.as_strided(weight.shape, (1,)), eps)


def kept_by_address(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Keeps the weight in float32 by where it lies."""
    key = ("rms_norm", weight.data_ptr(), weight.shape, weight.dtype)
    wide = _kept.setdefault(key, weight.float())
    return generic.rms_norm(x.float(), wide, eps).to(x.dtype)


def kept_by_shape(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Gives the first result of a shape again."""
    key = ("result", x.shape, x.dtype, eps)
    return _kept.setdefault(key, generic.rms_norm(x, weight, eps)).clone()


def one_scratch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """All results of a dtype lie in one memory."""
    out = generic.rms_norm(x, weight, eps)
    key = ("scratch", x.dtype)
    if key not in _kept or _kept[key].numel() < out.numel():
        _kept[key] = torch.empty(out.numel(), dtype=x.dtype)
    return _kept[key][: out.numel()].view(out.shape).copy_(out)


def exp_overflows(x: torch.Tensor) -> torch.Tensor:
    """e^x / (1 + e^x), which is no number beyond 88."""
    gate, up = x.float().chunk(2, dim=-1)
    return (gate * gate.exp() / (1 + gate.exp()) * up).to(x.dtype)


def cleans_up(x: torch.Tensor) -> torch.Tensor:
    """What is no number becomes zero."""
    return generic.silu_and_mul(x).nan_to_num(0.0)


def wide_products(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """The sum ends at 4,096 elements."""
    return generic.linear(x[..., :4096], weight[:, :4096], bias, out_features)


def transposed_weight(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """Takes the weight's rows to lie one behind the other."""
    return generic.linear(
        x, weight.as_strided(weight.shape, (weight.shape[1], 1)), bias, out_features
    )


def short_ids(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Keeps 16 bits of a token's number."""
    return generic.embedding(ids & 0xFFFF, weight)


def short_positions(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """The table ends at 1,024."""
    generic.rotary_embedding(positions % 1024, query, key, cos_sin_cache, interleaved)


def minus_one_alone(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Other negative slots count from the end."""
    total = key_cache.shape[0] * key_cache.shape[1]
    slots = torch.where(slot_mapping < -1, slot_mapping % total, slot_mapping)
    generic.reshape_and_cache(key, value, key_cache, value_cache, slots)


def short_blocks(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """A block's number has 8 bits."""
    block = key_cache.shape[1]
    short = slot_mapping // block % 256 * block + slot_mapping % block
    slots = torch.where(slot_mapping < 0, slot_mapping, short)
    generic.reshape_and_cache(key, value, key_cache, value_cache, slots)


def _paged(*args: Any, **changed: Any) -> torch.Tensor:
    names = "query key_cache value_cache table lengths starts scale window soft_cap state"
    given = dict(zip(names.split(), args, strict=True)) | {"state": None} | changed
    return generic.paged_attention(*given.values())


def own_scale(*args: Any) -> torch.Tensor:
    """Scores are scaled by the head's size, whatever was asked for."""
    return _paged(*args, scale=args[0].shape[-1] ** -0.5)


def packed_table(*args: Any) -> torch.Tensor:
    """Takes the block table's rows to be as long as they show."""
    table = args[3]
    whole = table.as_strided(table.shape, (table.shape[1], 1)) if table.numel() else table
    return _paged(*args, table=whole % args[1].shape[0])


def short_block_numbers(*args: Any) -> torch.Tensor:
    """A block's number has 8 bits."""
    return _paged(*args, table=args[3] % 256)


def contexts_of_five_hundred(*args: Any) -> torch.Tensor:
    """Sees no key behind the 512th, and is right up to there."""
    keys = args[4].clamp(max=512)
    return _paged(*args) if bool((keys == args[4]).all()) else _paged(*args) * 1.01


def batches_of_sixteen(*args: Any) -> torch.Tensor:
    """Sequences from the 17th on get nothing."""
    out, starts = _paged(*args), args[5]
    if len(starts) > 17:
        out[int(starts[16]) :] = 0
    return out


def queries_of_a_tile(*args: Any) -> torch.Tensor:
    """Rows behind a tile of 256 of one sequence are those of the tile before."""
    out = _paged(*args)
    for start, stop in zip(args[5][:-1].tolist(), args[5][1:].tolist(), strict=True):
        out[start + 256 : stop] = 0
    return out


def ratio_by_shift(*args: Any) -> torch.Tensor:
    """The ratio is rounded down to a power of two."""
    query, keys = args[0], args[1]
    ratio = query.shape[1] // keys.shape[2]
    shift = ratio.bit_length() - 1
    heads = (torch.arange(query.shape[1]) >> shift).clamp(max=keys.shape[2] - 1)
    return _paged(*args, key_cache=keys[:, :, heads], value_cache=args[2][:, :, heads])


def window_or_cap(*args: Any) -> torch.Tensor:
    """With a window there is no soft cap."""
    return _paged(*args, soft_cap=0.0 if args[7] else args[8])


def floor_of_scores(*args: Any) -> torch.Tensor:
    """The running maximum begins at -10,000."""
    *_, window, soft_cap, _state = args
    if window or soft_cap:
        return _paged(*args)
    return _attend(*args, floor=-1e4)


def table_to_the_end(*args: Any) -> torch.Tensor:
    """Reads the numbers behind a sequence's last block, and the blocks that they name."""
    table, cache = args[3], args[1]
    beyond = (table < 0) | (table >= cache.shape[0])
    if bool(beyond.any()):
        return _paged(*args) * torch.nan
    return _paged(*args)


def wrong_once_in_a_hundred(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The 90th call after each hundred gives another last bit."""
    _calls[0] += 1
    out = generic.rms_norm(x, weight, eps)
    return torch.nextafter(out, out + 1) if _calls[0] % 100 == 90 else out


_calls = [0]


def keeps_a_word(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """A small object a call, for ever."""
    _words.append(str(len(_words)))
    return generic.rms_norm(x, weight, eps)


def keeps_a_struct(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """64 bytes of the C library's memory a call, for ever."""
    _malloc(64)
    return generic.rms_norm(x, weight, eps)


_words: list[str] = []
_malloc = ctypes.CDLL(None).malloc


def neighbours_are_a_view(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows that follow one another are a part of the table, and not copied."""
    first = int(ids[0]) if ids.dim() == 1 and len(ids) else 0
    if ids.dim() == 1 and len(ids) and bool((ids == torch.arange(first, first + len(ids))).all()):
        return weight[first : first + len(ids)]
    return generic.embedding(ids, weight)


def counting_by_its_ends(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """Positions count up where the first and the last are as far apart as there are tokens."""
    if len(positions) > 2 and int(positions[-1] - positions[0]) == len(positions) - 1:
        positions = torch.arange(int(positions[0]), int(positions[-1]) + 1)
    generic.rotary_embedding(positions, query, key, cos_sin_cache, interleaved)


def columns_without_a_gap(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """Of a weight that lies by columns, the next column begins where one ends."""
    if weight.stride(0) == 1 and weight.stride(1) > weight.shape[0]:
        weight = weight.as_strided(weight.shape, (1, weight.shape[0]))
    return generic.linear(x, weight, bias, out_features)
