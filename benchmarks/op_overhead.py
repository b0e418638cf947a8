"""What an eager call of a portable operator costs over a bare torch operator, same process.

    python benchmarks/op_overhead.py [--rounds 15] [--calls 2000]

Three operators run one empty kernel on one row: a bare `torch.library` operator of our schema,
our overload, and our default (which looks the case up). Rounds are interleaved, so that a busy
machine slows all three alike; each ratio is taken inside a round. The goal is 1.5.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.library import Library, register_fake

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.settings import Fallback, Settings

GOAL: Final = 1.5
SPEC: Final = SPECS["rms_norm"]
DESCRIPTOR: Final = {
    "schema": "vllm-adapter/capability/1.0",
    "identity": {"vendor": "Benchmark", "arch": "any", "torch_type": "cpu"},
    "operators": {
        "rms_norm": {"support": "full", "dtypes": ["float32"], "run": f"{__name__}:kernel"}
    },
}
_LIBRARY: Final[Any] = Library("va_benchmark", "FRAGMENT")
_OUT: Final = torch.empty(1, 64)


def kernel(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Nothing: what is left is the way to it."""
    return _OUT


def contestants() -> dict[str, Callable[..., torch.Tensor]]:
    """The bare operator first."""
    _LIBRARY.define("bare" + SPEC.schema)
    _LIBRARY.impl("bare", kernel, "CPU")
    register_fake("va_benchmark::bare", SPEC.fake, lib=_LIBRARY)
    PROVIDERS.use("benchmark", parse_capability(DESCRIPTOR, "benchmark"), "cpu")
    case = OpCase.of("rms_norm", "cpu", {"dtype": "float32", "hidden": 64})
    return {
        "bare operator": torch.ops.va_benchmark.bare.default,
        "our overload": bind(case, Settings(fallback=Fallback.ERROR)).run,
        "our default": torch.ops.vllm_adapter.rms_norm.default,
    }


def seconds(run: Callable[..., torch.Tensor], calls: int) -> float:
    """Processor time of one call."""
    x, weight = torch.ones(1, 64), torch.ones(64)
    begin = time.process_time()
    for _ in range(calls):
        run(x, weight, 1e-6)
    return (time.process_time() - begin) / calls


def main() -> None:
    """Prints one line a contestant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = contestants()
    with torch.inference_mode():
        for run in runs.values():
            seconds(run, args.calls)
        rounds = [
            {name: seconds(run, args.calls) for name, run in runs.items()}
            for _ in range(args.rounds)
        ]
    bare = next(iter(runs))
    print(f"torch {torch.__version__}, {args.rounds} rounds of {args.calls} calls; goal {GOAL}x")
    for name in runs:
        times = [round[name] * 1e6 for round in rounds]
        ratios = sorted(round[name] / round[bare] for round in rounds)
        middle = statistics.quantiles(ratios, n=4)
        print(
            f"{name:14} best {min(times):6.2f} us, median {statistics.median(times):6.2f} us, "
            f"ratio {statistics.median(ratios):.2f} (half of the rounds: "
            f"{middle[0]:.2f} to {middle[2]:.2f})"
        )


if __name__ == "__main__":
    main()
