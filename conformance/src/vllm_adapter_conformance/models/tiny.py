"""Tiny random models of transformers, and how level L3 holds ours against them.

Imports torch and transformers: rules import it inside their checks only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import transformers

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


def sent(shape: ModelShape, model: Any) -> dict[str, Any]:
    """The model as `device_side.models.built` makes it again: with its weights."""
    return {
        "architecture": CLASSES[shape.kind],
        "options": _sizes(shape),
        "dtype": shape.dtype,
        "weights": dict(model.state_dict()),
    }


def observed(bench: Bench, look: Callable[..., Mapping[str, Any]], **given: Any) -> Any:
    """What a function of `device_side.models` saw of a model on the device.

    Raises:
        Failure: the adapter refuses a model that its descriptor declares in every part.
    """
    seen = bench.observe(look, **given)
    if "refused" in seen:
        raise Failure(
            "adapt() to serve a model that the descriptor declares in every part",
            str(seen["refused"]),
        )
    return seen


def share(ours: torch.Tensor, reference: torch.Tensor, truth: torch.Tensor) -> float:
    """Ours' distance from the truth, as a share of `TIMES` the reference's own.

    ours, reference, truth: [...], one shape; compared in float64.
    """
    allowed = TIMES * _distance(reference, truth)
    if ours.shape != truth.shape:
        return math.inf
    found = _distance(ours, truth) / allowed
    return found if math.isfinite(found) else math.inf


def _distance(got: torch.Tensor, truth: torch.Tensor) -> float:
    return float((got.double() - truth.double()).square().mean().sqrt())
