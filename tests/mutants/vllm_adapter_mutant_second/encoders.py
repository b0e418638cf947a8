"""Wrong kernels of attention."""

from __future__ import annotations

import functools

import torch
from vllm_adapter_mutant import base

from vllm_adapter_mutant_second import draw
from vllm_adapter_mutant_second.zoo import mutant


def _attending(**parts):
    return functools.partial(base.attend, **parts)


@mutant("attention", "sizes", lambda: [draw.packed([20, 33])])
def encoder_longest_is_the_first(query, key, value, starts, scale, causal, window, cap):
    """The grid is as long as the first sequence: longer ones end in zeros."""
    result = base.attention(query, key, value, starts, scale, causal, window, cap)
    if len(starts) > 1:
        longest = int(starts[1] - starts[0])
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            result[start + longest : stop] = 0
    return result


@mutant("attention", "attention", lambda: [draw.packed([50], window=20)])
def encoder_window_of_both_sides_together(*args):
    """Without a causal mask, half of the window is on either side."""

    def mask(length, context, causal, window):
        if causal or not window:
            return base.visible(length, context, causal, window)
        return base.visible(length, context, False, window // 2 + 1)

    return base.attention(*args, attend=_attending(mask=mask))


@mutant("attention", "attention", lambda: [draw.packed([150], window=20)])
def encoder_window_ends_with_its_tile(*args):
    """Keys end with the tile of 64 queries, as with a causal mask; the window reaches behind."""

    def mask(length, context, causal, window):
        seen = base.visible(length, context, causal, window)
        if window:
            tile = torch.arange(context) // 64
            seen &= tile[context - length :, None] >= tile
        return seen

    return base.attention(*args, attend=_attending(mask=mask))


@mutant("attention", "numerics", lambda: [draw.packed([50], size=40.0)])
def encoder_clips_its_scores(*args):
    """Scores are between -30 and 30, so that exponents need no maximum."""

    def cap(scores, scale, soft_cap):
        return base.capped(scores, scale, soft_cap).clamp(-30, 30)

    return base.attention(*args, attend=_attending(cap=cap))


@mutant("attention", "sizes", lambda: [draw.packed([50], heads=3, kv=1)])
def encoder_heads_two_at_a_time(*args):
    """Two heads a block: the last of an odd number above one is not run."""
    result = base.attention(*args)
    heads = result.shape[1]
    if heads > 1:
        result[:, heads // 2 * 2 :] = 0
    return result


@mutant("attention", "attention", lambda: [draw.packed([50], heads=4, kv=2)])
def encoder_groups_by_remainder(*args):
    """Query head h uses KV head h mod KH, and not h / ratio."""

    def share(heads, ratio):
        return heads.repeat(ratio, 1, 1)

    return base.attention(*args, attend=_attending(share=share))
