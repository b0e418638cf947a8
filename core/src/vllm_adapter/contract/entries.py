"""The entries of a descriptor's operators, with limits in the facts of each operator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

from msgspec import Meta, defstruct
from msgspec.structs import replace

from vllm_adapter.contract.decision import OperatorEntry
from vllm_adapter.contract.operators import OPERATORS, PHASES, CaseProperty
from vllm_adapter.contract.reading import CLOSED, SOME, Amount, Fault, Rate, Text, Whole, read
from vllm_adapter.contract.sections import GivenSource


class Bounds(TypedDict, total=False):
    """Bounds that must all hold."""

    min: Amount
    """Least value."""
    max: Amount
    """Greatest value."""
    multiple_of: Rate
    """The value is a multiple of this."""


CLOSED[Bounds] = 1
_VALUES: Final[Mapping[Any, Any]] = {bool: bool, int: Whole, float: Amount, str: Text}


def _summary(name: str) -> str:
    text = OPERATORS[name].summary
    return f"{text[0].upper()}{text[1:]}: an entry, or a list of entries, tried in order."


def _rule_type(fact: CaseProperty) -> Any:
    """What limits may say of a fact, by the type of its samples."""
    kind = type(fact.samples[0])
    value: Any = Literal.__getitem__(PHASES) if fact.step else _VALUES[kind]
    rule: Any = Annotated[tuple[value, ...], SOME]
    need = "a list of values"
    if kind in (int, float):
        rule, need = Bounds | rule, f"{need}, or an object of min, max, multiple_of"
    text = f"{fact.summary[0].upper()}{fact.summary[1:]}."
    return Annotated[rule, Meta(description=text, extra={"need": need})]


@cache
def _entries_type(name: str) -> Any:
    """An entry of one operator, whose limits name that operator's facts, or a list of them."""
    facts = OPERATORS[name].facts
    types = {fact: _rule_type(one) for fact, one in facts.items()}
    kind: Any = TypedDict(f"{name}_limits", types, total=False)  # type: ignore[misc]
    CLOSED[kind] = 0
    text = "What is declared of each fact of the operator."
    limits: Any = Annotated[kind, Meta(description=text)]
    entry: Any = defstruct(name, [("limits", limits, {})], bases=(OperatorEntry,), frozen=True)
    return Annotated[entry | Annotated[tuple[entry, ...], SOME], Meta(description=_summary(name))]


if TYPE_CHECKING:
    Operators = Mapping[str, tuple[OperatorEntry, ...]]
else:
    Operators = TypedDict(
        "Operators",
        {**{name: _entries_type(name) for name in OPERATORS}, "source": GivenSource},
        total=False,
    )


def parse_entries(operator: str, raw: Any) -> tuple[OperatorEntry, ...]:
    """One declaration of an operator, or a list of them.

    Raises:
        Fault: the first rule that it breaks.
    """
    at = f"/operators/{operator}"
    kind: Any = _entries_type(operator)
    return finished(at, read(raw, kind, at=at), raw)


def finished(at: str, found: Any, raw: Any) -> tuple[OperatorEntry, ...]:
    """The entries that were read, with their pointers and their limits as they are written."""
    if isinstance(raw, list):
        pairs = enumerate(zip(found, raw, strict=True))
        return tuple(finished(f"{at}/{i}", one, written)[0] for i, (one, written) in pairs)
    needed = {"full": ("dtypes", "run"), "versioned": ("dtypes", "run", "first_version")}
    for key in needed.get(found.support, ()):
        if not getattr(found, key):
            raise Fault(at, f"is {found.support} and so needs {key}")
    limits = raw.get("limits", {}).items()
    rules = {fact: tuple(rule) if isinstance(rule, list) else rule for fact, rule in limits}
    return (replace(found, pointer=at, limits=rules),)
