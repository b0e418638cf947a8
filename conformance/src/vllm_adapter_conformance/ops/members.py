"""The members of an operator's dimensions for one descriptor and one run, without torch.

Beside the boundaries of `dimensions` stand the ends of the limits that a descriptor sets, and
numbers that are other ones in each run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import OperatorEntry, Rule, holds
from vllm_adapter.contract.operators import CaseProperty, FactValue, Operator
from vllm_adapter_conformance.ops.covering import Dimension
from vllm_adapter_conformance.ops.dimensions import SAMPLED, STANDARD

ANY: Final = "drawn"
"""The class of members that are other ones in each run."""
_ANY_COUNT: Final = 4
_LEAST: Final = {"batch": 2, "queries": 2, "vocabulary": 3, "pool": 3}


def sampled(op: str, random: Random) -> dict[str, Dimension]:
    """`SAMPLED` with numbers that nobody named: between a dimension's ends, small ones oftener."""
    found = dict(SAMPLED[op])
    for name in ("batch", "queries", "tokens", "context", "vocabulary", "positions", "rows"):
        if name in found:
            found[name] = {**found[name], ANY: _any_sizes(found[name], name, random)}
    return found


def _any_sizes(classes: Dimension, name: str, random: Random) -> tuple[Any, ...]:
    members = list(itertools.chain.from_iterable(classes.values()))
    if name == "rows":
        sizes = [_log_uniform(random, 2, 600) for _ in range(_ANY_COUNT)]
        return tuple(dict.fromkeys((size,) for size in sizes))
    most = max(member for member in members if isinstance(member, int))
    least = _LEAST.get(name, 1)
    return tuple(dict.fromkeys(_log_uniform(random, least, most) for _ in range(_ANY_COUNT)))


def _log_uniform(random: Random, least: int, most: int) -> int:
    return min(most, int(least * (most / least) ** random.random() + 0.5))


def plain(op: str) -> dict[str, Any]:
    """A small choice: what comes between two calls of another shape."""
    small = {"rows": (3,), "tokens": 3, "queries": 2, "context": "short", "batch": 2}
    small |= {"vocabulary": 50, "positions": 64}
    return {
        name: small.get(name, next(iter(classes.values()))[0])
        for name, classes in SAMPLED[op].items()
    }


def fact_dimension(
    entries: Iterable[OperatorEntry], operator: Operator, name: str, random: Random
) -> dict[str, Sequence[Any]]:
    """The classes of a fact's values that some entry admits, and those that its limits name.

    Of a range, values between its ends are drawn as well.
    """
    fact = operator.facts[name]
    rules = [_rule(entry, fact, name) for entry in entries if entry.declares]
    standard = STANDARD.get(name) or {str(value): (value,) for value in fact.samples}
    named = list(
        dict.fromkeys(itertools.chain.from_iterable(_named(fact, rule) for rule in rules))
    )
    known = set(itertools.chain.from_iterable(standard.values()))
    between = itertools.chain.from_iterable(
        _between(fact, rule, known, random) for rule in rules if not isinstance(rule, tuple)
    )
    found = {
        kind: tuple(v for v in members if any(holds(rule, v) for rule in rules))
        for kind, members in [*standard.items(), ("its limits", named), (ANY, [*between])]
    }
    found["its limits"] = tuple(v for v in found["its limits"] if v not in known)
    known |= {*found["its limits"]}
    found[ANY] = tuple(dict.fromkeys(v for v in found[ANY] if v not in known))
    return {kind: members for kind, members in found.items() if members}


def admitting(capability: Capability, operator: Operator) -> list[OperatorEntry]:
    """The entries that may serve an operator: its own, and those of what it is composed of."""
    parts = [operator.name, *filter(None, [operator.composed_of])]
    return [entry for part in parts for entry in capability.operators.get(part, ())]


def _between(
    fact: CaseProperty, rule: Mapping[str, Any], known: Iterable[FactValue], random: Random
) -> list[FactValue]:
    """Values of a range, other ones in each run, that are spread as sizes are."""
    kind = type(fact.samples[0])
    if kind in (bool, str):
        return []
    if kind is float:
        ends = (max(0.5, rule.get("min", 0)), rule.get("max", 60.0))
        return [round(random.uniform(*ends), 2) for _ in range(_ANY_COUNT)]
    step = rule.get("multiple_of", 1)
    least = max(1, math.ceil(rule.get("min", 1) / step))
    most = math.floor(rule.get("max", max(v for v in known if isinstance(v, int))) / step)
    if most < least:
        return []
    tried = [step * _log_uniform(random, least, most) for _ in range(3 * _ANY_COUNT)]
    return [value for value in dict.fromkeys(tried) if value not in known][:_ANY_COUNT]


def _rule(entry: OperatorEntry, fact: CaseProperty, name: str) -> Rule:
    """What an entry admits of a fact: as `decide` has it."""
    return entry.limits.get(name, {} if fact.off is None else (fact.off,))


def _named(fact: CaseProperty, rule: Rule) -> list[FactValue]:
    """The values at the ends of a rule, and odd multiples between."""
    if isinstance(rule, tuple):
        return list(rule)
    if not rule or isinstance(fact.samples[0], (bool, str)):
        return []
    kind = type(fact.samples[0])
    step = rule.get("multiple_of", 1)
    least = math.ceil(max(rule.get("min", 0), step) / step) * step
    tried = [least, least + step, 3 * step, 5 * step, 7 * step, 13 * step]
    if "max" in rule:
        most = math.floor(rule["max"] / step) * step
        tried += [most, most - step]
    return [kind(value) for value in tried if value > 0 and holds(rule, kind(value))]
