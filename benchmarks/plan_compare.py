"""Holds what `plan_predict.py` said against what `plan_measure.py` saw: shares, orders of speed.

`plan_compare.py PREDICTED MEASURED`, where MEASURED holds one JSON object a line. A speed is the
best of the rounds; the first of them pays for prefill.
"""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path


def ranks(values: list[float]) -> list[float]:
    """The rank of each value; equal ones share theirs."""
    order = sorted(values)
    return [order.index(one) + (order.count(one) - 1) / 2 for one in values]


def spearman(one: list[float], other: list[float]) -> float:
    """The correlation of the ranks."""
    a, b = ranks(one), ranks(other)
    mean = (len(a) - 1) / 2
    spread = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True)) / spread**0.5


def main() -> None:
    predicted = json.loads(Path(sys.argv[1]).read_text())["models"]
    lines = Path(sys.argv[2]).read_text().splitlines()
    measured = [json.loads(line) for line in lines if line.startswith("{")]
    for name, dtypes in predicted.items():
        pairs: dict[str, tuple[float, float]] = {}
        for seen in (one for one in measured if one["model"] == name):
            said = dtypes[seen["dtype"]]
            for key in ("weight_bytes", "kv_blocks", "peak_bytes"):
                off = 100 * (said[key] / seen[key] - 1)
                print(
                    f"{name} {seen['dtype']} {key}: {said[key]:,} of {seen[key]:,} ({off:+.1f} %)"
                )
            for case, speeds in seen["decode_tokens_a_second"].items():
                speed = said["decode_tokens_a_second"][case]
                pairs[f"{seen['dtype']} {case}"] = (speed, max(speeds))
        if not pairs:
            continue
        rho = spearman(*(list(side) for side in zip(*pairs.values(), strict=True)))
        print(f"{name}: {len(pairs)} cases, Spearman {rho:.3f}")
        for one, other in combinations(pairs, 2):
            if (pairs[one][0] - pairs[other][0]) * (pairs[one][1] - pairs[other][1]) < 0:
                print(f"  inverted: {one} {pairs[one]}, {other} {pairs[other]}")


if __name__ == "__main__":
    main()
