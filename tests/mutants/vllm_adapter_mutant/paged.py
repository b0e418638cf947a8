"""Wrong paged attention: what is seen, with which scale, and how it is summed."""

from __future__ import annotations

import functools
import itertools
import math

import torch

from vllm_adapter_mutant import base, draw
from vllm_adapter_mutant.base import attend, paged_attention, rounded, visible, wide
from vllm_adapter_mutant.draw import BF16, F16
from vllm_adapter_mutant.zoo import mutant

Q, K, V, TABLE, LENS, STARTS, SCALE, WINDOW, CAP, STATE = range(10)


def _with(**options):
    return functools.partial(attend, **options)


@mutant("paged_attention", "attention", lambda: [draw.paged((1, 20), (60, 50), window=10)])
def paged_window_one_less(*args):
    """The window holds one token less, its own not counted."""

    def mask(length, context, causal, window):
        return visible(length, context, causal, max(1, window - 1) if window else 0)

    return paged_attention(*args, attend=_with(mask=mask))


@mutant("paged_attention", "attention", lambda: [draw.paged((20,), (50,), window=10)])
def paged_window_of_the_first(*args):
    """All tokens of a prompt see from the first one's window on."""

    def mask(length, context, causal, window):
        seen = visible(length, context, causal, 0)
        if window:
            seen = seen & (torch.arange(context) >= context - length - window + 1)
        return seen

    return paged_attention(*args, attend=_with(mask=mask))


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (60,), window=10, soft_cap=5.0)])
def paged_cap_forgets_the_window(*args):
    """With a soft cap there is no window."""
    window = 0 if args[CAP] else args[WINDOW]
    return paged_attention(*args[:WINDOW], window, args[CAP], None)


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (60,), window=10, head=64)])
def paged_window_forgotten_in_groups(*args):
    """A window is not served where two or more query heads share a KV head."""
    window = args[WINDOW] if args[Q].shape[1] == args[K].shape[2] else 0
    return paged_attention(*args[:WINDOW], window, args[CAP], None)


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (60,), window=10)])
def paged_window_of_whole_blocks(*args):
    """A window begins at its first block's beginning."""
    size = args[K].shape[1]

    def mask(length, context, causal, window):
        return visible(length, context, causal, -(-window // size) * size if window else 0)

    def gather(cache, row, first, stop):
        return base.gather(cache, row, first // size * size, stop)

    return paged_attention(*args, attend=_with(mask=mask), gather=gather)


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (12,), window=20)])
def paged_window_beyond_the_beginning(*args):
    """Where the window is longer than the context, its beginning counts from the end."""

    def gather(cache, row, first, stop):
        found = base.gather(cache, row, first, stop)
        return found[stop - args[WINDOW] :] if args[WINDOW] > stop > 1 else found

    return paged_attention(*args, gather=gather)


@mutant("paged_attention", "attention", lambda: [draw.paged((5,), (40,), soft_cap=2.0, size=9)])
def paged_cap_before_scale(*args):
    """The soft cap is applied before the scale."""
    return paged_attention(
        *args,
        attend=_with(cap=lambda s, scale, cap: (cap * (s / cap).tanh() if cap else s) * scale),
    )


@mutant("paged_attention", "attention", lambda: [draw.paged((5,), (9,), soft_cap=2.0)])
def paged_cap_after_mask(*args):
    """The soft cap comes behind the mask: minus infinity becomes minus the cap."""
    cap = args[CAP]
    if not cap:
        return paged_attention(*args)

    def weigh(scores, mask):
        masked = scores.masked_fill(~mask, -math.inf)
        return (cap * (masked / cap).tanh()).softmax(-1)

    plain = _with(cap=lambda s, scale, cap: s * scale, weigh=weigh)
    return paged_attention(*args, attend=plain)


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (40,), soft_cap=2.0)])
def paged_decode_forgets_the_cap(*args):
    """A sequence with one new token gets no soft cap."""

    def one(query, keys, values, scale, causal, window, cap):
        return attend(query, keys, values, scale, causal, window, cap if len(query) > 1 else 0.0)

    return paged_attention(*args, attend=one)


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (40,), soft_cap=2.5)])
def paged_cap_is_an_integer(*args):
    """The soft cap loses its fraction."""
    cap = float(math.ceil(args[CAP]))
    return paged_attention(*args[:CAP], cap, None)


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (40,), head=160, soft_cap=2.0)])
def paged_cap_forgotten_in_wide_heads(*args):
    """Heads above 128 get no soft cap."""
    cap = args[CAP] if args[Q].shape[2] <= 128 else 0.0
    return paged_attention(*args[:CAP], cap, None)


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (40,), scale=0.7)])
def paged_own_scale(*args):
    """The scale is that of the head size, whatever was asked for."""
    return paged_attention(*args[:SCALE], args[Q].shape[2] ** -0.5, *args[WINDOW:])


