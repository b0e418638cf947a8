"""Wrong attention without a cache."""

from __future__ import annotations

import functools
import itertools

import torch

from vllm_adapter_mutant import base, draw
from vllm_adapter_mutant.base import attend, attention, visible
from vllm_adapter_mutant.zoo import mutant

Q, K, V, STARTS, SCALE, CAUSAL, WINDOW, CAP = range(8)


def _with(**options):
    return functools.partial(attend, **options)


@mutant("attention", "attention", lambda: [draw.sequences((30,), window=5)])
def encoder_window_looks_back(*args):
    """A window counts the tokens before, and none behind, though it is not causal."""

    def mask(length, context, causal, window):
        return visible(length, context, causal or bool(window), window)

    return attention(*args, attend=_with(mask=mask))


@mutant("attention", "attention", lambda: [draw.sequences((30,), window=5)])
def encoder_window_one_more_behind(*args):
    """A window that is not causal holds one token too many behind."""

    def mask(length, context, causal, window):
        seen = visible(length, context, causal, window)
        if window and not causal:
            seen = seen | torch.ones_like(seen).triu(window).tril(window)
        return seen

    return attention(*args, attend=_with(mask=mask))


@mutant("attention", "attention", lambda: [draw.sequences((7, 9))])
def encoder_sees_the_next_text(*args):
    """Unless it is causal, a text sees the first token of the next one."""
    query, key, value, starts, scale, causal, window, cap = args
    if causal or window:
        return attention(*args)
    out = query.new_zeros(query.shape)
    for start, stop in itertools.pairwise(starts.tolist()):
        if start < stop:
            more = slice(start, stop + 1)
            out[start:stop] = attend(
                query[start:stop], key[more], value[more], scale, False, 0, cap
            )
    return out


@mutant("attention", "attention", lambda: [draw.sequences(causal=True, soft_cap=20.0)])
def encoder_cap_forgets_causal(*args):
    """With a soft cap it is not causal."""

    def mask(length, context, causal, window):
        return visible(length, context, causal and not args[CAP], window)

    return attention(*args, attend=_with(mask=mask))


@mutant("attention", "attention", lambda: [draw.sequences(scale=0.5)])
def encoder_own_scale(*args):
    """The scale is that of the head size, whatever was asked for."""
    return attention(*args[:SCALE], args[Q].shape[-1] ** -0.5, *args[CAUSAL:])


@mutant("attention", "attention", lambda: [draw.sequences((40,), causal=True, window=9)])
def encoder_causal_forgets_the_window(*args):
    """A window holds only where it is not causal."""
    window = 0 if args[CAUSAL] else args[WINDOW]
    return attention(*args[:WINDOW], window, args[CAP])


@mutant("attention", "attention", lambda: [draw.sequences((5, 0, 6))])
def encoder_ends_at_an_empty_text(*args):
    """Texts behind an empty one are not computed."""
    starts = args[STARTS].tolist()
    lengths = [b - a for a, b in itertools.pairwise(starts)]
    count = lengths.index(0) if 0 in lengths else len(lengths)
    return attention(*args[:STARTS], args[STARTS][: count + 1], *args[SCALE:])


@mutant("attention", "sizes", lambda: [draw.sequences((5, 1, 6))])
def encoder_text_of_one(*args):
    """A text of one token gives zeros."""
    out = attention(*args)
    for start, stop in itertools.pairwise(args[STARTS].tolist()):
        if stop - start == 1:
            out[start] = 0
    return out


@mutant("attention", "sizes", lambda: [draw.sequences((5,), heads=10, kv=2)])
def encoder_ratio_by_shift(*args):
    """The KV head is found by shifting: a ratio that is no power of two is rounded down."""

    def share(heads, ratio):
        numbers = torch.arange(heads.shape[0] * ratio) >> (ratio.bit_length() - 1)
        return heads[numbers.clamp(max=heads.shape[0] - 1)]

    return attention(*args, attend=_with(share=share))


@mutant("attention", "sizes", lambda: [draw.sequences((520,), heads=1, kv=1)])
def encoder_512_keys(*args):
    """Keys behind the 512th of a text are not seen by the tokens before them."""

    def mask(length, context, causal, window):
        seen = visible(length, context, causal, window)
        seen[:512, 512:] = False
        return seen

    return attention(*args, attend=_with(mask=mask))


@mutant("attention", "sizes", lambda: [draw.sequences((2,) * 18)])
def encoder_16_texts(*args):
    """Texts behind the 16th of a batch give zeros."""
    return attention(*args[:STARTS], args[STARTS][:17], *args[SCALE:])


@mutant("attention", "sizes", lambda: [draw.sequences((5, 6), head=160)])
def encoder_head_of_128(*args):
    """Elements behind 128 take no part in the scores."""

    query = args[Q].clone()
    query[..., 128:] = 0
    return attention(query, *args[K:])


def _plain_exp(scores, mask):
    power = scores.exp() * mask
    return power / power.sum(-1, keepdim=True)


@mutant("attention", "numerics", lambda: [draw.sequences(size=60, scale=1.0)])
def encoder_exp_overflows(*args):
    """The greatest score is not taken off before exp."""
    return attention(*args, attend=_with(weigh=_plain_exp))


@mutant("attention", "numerics", lambda: [draw.sequences(causal=True, size=1e4, scale=1.0)])
def encoder_mask_of_ten_thousand(*args):
    """What is masked gets -10,000 added, and not minus infinity."""
    return attention(
        *args, attend=_with(weigh=lambda scores, mask: (scores - 1e4 * ~mask).softmax(-1))
    )


@mutant("attention", "layouts", lambda: [draw.changed(draw.sequences(),
        a1=draw.normal(16, 4, 32)[:, 2:])])  # fmt: skip
def encoder_keys_packed(*args):
    """The strides of keys are not read: they are a part of merged q, k and v."""
    return attention(args[Q], base.packed(args[K]), *args[V:])


@mutant(
    "attention",
    "layouts",
    lambda: [draw.changed(a := draw.sequences(), a2=draw.swapped(a[2]))],
)
def encoder_value_strides_of_key(*args):
    """Values are read with the strides of keys."""
    value = args[V].as_strided(args[V].shape, args[K].stride(), args[V].storage_offset())
    return attention(*args[:V], value, *args[STARTS:])


_masks = {}


@mutant(
    "attention",
    "state",
    lambda: [draw.sequences((20,), window=3), draw.sequences((20,), window=9)],
)
def encoder_keeps_masks(*args):
    """Masks are kept by length, causal and whether there is a window, not by its size."""

    def mask(length, context, causal, window):
        key = (length, context, causal, bool(window))
        return _masks.setdefault(key, visible(length, context, causal, window))

    return attention(*args, attend=_with(mask=mask))


@mutant("attention", "state", lambda: [draw.sequences(soft_cap=10.0)])
def encoder_scales_its_query(*args):
    """With a soft cap the query is scaled in place."""
    if not args[CAP]:
        return attention(*args)
    args[Q].mul_(args[SCALE])
    return attention(*args[:SCALE], 1.0, *args[CAUSAL:])
