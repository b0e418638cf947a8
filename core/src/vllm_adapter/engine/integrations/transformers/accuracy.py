"""How well a model foretells a text: what fewer bits cost, and when that is too much."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F

from vllm_adapter.contract.quantization import MOST_PERPLEXITY

WINDOW: Final = 512
"""Tokens that a forward sees, from its first: each window begins without a past."""
TEXT: Final = Path(__file__).with_name("accuracy_text.txt")
"""Prose of this project's own pages (Apache-2.0) as of December 2026: no tables, no code.

It is the yardstick, so it stays as it is when the pages change.
"""
QUICK: Final = 1024
"""Tokens of the text that `vllm-adapter run --quantize` looks at before it answers."""


def accuracy_tokens(tokenizer: Any, count: int | None = QUICK) -> torch.Tensor:
    """int64[n]: the first `count` tokens of the text, or all of them."""
    # A GGUF file's tokenizer warns of texts that are longer than the model's context.
    text = TEXT.read_text(encoding="utf-8")
    found: list[int] = tokenizer(text if count is None else text[: 16 * count], verbose=False)[
        "input_ids"
    ]
    return torch.tensor(found if count is None else found[:count])


def perplexity(model: Any, tokens: torch.Tensor, window: int = WINDOW) -> float:
    """The exponential of the mean loss of each token but the first of its window.

    tokens: int64[n], of the model's tokenizer; at least 2.
    """
    loss, count = 0.0, 0
    window = min(window, model.config.max_position_embeddings)
    with torch.inference_mode():
        for part in torch.split(tokens.to(model.device), window):
            if len(part) < 2:
                continue
            logits = model(input_ids=part[None], use_cache=False).logits[0, :-1]
            loss += float(F.cross_entropy(logits.float().cpu(), part[1:].cpu(), reduction="sum"))
            count += len(part) - 1
    return math.exp(min(loss / count, 700.0)) if count and loss == loss else math.inf


def cost_sentence(form: str, before: float, after: float) -> str:
    """The figures: "int8 costs 0.21 % of perplexity (15.020 to 15.052), of 1 % at most"."""
    most = (MOST_PERPLEXITY[form] - 1) * 100
    cost = (after / before - 1) * 100
    figures = f"{before:.3f} to {after:.3f}"
    return f"{form} costs {cost:.2f} % of perplexity ({figures}), of {most:.0f} % at most"


def is_too_much(form: str, before: float, after: float) -> bool:
    """Whether a form costs more than it may; what cannot be compared does."""
    return not after <= before * MOST_PERPLEXITY[form]
