"""The lengths of an attention's batch, from a choice of its dimensions. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any, Final

from vllm_adapter_conformance.ops.effects import LONGEST_PREFILL

SHORT: Final = 40
"""Contexts that are not of the drawn length are shorter than about so many tokens."""


def paged_lengths(
    choice: Mapping[str, Any], block: int, seed: object
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """New tokens and context of each sequence.

    One sequence has the drawn lengths, at a place that the seed gives; the others are short. Where
    there are several, and not all decode, some have nothing new, and some are empty (padding).
    """
    names = ("batch", "phase", "context", "queries")
    return _paged_lengths(*(choice[name] for name in names), block, str(seed))


@lru_cache(maxsize=4096)
def _paged_lengths(
    batch: int, phase: str, context: int | str, queried: int, block: int, seed: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    random = Random(seed)
    if not batch:
        return (), ()
    kinds = {
        "one": 1,
        "block": block,
        "block and one": block + 1,
        "two blocks": 2 * block,
        "two blocks and one": 2 * block + 1,
        "short": block + SHORT - 3,
    }
    long = kinds[context] if isinstance(context, str) else context
    # A few lengths that several sequences have: some of them share their blocks as well.
    lengths = (1, 2, block, block + 1, SHORT, random.randint(block, 2 * block + 3))
    contexts = [random.choice(lengths) for _ in range(batch)]
    queries = [random.choice((1, 1, 2, 3, 5)) for _ in range(batch)]
    place = random.randrange(batch)
    contexts[place], queries[place] = long, queried
    if phase == "decode":
        queries = [1] * batch
    elif phase == "prefill":
        contexts[place] = max(long if long <= LONGEST_PREFILL else 130, queried)
        queries = list(contexts)
    else:
        contexts[place] = max(long, queried)
        # Some have nothing new, beside the long one and at the end, as padding has it.
        for other in {(place + 1) % batch, batch - 1} - {place}:
            queries[other], contexts[other] = random.choice(((0, 0), (0, block + 1), (0, SHORT)))
        queries = [min(q, c) for q, c in zip(queries, contexts, strict=True)]
    return tuple(queries), tuple(contexts)


def packed_lengths(choice: Mapping[str, Any], seed: object) -> tuple[int, ...]:
    """Tokens of each sequence of an attention without a cache; some of several are empty."""
    random = Random(str(seed))
    lengths = [random.choice((0, 1, 2, 5, 17, 33)) for _ in range(choice["batch"])]
    if lengths:
        lengths[random.randrange(len(lengths))] = choice["queries"]
    return tuple(lengths)
