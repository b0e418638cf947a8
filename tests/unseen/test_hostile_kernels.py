"""An adapter's kernels serve who names that adapter, and never the cpu adapter's users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_dist import environment
from unseen.hostile_kernels import CASES, REDEFINERS, TURNS, make
from unseen.table import table_of

pytestmark = [pytest.mark.device, pytest.mark.slow]
table = table_of("hostile kernels")
TESTS = str(Path(__file__).parents[1])


def turns(site, *names, **variables):
    path = os.pathsep.join([str(site.path), TESTS])
    return site.run(
        "-c", TURNS, *names, variables={"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_named_adapter_runs_and_no_other(case, site, table):
    make(case, site.path)
    direct = {"UNSEEN_PACKET": "1"} if case in REDEFINERS else {}
    done = turns(site, *(name for name, _ in case.turns), **direct)
    lines = done.stdout.splitlines()
    seen = json.loads(lines[-1]) if done.returncode == 0 and lines else []
    right = len(seen) == len(case.turns) and all(
        word in allowed for (word, _), (_, allowed) in zip(seen, case.turns, strict=True)
    )
    why = "; ".join(f"{name} {word}: {more}" for (name, _), (word, more) in zip(case.turns, seen))  # noqa: B905
    table.append((case.name, "right" if right else "WRONG", why or done.stderr[-200:]))
    assert right, why or done.stderr[-2000:]


@pytest.mark.parametrize("case", REDEFINERS, ids=lambda case: case.name)
def test_a_rule_finds_who_redefines_an_operator(case, site, tmp_path, table):
    make(case, site.path)
    words = ["certify", "villain", "--level", "L2", "--output", str(tmp_path / "villain.json")]
    done = subprocess.run(
        [sys.executable, "-m", "vllm_adapter.cli", *words],
        env=environment(site.path, OMP_NUM_THREADS="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    found = done.returncode == 1 and "Traceback" not in done.stderr
    text = (done.stdout + done.stderr)[:200]
    table.append((f"certify: {case.name}", "found" if found else "WRONG", text))
    assert found, text
