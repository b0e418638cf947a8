"""Tiny random models of transformers, and how level L3 holds ours against them.

Imports torch and transformers: rules import it inside their checks only.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any, Final

import torch
import transformers

from vllm_adapter.engine.integrations.transformers import adapt, cache_argument, unadapt
from vllm_adapter.errors import VllmAdapterError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.models.decoder_shape import KV_HEADS
from vllm_adapter_conformance.models.shape import VOCABULARY, ModelShape
from vllm_adapter_conformance.ops.draw import RandomTensors

LAYERS: Final = 2
POSITIONS: Final = 128
LENGTHS: Final = (5, 16, 33, 1)
"""Tokens of each row: one a block of 16, one a token more than two."""
TIMES: Final = 4.0
"""Ours may be this much farther from the truth than the reference is."""
CLASSES: Final = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "bert": "BertModel"}
THETA: Final = {"llama": 10_000.0, "qwen3": 1_000_000.0}


def plain(shape: ModelShape, seed: int) -> Any:
    """The model on the host as transformers runs it, its weights drawn from the seed."""
    config_class = getattr(transformers, CLASSES[shape.kind]).config_class
    # Not "eager", whose softmax is in float32 also where the model is in float64.
    config = config_class(
        architectures=[CLASSES[shape.kind]], **_sizes(shape), attn_implementation="sdpa"
    )
    return drawn(config, seed, shape.kind).to(getattr(torch, shape.dtype))


def drawn(config: Any, seed: int, name: str = "") -> Any:
    """The model of a configuration's first architecture, its weights drawn from the seed."""
    (architecture,) = config.architectures
    model = getattr(transformers, architecture)(config)
    draw = RandomTensors(seed, "model", name or config.model_type)
    for place, parameter in model.named_parameters():
        value = draw.normal(*parameter.shape, dtype=torch.float32)
        if parameter.dim() == 1:
            value = 0.1 * value + (0.0 if place.endswith("bias") else 1.0)
        elif "embed" not in place:
            # Scores of a few units: softmax is far from even, and greedy tokens are stable.
            value *= 2.0 / math.sqrt(parameter.shape[-1])
        parameter.data.copy_(value)
    return model.eval()


def _sizes(shape: ModelShape) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if shape.kind == "bert":
        return sizes
    rope = {"rope_type": "default", "rope_theta": THETA[shape.kind]}
    sizes |= {
        "num_key_value_heads": KV_HEADS,
        "head_dim": shape.head_size,
        "rope_parameters": rope,
        "tie_word_embeddings": False,
    }
    if shape.window:
        sizes |= {
            "use_sliding_window": True,
            "sliding_window": shape.window,
            "max_window_layers": LAYERS - 1,
        }
    return sizes


def padded(seed: int, *, left: bool) -> dict[str, torch.Tensor]:
    """Rows of `LENGTHS` tokens, padded at one side: `input_ids` and `attention_mask`.

    Both: int64 [rows, longest length].
    """
    width = max(LENGTHS)
    ids = RandomTensors(seed, "prompts").integers(3, VOCABULARY, len(LENGTHS), width)
    real = torch.arange(width) < torch.tensor(LENGTHS)[:, None]
    mask = (real.flip(1) if left else real).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


@contextlib.contextmanager
def adapted(bench: Bench, model: Any) -> Iterator[Any]:
    """A copy of the model on the bench's device, through the adapter's operators.

    Raises:
        Failure: the adapter refuses a model that its descriptor declares in every part.
    """
    mine = copy.deepcopy(model)
    try:
        adapt(mine, bench.opened, settings=bench.settings)
    except VllmAdapterError as error:
        raise Failure(
            "adapt() to serve a model that the descriptor declares in every part",
            f"{type(error).__name__}: {error.message}",
        ) from error
    try:
        yield mine
    finally:
        unadapt(mine)


@torch.no_grad()
def logits(model: Any, given: dict[str, torch.Tensor], more: torch.Tensor) -> torch.Tensor:
    """Logits [N, vocabulary] of all real tokens: a prefill, then one token a row and step.

    `more` is [rows, steps]: the tokens are given, so that models that disagree stay comparable.
    """
    device, cache = model.device, cache_argument(model)
    ids, mask = given["input_ids"].to(device), given["attention_mask"].to(device)
    out = model(ids, attention_mask=mask, position_ids=_positions(mask), use_cache=True)
    found = [out.logits.cpu()[mask.cpu().bool()]]
    for token in torch.split(more.to(device), 1, dim=1):
        mask = torch.cat((mask, torch.ones_like(token)), 1)
        out = model(
            token,
            attention_mask=mask,
            position_ids=_positions(mask)[:, -1:],
            use_cache=True,
            **{cache: out[cache]},
        )
        found.append(out.logits[:, -1].cpu())
    return torch.cat(found)


@torch.no_grad()
def hidden_states(model: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Hidden states [N, hidden] of all real tokens."""
    there = {name: tensor.to(model.device) for name, tensor in given.items()}
    found: torch.Tensor = model(**there).last_hidden_state
    return found.cpu()[there["attention_mask"].cpu().bool()]


def share(ours: torch.Tensor, reference: torch.Tensor, truth: torch.Tensor) -> float:
    """Ours' distance from the truth, as a share of `TIMES` the reference's own.

    ours, reference, truth: [...], one shape; compared in float64.
    """
    allowed = TIMES * _distance(reference, truth)
    found = _distance(ours, truth) / allowed
    return found if math.isfinite(found) else math.inf


def _distance(got: torch.Tensor, truth: torch.Tensor) -> float:
    return float((got.double() - truth.double()).square().mean().sqrt())


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)
