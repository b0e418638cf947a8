"""How long a case may take: its rule's limit, or once that of a kernel that compiles at first.

A compiler may need minutes at the first call of a process. A case that is over its limit is
therefore tried once more, in a new process, with `COMPILE_S`; from then on the cases of its
operator have that limit, since each new process compiles again. An operator that does not end
within that either hangs: its other cases get no second try.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.rule import OPERATORS_LEVEL, SPEED
from vllm_adapter_conformance.judge.journal import Event, of
from vllm_adapter_conformance.plan.suite import SuiteItem

COMPILE_S: Final = 300.0
"""For a case whose kernel may compile."""
_NAMES: Final = sorted(OPERATORS, key=len, reverse=True)


def operator_of(item: str) -> str:
    """The operator that an item's id names; its rule where it names none."""
    for name in _NAMES:
        if re.search(rf"(?<![a-z_]){name}(?![a-z_])", item):
            return name
    return item.partition("[")[0]


def usual_of(item: SuiteItem) -> float:
    """The seconds of a case: its own, or its rule's."""
    return item.case.seconds or item.rule.seconds


def limit_of(item: SuiteItem, events: Iterable[Event]) -> float:
    """The seconds that a case may take now, by what the run's journal holds."""
    usual = usual_of(item)
    if item.rule.level < OPERATORS_LEVEL:
        return usual
    over = _overdue(events)
    mine = operator_of(item.id)
    slow = any(operator_of(other) == mine for other in over)
    return max(usual, COMPILE_S) if slow and not _given_up(mine, over) else usual


def may_try_again(item: SuiteItem, events: Iterable[Event]) -> bool:
    """Whether a case that has just been tried was ended at its limit, and gets a second try.

    A load of L5 that stalls gets none: it had longer than a compiler takes.
    """
    if item.rule.level == SPEED and usual_of(item) >= COMPILE_S:
        return False
    over = _overdue(events)
    first = over.count(item.id) == 1
    return (
        item.rule.level >= OPERATORS_LEVEL
        and first
        and not _given_up(operator_of(item.id), over[:-1])
    )


def _overdue(events: Iterable[Event]) -> list[str]:
    """Items that the device was busy with for longer than they may take."""
    return [event["item"] for event in of(events, "overdue")]


def _given_up(operator: str, over: list[str]) -> bool:
    """Whether a case of the operator was ended at the longer limit too."""
    return any(over.count(item) > 1 and operator_of(item) == operator for item in over)