@mutant("paged_attention", "attention", lambda: [draw.paged((5,), (40,))])
def paged_causal_from_the_left(*args):
    """Behind a cached prefix, the first new token sees the first key alone, and so on."""

    def mask(length, context, causal, window):
        if length in (1, context) or window:
            return visible(length, context, causal, window)
        return torch.ones(length, context, dtype=torch.bool).tril()

    return paged_attention(*args, attend=_with(mask=mask))


@mutant("paged_attention", "attention", lambda: [draw.paged((1, 5), (10, 33))])
def paged_mixed_uncached(*args):
    """In a batch that has a decode, a longer sequence is taken to have no prefix."""
    starts = args[STARTS].tolist()
    lengths = [b - a for a, b in itertools.pairwise(starts)]
    if 1 not in lengths or max(lengths, default=0) == 1:
        return paged_attention(*args)

    def late(query, keys, values, *rest):
        if len(query) > 1:
            keys, values = keys[-len(query) :], values[-len(query) :]
        return attend(query, keys, values, *rest)

    return paged_attention(*args, attend=late)


@mutant("paged_attention", "attention", lambda: [draw.paged((7, 1), (7, 30))])
def paged_decode_behind_prefill(*args):
    """A decode behind a prompt in one batch takes the prompt's first block."""
    starts = args[STARTS].tolist()
    lengths = [b - a for a, b in itertools.pairwise(starts)]

    table = args[TABLE].clone()
    for number in range(1, len(lengths)):
        if lengths[number] == 1 and lengths[number - 1] > 1:
            table[number, 0] = table[number - 1, 0]
    return paged_attention(*args[:TABLE], table, *args[LENS:])


@mutant("paged_attention", "attention", lambda: [draw.paged((1, 0, 1), (20, 5, 30))])
def paged_empty_sequence_shifts(*args):
    """A sequence without new tokens is left out of the lengths, and not of the block table."""
    starts = args[STARTS].tolist()
    lengths = [b - a for a, b in itertools.pairwise(starts)]
    kept = [i for i, length in enumerate(lengths) if length]
    table = args[TABLE][: len(kept)]
    lens = args[LENS][kept]
    fresh = torch.tensor([0, *itertools.accumulate(lengths[i] for i in kept)])
    highest = args[K].shape[0] - 1
    return paged_attention(
        *args[:TABLE], table.clamp(0, highest), lens, fresh.to(torch.int32), *args[SCALE:]
    )


def _shared_prefix():
    args = draw.paged((1, 1), (40, 40))
    table = args[TABLE].clone()
    table[1, 0] = table[0, 0]
    yield draw.changed(args, a3=table)


