"""The figures of a table that `run.py` wrote: who was caught, by operator and family.

python tests/mutants/figures.py first-run.csv
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAMILIES = ("numerics", "sizes", "attention", "layouts", "state")
RIGHT = "right"


def read(file: Path) -> list[dict[str, str]]:
    """The lines of a table; what stands above its head is a remark."""
    lines = file.read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def figures(lines: list[dict[str, str]]) -> str:
    """A table of Markdown: caught of mutants, and failed of right kernels."""
    bad, all_ = Counter(), Counter()
    for line in lines:
        for op in (line["operator"], "all"):
            for family in (line["family"], *(["mutants"] if line["family"] != RIGHT else [])):
                all_[op, family] += 1
                bad[op, family] += line["verdict"] == "caught"
    heads = (*FAMILIES, "mutants", RIGHT)
    rows = [
        "| operator | " + " | ".join(FAMILIES) + " | caught | right that failed |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for op in [*sorted({line["operator"] for line in lines}), "all"]:
        cells = [f"{bad[op, f]} of {all_[op, f]}" if all_[op, f] else "" for f in heads]
        rows.append(f"| {op} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> int:
    lines = read(Path(sys.argv[1]))
    print(figures(lines))
    for verdict, right in (("survived", False), ("error", False), ("caught", True)):
        names = [
            line["name"]
            for line in lines
            if line["verdict"] == verdict and (line["family"] == RIGHT) is right
        ]
        print(f"\n{'right, ' if right else ''}{verdict}: {', '.join(names) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
