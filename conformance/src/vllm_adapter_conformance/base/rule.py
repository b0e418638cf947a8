"""What a rule is: an id, a level, the cases it makes of a descriptor, and a check of one case.

Rules live in `rules/`, one theme a file, and are collected by importing it. Making cases never
imports torch and never opens a device; checking may do both, and runs in the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.bench import Bench
    from vllm_adapter_conformance.base.target import Target

LEVELS: Final = ("L0", "L1", "L2", "L3", "L4", "L5")
OPERATORS_LEVEL: Final = "L2"
"""From this level on cases are drawn."""
MODELS: Final = "L3"
"""From this level on transformers is needed."""
SERVING: Final = "L4"
"""From this level on vLLM is needed."""
SPEED: Final = "L5"
"""From this level on calls are timed, and a load runs for minutes."""


def level_to_open(level: str, only: Sequence[str]) -> str:
    """The level whose needs a run has: L5's own items take the device, and neither model nor vLLM.

    `only` are the items that were asked for; none: all.
    """
    alone = only and all(item.startswith(f"{SPEED}.") for item in only)
    return OPERATORS_LEVEL if alone else level


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to check: one pytest item. `params` is plain data.

    `pointer` is the place in the descriptor that declares the case, where one does. `seconds` is
    its limit, where it is not its rule's.
    """

    id: str
    params: Mapping[str, Any] = field(default_factory=dict)
    pointer: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class NotDeclaredCase:
    """A case that the descriptor does not declare: listed, and not collected."""

    id: str
    pointer: str
    reason: str


Counters = Mapping[str, Mapping[str, Mapping[str, int]]]
Figures = Mapping[str, Any]
"""What a case of L5 measured, as the certificate's section `performance` has it."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a passed check saw. `share`: the largest error, as a share of the budget.

    `counters`: calls of operators in vLLM's processes, by process, operator and provider.
    `facts`: plain data of the device, for the certificate.
    `figures`: what a case of L5 measured.
    """

    share: float | None = None
    note: str = ""
    counters: Counters | None = None
    facts: Mapping[str, Any] | None = None
    figures: Figures | None = None


class Failure(Exception):
    """A case that does not hold. `seen` and `expected` are short; `detail` may be long.

    `figures`: what a case of L5 measured all the same. `cause` is one word for what wrong values
    look like, by which equal failures are found.
    """

    def __init__(
        self,
        expected: str,
        seen: str,
        *,
        share: float | None = None,
        detail: str = "",
        figures: Figures | None = None,
        cause: str = "",
    ) -> None:
        super().__init__(f"expected {expected}; saw {seen}")
        self.expected = expected
        self.seen = seen
        self.share = share
        self.detail = detail
        self.figures = figures
        self.cause = cause


Check = Callable[["Bench", Case], Observation | None]
Cases = Callable[["Target"], Iterator[Case | NotDeclaredCase]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `why` is its page: what breaks for a user when it fails, and how to mend it."""

    id: str
    level: str
    summary: str
    why: str
    cases: Cases
    check: Check
    needs: tuple[str, ...] = ()
    """Rules without which this one says nothing: if one fails, this is `blocked by` it."""
    seconds: float = 60.0
    """Limit for one case."""
    preview: bool = False
    """New: reported, and not counted for the level."""
    since: str = ""
    """The minor release in which a preview came, such as "0.1": in the next one it counts, or is
    taken out."""


RULES: Final[dict[str, Rule]] = {}


def rule(
    id: str,
    *,
    summary: str,
    why: str,
    cases: Cases,
    needs: Sequence[str] = (),
    seconds: float = 60.0,
    preview: bool = False,
    since: str = "",
) -> Callable[[Check], Check]:
    """Registers a check as a rule; its level is the first part of its id."""

    def register(check: Check) -> Check:
        level = id.partition(".")[0]
        if id in RULES or level not in LEVELS:
            raise ValueError(f"the rule {id} is registered twice, or has no level")
        RULES[id] = Rule(
            *(id, level, summary, why, cases, check, tuple(needs), seconds), preview, since
        )
        return check

    return register


def once(target: Target) -> Iterator[Case]:
    """The cases of a rule that looks at the adapter as a whole."""
    yield Case("adapter")
