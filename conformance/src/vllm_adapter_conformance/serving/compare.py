"""Holds answers of our vLLM against plain vLLM: tokens but for near ties, vectors to 1e-4."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vllm_adapter_conformance.base.rule import Failure

TIE: Final = 1e-4
"""Logits of plain vLLM that are closer than this may change places."""
FAR: Final = 1e-4
"""How far a number of an embedding, whose length is 1, may be from plain vLLM's in float32."""

Vectors = Sequence[Sequence[float]]


def same_tokens(want: Mapping[str, Any], got: Sequence[int], what: str) -> bool:
    """Whether an answer is plain vLLM's throughout; False: it parts from it at a near tie.

    Raises:
        Failure: it parts elsewhere, or has another length.
    """
    theirs: list[int] = want["tokens"]
    at = next((i for i, (a, b) in enumerate(zip(theirs, got, strict=False)) if a != b), None)
    if at is None and len(theirs) == len(got):
        return True
    if at is None:
        raise Failure(f"{what} to have {len(theirs)} tokens", f"{len(got)}")
    gap = want["gaps"][at]
    if gap < TIE:
        return False
    raise Failure(
        f"{what} to be {theirs}",
        f"{list(got)}, where plain vLLM's best two logits are {gap:.3g} apart at the first "
        "difference",
    )


def same_answers(want: Mapping[str, Any], got: Mapping[str, Any], names: str = "row") -> str:
    """Holds all answers of a step against plain vLLM's; gives a note.

    Raises:
        Failure: as `same_tokens`.
    """
    pairs = list(zip(want["answers"], got["answers"], strict=True))
    whole = sum(
        same_tokens(theirs, ours["tokens"], f"{names} {row}")
        for row, (theirs, ours) in enumerate(pairs)
    )
    tokens = sum(len(theirs["tokens"]) for theirs, _ in pairs)
    return f"{len(pairs)} {names}s of {tokens} tokens, {len(pairs) - whole} parted at a near tie"


def same_vectors(want: Vectors, got: Vectors) -> float:
    """Holds embeddings against plain vLLM's; the largest difference as a share of `FAR`.

    Raises:
        Failure: one is farther away, is no number, or has another width.
    """
    sizes = [[len(vector) for vector in side] for side in (want, got)]
    if sizes[0] != sizes[1]:
        raise Failure(f"vectors of {sizes[0]} numbers", f"{sizes[1]}")
    pairs = (pair for rows in zip(want, got, strict=True) for pair in zip(*rows, strict=True))
    away = [abs(theirs - ours) for theirs, ours in pairs]
    share = max(math.inf if math.isnan(one) else one for one in away) / FAR
    if share > 1:
        raise Failure(f"vectors within {FAR:g} of plain vLLM's", f"{share * FAR:.3g}", share=share)
    return share
