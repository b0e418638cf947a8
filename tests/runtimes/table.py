"""What is known of the wrong runtimes: that they are as frozen, and which rule sees which."""

from __future__ import annotations

import csv
import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
QUICK: Final[dict[str, dict[str, str]]] = tomllib.loads((HERE / "seen_by.toml").read_text("utf-8"))
"""By kind and name the rule that sees it: those that a test tries."""


def digests() -> dict[str, str]:
    """SHA-256 of the files that hold wrong runtimes."""
    return {name: hashlib.sha256((HERE / name).read_bytes()).hexdigest() for name in frozen()}


def frozen() -> dict[str, str]:
    """Those that were noted before the rules were written."""
    lines = (HERE / "frozen.sha256").read_text("utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def first_run() -> dict[str, dict[str, str]]:
    """The table of the first run, by name."""
    with (HERE / "first_run.csv").open(newline="", encoding="utf-8") as file:
        return {line["name"]: line for line in csv.DictReader(file)}


def tried(kind: str, folder: Path) -> dict[str, dict[str, str]]:
    """Runs those of QUICK, each with its rule alone, in one process; gives lines by name."""
    table = folder / "table.csv"
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "run.py"), *QUICK[kind], "--expected"),
            *("--output", str(table), "--libraries", str(folder)),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert table.is_file(), done.stderr[-3000:]
    with table.open(newline="", encoding="utf-8") as file:
        return {line["name"]: line for line in csv.DictReader(file)}
