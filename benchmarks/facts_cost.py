"""What the facts of a machine cost: this one's, quick and whole, and those of a pasted report.

    python benchmarks/facts_cost.py [--report FILE]

CPU time is user + system of the process and of all tools that it waited for; wall time tells on a
quiet machine alone. Each is the least of five. Exit code 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from import_cost import cpu_ms

ROUNDS: Final = 5
REPORT: Final = "tests/data/reports/topology-nvidia/01-8xh100-nvswitch-nv18.txt"
CLI: Final = "from vllm_adapter.cli.main import main; main({!r})"
QUICK: Final = "from vllm_adapter.hostfacts.live import collect; collect()"
TOOLS: Final = """
import time
from vllm_adapter.hostfacts.live import collect
from vllm_adapter_doctor.live.whole import collect_all
def least(call):
    spent = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return min(spent) * 1000
facts = collect_all()
tools = [line.text for line in facts.report if line.text.startswith("$ ")]
for call in (collect, collect_all):
    print(f"{call.__name__}() alone, in a running process: {least(call):.1f} ms")
print(f"tools asked: {', '.join(tools) or 'none'}")
"""


def main() -> int:
    """Prints the table; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", default=str(Path(__file__).parents[1] / REPORT))
    report = parser.parse_args().report
    cases: Mapping[str, tuple[str, float | None]] = {
        "bare Python": ("pass", None),
        "collect()": (QUICK, 60.0),
        "vllm-adapter facts": (CLI.format(["facts"]), None),
        "vllm-adapter facts --report": (CLI.format(["facts", "--report", report]), 300.0),
    }
    cpu = {name: float("inf") for name in cases}
    wall = dict(cpu)
    for _ in range(ROUNDS):  # interleaved, so that a busy moment hits every case
        for name, (code, _goal) in cases.items():
            start = time.perf_counter()
            cpu[name] = min(cpu[name], cpu_ms(["-c", code], None))
            wall[name] = min(wall[name], (time.perf_counter() - start) * 1000)
    missed = 0
    for name, (_, goal) in cases.items():
        above = cpu[name] - cpu["bare Python"]
        missed += goal is not None and above >= goal
        wanted = "" if goal is None else f"   goal < {goal:.0f} above bare"
        print(f"{name:30} CPU {cpu[name]:7.1f} ms   wall {wall[name]:7.1f} ms{wanted}")
    subprocess.run([sys.executable, "-c", TOOLS], check=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
