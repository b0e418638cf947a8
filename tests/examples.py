"""How many examples a property is tried with, as the profile of the run has it."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Hypothesis' own count, by which the counts of the tests are meant."""


def examples(count: int) -> int:
    """`count` where the run has the usual profile, and its share in a profile with fewer."""
    return max(1, count * settings.default.max_examples // USUAL)
