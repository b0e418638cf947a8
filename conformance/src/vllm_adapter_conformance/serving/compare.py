"""Holds answers of our vLLM against plain vLLM in float32: tokens but for near ties, vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vllm_adapter_conformance.base.rule import Failure

EPSILON: Final[Mapping[str, float]] = {
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
_LEAST: Final = 1e-4
TIE: Final = {dtype: max(_LEAST, 16 * epsilon) for dtype, epsilon in EPSILON.items()}
"""Logits of plain vLLM that are closer than this may change places, by the dtype of ours."""
FAR: Final = {dtype: max(_LEAST, 4 * epsilon) for dtype, epsilon in EPSILON.items()}
"""How far a number of an embedding, whose length is 1, may be from plain vLLM's."""
WHOLE: Final = 0.5
"""The share of rows that must not part at all where ours is not in float32: no tie excuses all."""

Vectors = Sequence[Sequence[float]]


def same_tokens(
    want: Mapping[str, Any], got: Sequence[int], what: str, dtype: str = "float32"
) -> bool:
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
    if gap < TIE[dtype]:
        return False
    raise Failure(
        f"{what} to be {theirs}",
        f"{list(got)}, where plain vLLM's best two logits are {gap:.3g} apart at the first "
        "difference",
    )


def same_answers(
    want: Mapping[str, Any], got: Mapping[str, Any], names: str = "row", dtype: str = "float32"
) -> str:
    """Holds all answers of a step against plain vLLM's; gives a note.

    Raises:
        Failure: as `same_tokens`; or too many part.
    """
    pairs = list(zip(want["answers"], got["answers"], strict=True))
    whole = sum(
        same_tokens(theirs, ours["tokens"], f"{names} {row}", dtype)
        for row, (theirs, ours) in enumerate(pairs)
    )
    if dtype != "float32" and whole < WHOLE * len(pairs):
        raise Failure(
            f"half of {len(pairs)} {names}s to be plain vLLM's throughout", f"{whole} in {dtype}"
        )
    tokens = sum(len(theirs["tokens"]) for theirs, _ in pairs)
    return f"{len(pairs)} {names}s of {tokens} tokens, {len(pairs) - whole} parted at a near tie"


def same_vectors(want: Vectors, got: Vectors, dtype: str = "float32") -> float:
    """Holds embeddings against plain vLLM's; the largest difference as a share of `FAR`.

    Raises:
        Failure: one is farther away, is no number, or has another width.
    """
    sizes = [[len(vector) for vector in side] for side in (want, got)]
    if sizes[0] != sizes[1]:
        raise Failure(f"vectors of {sizes[0]} numbers", f"{sizes[1]}")
    pairs = (pair for rows in zip(want, got, strict=True) for pair in zip(*rows, strict=True))
    away = [abs(theirs - ours) for theirs, ours in pairs]
    far = FAR[dtype]
    share = max(math.inf if math.isnan(one) else one for one in away) / far
    if share > 1:
        raise Failure(f"vectors within {far:g} of plain vLLM's", f"{share * far:.3g}", share=share)
    return share
