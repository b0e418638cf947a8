"""A prompt to tokens by transformers' own tokenizer, and tokens to an answer."""

from __future__ import annotations

from typing import Any

import torch
from transformers import TextStreamer

from vllm_adapter.engine.runner.generator import Generator
from vllm_adapter.engine.runner.sampling import SamplingParams


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

    tokens: int64 [1, prompt length]. Top-k, top-p and the stop tokens are the model's own.
    """
    given = model.generation_config
    sampling = SamplingParams()
    if temperature:
        sampling = SamplingParams(temperature, given.top_k or 0, given.top_p or 1.0, seed)
    prompt = tokens[0].tolist()
    generator = Generator(model, max_batch=1, context=len(prompt) + new_tokens)
    stop = given.eos_token_id if isinstance(given.eos_token_id, list) else [given.eos_token_id]
    request = generator.add(
        prompt,
        max_new_tokens=new_tokens,
        sampling=sampling,
        stop=[token for token in stop if token is not None],
    )
    streamer = TextStreamer(tokenizer, skip_special_tokens=True) if show else None
    for _, token in generator.stream():
        if streamer is not None:
            streamer.put(torch.tensor([token]))
    if streamer is not None:
        streamer.end()
    return request.tokens
