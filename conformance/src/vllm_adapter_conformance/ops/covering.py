"""Covering arrays, without torch: rows in which every two classes of two dimensions meet.

A dimension is a few classes of members: pairs are asked for between classes, which keeps the
rows few, and the members of a class are dealt in turn, so that each has its day. Not every row
may be run (a descriptor refuses it, or it is too large); what no row could hold is left over.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Dimension = Mapping[str, Sequence[Any]]
"""Members by the name of their class."""
Row = dict[str, Any]
Place = tuple[str, str]
"""A dimension, and one of its classes."""

OFF: Final = "off"
"""The class of a feature that is not asked for."""
TRIES: Final = 8
"""Rows that are tried for one pair or member before it is left over."""


@dataclass
class Covering:
    """Deals rows until every pair and member was met, and random ones after that.

    `accepts` says whether a row may be run. The same seed gives the same rows.
    """

    dimensions: Mapping[str, Dimension]
    accepts: Callable[[Row], bool]
    random: random.Random
    _used: Counter[tuple[str, int]] = field(default_factory=Counter)
    _open: set[frozenset[Place]] = field(default_factory=set)
    _lost: set[frozenset[Place]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for one, other in itertools.combinations(self.dimensions, 2):
            for pair in itertools.product(self.dimensions[one], self.dimensions[other]):
                self._open.add(frozenset(zip((one, other), pair, strict=True)))
        self._pairs = len(self._open)

    @property
    def pairs(self) -> tuple[int, int]:
        """How many pairs of classes were met, and how many there are."""
        return self._pairs - len(self._open) - len(self._lost), self._pairs

    @property
    def unseen(self) -> list[tuple[str, Any]]:
        """The members that no row had, by dimension."""
        return [
            (name, member)
            for name, classes in self.dimensions.items()
            for number, (_, member) in enumerate(_members(classes))
            if not self._used[name, number]
        ]

    def rows(self) -> Iterator[Row]:
        """Without end, unless nothing at all is accepted."""
        while self._open:
            pair = self._take()
            row = self._accepted(dict(pair), {})
            if row is None:
                self._lost.add(pair)
                self._open.discard(pair)
            else:
                yield row
        for name, member in self.unseen:
            row = self._accepted({}, {name: member})
            if row is not None:
                yield row
        while (row := self._accepted({}, {})) is not None:
            yield row

    def _take(self) -> frozenset[Place]:
        return self.random.choice(sorted(self._open, key=sorted))

    def _accepted(self, places: Mapping[str, str], members: Row) -> Row | None:
        """A row with these classes and members that may be run, and is now counted."""
        for tried in range(TRIES):
            chosen = self._classes(places, greedy=tried < TRIES // 2)
            row, numbers = self._dealt(chosen, members)
            if self.accepts(row):
                self._used.update(numbers)
                for pair in itertools.combinations(chosen.items(), 2):
                    self._open.discard(frozenset(pair))
                    self._lost.discard(frozenset(pair))
                return row
        return None

    def _classes(self, places: Mapping[str, str], *, greedy: bool) -> dict[str, str]:
        """A class for each dimension: the one that meets most classes for the first time."""
        chosen = dict(places)
        rest = [name for name in self.dimensions if name not in chosen]
        self.random.shuffle(rest)
        for name in rest:
            classes = list(self.dimensions[name])
            self.random.shuffle(classes)
            if OFF in classes and self.random.random() < 0.5:
                # What is rare meets the plain case often: three features at once are rarer still.
                classes.insert(0, classes.pop(classes.index(OFF)))
            if greedy and self._open:
                taken = list(chosen.items())
                chosen[name] = max(
                    classes,
                    key=lambda one: sum(
                        frozenset((place, (name, one))) in self._open for place in taken
                    ),
                )
            else:
                chosen[name] = classes[0]
        return chosen

    def _dealt(self, chosen: Mapping[str, str], given: Row) -> tuple[Row, list[tuple[str, int]]]:
        """A member of each class: one of those that were dealt least often."""
        row, numbers = {}, []
        for name, classes in self.dimensions.items():
            able = [
                (number, member)
                for number, (kind, member) in enumerate(_members(classes))
                if (member == given[name] if name in given else kind == chosen[name])
            ]
            least = min(self._used[name, number] for number, _ in able)
            number, member = self.random.choice(
                [found for found in able if self._used[name, found[0]] == least]
            )
            row[name] = member
            numbers.append((name, number))
        return row, numbers


def _members(classes: Dimension) -> Iterator[tuple[str, Any]]:
    return ((kind, member) for kind, members in classes.items() for member in members)
