"""A prompt to tokens, and tokens to an answer: transformers' own tokenizer and loop."""

from __future__ import annotations

from typing import Any

import torch
from transformers import TextStreamer


def prompt_tokens(tokenizer: Any, prompt: str, *, raw: bool) -> torch.Tensor:
    """int64[1, T]: the prompt as a user's turn of the model's chat template, or `raw`."""
    if raw or not tokenizer.chat_template:
        found: torch.Tensor = tokenizer(prompt, return_tensors="pt")["input_ids"]
        return found
    chat = [{"role": "user", "content": prompt}]
    made = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    found = made["input_ids"]
    return found


def answer(
    model: Any,
    tokenizer: Any,
    tokens: torch.Tensor,
    *,
    new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    show: bool = False,
) -> list[int]:
    """At most `new_tokens` more tokens, greedy at temperature 0; `show` prints them at once.

    tokens: int64 [1, prompt length].
    """
    tokens = tokens.to(model.device)
    streamer = None
    if show:
        streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature}
    torch.manual_seed(seed)
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=new_tokens,
        streamer=streamer,
        **sampling,
    )
    new: list[int] = output[0, tokens.shape[1] :].tolist()
    return new
