"""Altered models give their own numbers through an adapter, or are refused with the reason."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from unseen import altered_after, altered_calls, altered_encoders, altered_models
from unseen.table import table_of
from unseen.verdicts import difference, judge, plain_numbers

pytestmark = [pytest.mark.device, pytest.mark.slow]

GROUPS = (altered_models, altered_encoders, altered_calls, altered_after)
CASES = [case for group in GROUPS for case in group.CASES]
table = table_of("altered models")


def test_the_names_are_distinct():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equal_or_refused_with_the_reason(case, table):
    verdict = judge(case)
    word = verdict.word
    if case.served and word == "refused":
        word = "REFUSED"
    table.append((case.name, word, verdict.why))
    assert word in ("equal", "refused"), verdict.why


ALTERED = [c for c in CASES if (c.before or c.after or c.world is not nullcontext) and not c.inert]


@pytest.mark.parametrize("case", ALTERED, ids=lambda case: case.name)
def test_the_oracle_sees_the_alteration(case):
    """Without this a case could be `equal` since it alters nothing."""
    apart = difference(plain_numbers(case, altered=False), plain_numbers(case))
    assert isinstance(apart, str) or apart > 1e-2
