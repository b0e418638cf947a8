"""What descriptors of `test_one_resolver` name as `supports`."""

from __future__ import annotations


def wide_only(facts):
    sizes = [value for name, value in facts.items() if name in ("hidden", "head_size")]
    return "only wide ones" if sizes and min(sizes) < 64 else None


def never(facts):
    return "never on a Sunday"


def fails(facts):
    raise ValueError("the toolkit is missing")
