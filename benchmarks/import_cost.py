"""What importing and listing cost: user + system CPU time, the minimum of nine.

    python benchmarks/import_cost.py

Wall time on a shared machine says nothing, so CPU time of the child process is taken. `list` runs
with every misbehaving adapter of tests/plugins installed beside the real ones. Exit code 1 if a
goal is missed.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fake_dist

ROUNDS: Final = 9
CLI: Final = "from vllm_adapter.cli.main import main; main({!r})"
REPORT: Final = str(
    Path(__file__).parents[1] / "tests/data/reports/collect-env/17-2080ti-8x-sm75.txt"
)
CASES: Final[Mapping[str, tuple[str, float | None]]] = {
    "bare Python": ("pass", None),
    "import vllm_adapter": ("import vllm_adapter", 60.0),
    "vllm-adapter list": (CLI.format(["list"]), 150.0),
    "vllm-adapter list, answers kept": (CLI.format(["list"]), 150.0),
    "vllm-adapter doctor --report": (CLI.format(["doctor", "--report", REPORT]), 300.0),
    "vllm-adapter --help": (CLI.format(["--help"]), None),
}
"""A case's code, and its goal in milliseconds above bare Python."""


def main() -> int:
    """Prints the table; 1 if a goal is missed."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        fake_dist.install_all(site)
        cold = fake_dist.environment(site, XDG_CACHE_HOME=str(site / "none"))
        warm = fake_dist.environment(site)
        probing = "from vllm_adapter.discovery import registry as r; "
        probing += "from vllm_adapter.settings import *; "
        probing += "r.probe(r.discover(Settings()), limit_s=9)"
        cpu_ms(["-c", probing], warm)
        least = {name: float("inf") for name in CASES}
        for _ in range(ROUNDS):  # interleaved, so that a busy moment hits every case
            for name, (code, _goal) in CASES.items():
                spent = cpu_ms(["-c", code], warm if "kept" in name else cold)
                least[name] = min(least[name], spent)
    bare = least["bare Python"]
    missed = 0
    for name, (_, goal) in CASES.items():
        above = least[name] - bare
        missed += goal is not None and above >= goal
        wanted = "" if goal is None else f"   goal < {goal:.0f}"
        print(f"{name:34}{least[name]:7.1f} ms   {above:6.1f} above bare{wanted}")
    return 1 if missed else 0


def cpu_ms(words: Sequence[str], environment: Mapping[str, str] | None) -> float:
    """User + system time of one Python process and all that it waited for; None is our own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words],
        env=None if environment is None else dict(environment),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    return spent * 1000


if __name__ == "__main__":
    raise SystemExit(main())