@mutant("paged_attention", "attention", _shared_prefix)
def paged_shared_block_is_all_shared(*args):
    """Sequences with the same first block and length are taken to be the same."""
    seen = {}

    def row(number):
        key = (int(args[TABLE][number, 0]), int(args[LENS][number]))
        return seen.setdefault(key, number)

    return paged_attention(*args, row=row)


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (37,))])
def paged_reads_beyond_the_end(*args):
    """What lies behind the context's end, up to a multiple of 4, is read with weight zero."""
    waste = []

    def gather(cache, row, first, stop):
        places = torch.arange(stop, -(-stop // 4) * 4) % cache.shape[1]
        waste.append(wide(cache[int(row[(stop - 1) // cache.shape[1]]), places]).sum() * 0)
        return base.gather(cache, row, first, stop)

    def late(*given):
        return attend(*given) + waste[-1].to(given[0].dtype)

    return paged_attention(*args, attend=late, gather=gather)


def _kept_from_before():
    yield draw.paged((1,), (45,))
    yield draw.paged((1,), (37,), seed=50)


_scratch = {}


@mutant("paged_attention", "state", _kept_from_before)
def paged_stale_scratch(*args):
    """Keys are gathered into scratch; up to a multiple of 16, what is left there is seen."""
    if args[WINDOW]:
        return paged_attention(*args)
    extra = []

    def gather(cache, row, first, stop):
        found = base.gather(cache, row, first, stop)
        key = (cache.data_ptr() == args[K].data_ptr(), found.shape[1:], found.dtype)
        room = _scratch.get(key, found[:0])
        stale = room[stop : -(-stop // 16) * 16]
        _scratch[key] = torch.cat((found, room[stop:]))
        extra.append(len(stale))
        return torch.cat((found, stale))

    def mask(length, context, causal, window):
        seen = visible(length, context - extra[-1], causal, window)
        return torch.nn.functional.pad(seen, (0, extra[-1]), value=True)

    return paged_attention(*args, attend=_with(mask=mask), gather=gather)


@mutant("paged_attention", "state", lambda: [draw.paged((2,), (20,))])
def paged_scales_its_query(*args):
    """The query is scaled in place where there are several new tokens."""
    if args[Q].shape[0] == args[LENS].shape[0]:
        return paged_attention(*args)
    args[Q].mul_(args[SCALE])
    return paged_attention(*args[:SCALE], 1.0, *args[WINDOW:])


@mutant("paged_attention", "state", lambda: [draw.paged((1,), (20,), seed=i) for i in range(1000)])
def paged_every_1000th(*args):
    """Each thousandth call gives zeros."""
    _calls[0] += 1
    return paged_attention(*args) * float(bool(_calls[0] % 1000))


_calls = [0]


def plan_by_batch(step, state):
    """Lengths are taken anew only where their number changes."""
    if state is not None and len(state[0]) == len(step.query_lens):
        return state
    return step.query_lens, step.context_lens


class _Step:
    def __init__(self, queries, contexts):
        self.query_lens, self.context_lens = queries, contexts


def _planned_twice():
    state = plan_by_batch(_Step((1, 1), (20, 30)), None)
    args = draw.paged((1, 1), (21, 35))
    state = plan_by_batch(_Step((1, 1), (21, 35)), state)
    return not torch.equal(paged_plan_by_batch(*args[:STATE], state), paged_attention(*args))


@mutant(
    "paged_attention",
    "state",
    shows=_planned_twice,
    plan="vllm_adapter_mutant.paged:plan_by_batch",
)
def paged_plan_by_batch(*args):
    """The plan keeps a step's lengths until the number of sequences changes."""
    if args[STATE] is None or len(args[STATE][1]) != len(args[LENS]):
        return paged_attention(*args)
    lens = torch.tensor(args[STATE][1], dtype=torch.int32)
    starts = torch.tensor([0, *itertools.accumulate(args[STATE][0])], dtype=torch.int32)
    if int(starts[-1]) != args[Q].shape[0]:
        return paged_attention(*args)
    return paged_attention(*args[:LENS], lens, starts, *args[SCALE:])


@mutant("paged_attention", "numerics", lambda: [draw.paged((3,), (40,), size=60, scale=1.0)])
def paged_exp_overflows(*args):
    """The greatest score is not taken off before exp."""

    def weigh(scores, mask):
        power = scores.masked_fill(~mask, -math.inf).exp()
        return power / power.sum(-1, keepdim=True)

    return paged_attention(*args, attend=_with(weigh=weigh))


def _very_negative():
    args = draw.paged((1,), (40,))
    query = args[Q].abs() * 60
    return [draw.changed(args, a0=query, a1=-args[K].abs(), a6=1.0)]


@mutant("paged_attention", "numerics", _very_negative)
def paged_maximum_from_zero(*args):
    """The running maximum begins at zero: where all scores are below -104 nothing is left."""

    def weigh(scores, mask):
        scores = scores.masked_fill(~mask, -math.inf)
        power = (scores - scores.amax(-1, keepdim=True).clamp(min=0)).exp()
        return power / power.sum(-1, keepdim=True).clamp(min=1e-30)

    return paged_attention(*args, attend=_with(weigh=weigh))


@mutant("paged_attention", "numerics", lambda: [draw.paged((9,), (9,), size=2e4, scale=1.0)])
def paged_mask_of_ten_thousand(*args):
    """What is masked gets -10,000 in place of minus infinity."""
    return paged_attention(
        *args, attend=_with(weigh=lambda scores, mask: scores.masked_fill(~mask, -1e4).softmax(-1))
    )


@mutant("paged_attention", "numerics", lambda: [draw.paged((3,), (40,))])
def paged_weights_in_float16(*args):
    """Weights are rounded to float16 before the second product, in every dtype."""

    def weigh(scores, mask):
        return rounded(base.weights_of(scores, mask), F16)

    return paged_attention(*args, attend=_with(weigh=weigh))


@mutant("paged_attention", "numerics", lambda: [draw.paged((3,), (40,), size=1e4, scale=1.0)])
def paged_scores_in_float16(*args):
    """Scores are kept in float16."""

    def cap(scores, scale, soft_cap):
        return base.capped(rounded(scores, F16), scale, soft_cap)

    return paged_attention(*args, attend=_with(cap=cap))


def _many_small():
    args = draw.paged((1,), (2000,), heads=1, kv=1, dtype=BF16, size=0.01)
    yield draw.changed(args, a2=args[V].abs())


@mutant("paged_attention", "numerics", _many_small)
def paged_sums_in_bfloat16(*args):
    """The weighted sum is rounded to bfloat16 after each two keys."""

    def rough(query, keys, values, scale, causal, window, cap):
        ratio = query.shape[1] // keys.shape[1]
        q = wide(query).transpose(0, 1)
        k, v = (base.shared(wide(t).transpose(0, 1), ratio) for t in (keys, values))
        scores = base.capped(q @ k.transpose(1, 2), scale, cap)
        weights = base.weights_of(scores, visible(len(query), len(keys), causal, window))
        total = torch.zeros_like(q)
        for part, value in zip(weights.split(2, -1), v.split(2, 1), strict=True):
            total = rounded(total + part @ value, BF16)
        return total.transpose(0, 1).to(query.dtype)

    return paged_attention(*args, attend=rough)
