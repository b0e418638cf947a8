"""What each portable operator costs on the simulated accelerator, beside the CPU.

    python benchmarks/sim_ops.py [--json FILE]

For each operator, in microseconds a call, as medians of rounds in turns in one run: the call
through its overload on the device, waited for (wall time); the same until it is queued (CPU time
of the calling thread); what of that is not the output's allocation; and the same operator as plain
torch on the CPU. The simulator computes one element after the other on one thread: the figures
say what a call costs the host, and nothing of a chip.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.device import open_record
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.settings import Settings
from vllm_adapter_conformance.ops.trials import TRIALS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import clib_judge
import sim_library

ROUNDS: Final = 9
CALLS: Final = 200
BLOCK: Final = 24
COLUMNS: Final = ("done", "queued", "call alone", "CPU")


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VA_LIBRARY"] = str(sim_library.build_sim(Path(folder)))
        open_record(clib_judge.target().record, 0, Settings.from_environ())
        medians = _measured({op: _lines(op) for op in OPERATORS})
    print(f"{'operator, us a call':22}" + "".join(f"{column:>12}" for column in COLUMNS))
    for op, row in medians.items():
        print(f"{op:22}" + "".join(f"{row[column]:12.1f}" for column in COLUMNS))
    if file is not None:
        file.write_text(json.dumps(medians, indent=2) + "\n", encoding="utf-8")
    return 0


def _lines(op: str) -> Mapping[str, Callable[[], Any]]:
    """What is timed for an operator: its first sample, one small batch."""
    spec = SPECS[op]
    facts: dict[str, FactValue] = {
        name: spec.operator.facts[name].samples[0] for name in spec.operator.bind_facts
    }
    facts |= {"dtype": "float32"} | ({"block_size": BLOCK} if "block_size" in facts else {})
    binding = bind(OpCase.of(op, "sim:0", facts), Settings.from_environ(), owner=_Owner())
    sample = TRIALS[op].samples(facts, 0)[0]
    mine = list(sample.build(lambda tensor: tensor.to("sim:0")))
    host = list(sample.build(lambda tensor: tensor))
    if spec.operator.planned:
        assert sample.step is not None
        step = sample.step(torch.device("sim:0"))
        binding.plan(step)
        mine[3:6] = [step.block_table, step.seq_lens, step.query_start_loc]
        mine[-1] = binding.handle
        host[-1] = None
    outputs = [out for out in _tuple(binding.run(*mine)) if out is not None]
    wait: Callable[[], None] = torch.sim.synchronize  # type: ignore[attr-defined] # ours

    def done() -> None:
        binding.run(*mine)
        wait()

    def allocations() -> None:
        for out in outputs:
            torch.empty(out.shape, dtype=out.dtype, device="sim:0")

    return {
        "done": done,
        "queued": lambda: binding.run(*mine),
        "allocation": allocations,
        "CPU": lambda: spec.generic(*host),
    }


def _measured(lines: Mapping[str, Mapping[str, Callable[[], Any]]]) -> dict[str, dict[str, float]]:
    spent: dict[str, dict[str, list[float]]] = {
        op: {name: [] for name in row} for op, row in lines.items()
    }
    for _ in range(ROUNDS):  # interleaved, so that a busy moment hits every line
        for op, row in lines.items():
            for name, run in row.items():
                timer = time.perf_counter if name == "done" else time.thread_time
                each = timeit.timeit(run, timer=timer, number=CALLS) / CALLS
                spent[op][name].append(each * 1e6)
                torch.sim.synchronize()  # type: ignore[attr-defined] # ours
    found = {
        op: {name: statistics.median(each) for name, each in row.items()}
        for op, row in spent.items()
    }
    for row in found.values():
        row["call alone"] = row["queued"] - row.pop("allocation")
    return found


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


class _Owner:
    """Of a plan's handle."""


if __name__ == "__main__":
    raise SystemExit(main())
