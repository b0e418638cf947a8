"""Covering arrays, without torch: rows in which every two classes of two dimensions meet.

A dimension is a few classes of members: pairs are asked for between classes, which keeps the
rows few, and the members of a class are dealt in turn, so that each has its day. Chosen triples
of classes meet as well. Not every row may be run (a descriptor refuses it, or it is too large);
what no row could hold is left over. What could take effect in no row is not asked for.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

Dimension = Mapping[str, Sequence[Any]]
"""Members by the name of their class."""
Row = dict[str, Any]
Place = tuple[str, str]
"""A dimension, and one of its classes."""
Meeting = frozenset[Place]
"""Classes of two or three dimensions that one row is to have at once."""
Triple = Mapping[str, Sequence[str]]
"""Some classes of each of three dimensions: all of them meet."""

OFF: Final = "off"
"""The class of a feature that is not asked for."""
CANDIDATES: Final = 6
"""Rows of which the best is taken."""
GREEDY: Final = 6
TRIES: Final = 30
"""Rows that are tried for one pair or member before it is left over."""
MOST_TRIES: Final = 200
"""And for one triple: few rows have it and are small enough."""


@dataclass
class Covering:
    """Deals rows until every pair, triple and member was met, and random ones after that.

    `accepts` says whether a row may be run. The same seed gives the same rows.
    """

    dimensions: Mapping[str, Dimension]
    accepts: Callable[[Row], bool]
    random: random.Random
    triples: Sequence[Triple] = ()
    cost: Callable[[Row], float] = lambda row: 1.0
    """What a row takes, above zero."""
    effects: Callable[[Row], Set[str] | None] = lambda row: None
    """The dimensions whose member changes what is run in a row; None: all of them. Only these
    count: in an empty batch, no length is visited."""
    deciding: Sequence[str] = ()
    """The dimensions by which `effects` decides."""
    _used: Counter[tuple[str, int]] = field(default_factory=Counter)
    _beside: dict[Place, set[Place]] = field(default_factory=dict)
    """The classes that each class has yet to meet."""
    _threes: dict[frozenset[str], set[Meeting]] = field(default_factory=dict)
    """The triples that are yet to meet, by their dimensions."""
    _lost: set[Meeting] = field(default_factory=set)

    def __post_init__(self) -> None:
        effective = self._effective()
        for name, classes in self.dimensions.items():
            self._beside |= {(name, kind): set() for kind in classes}
        pairs: set[Meeting] = set()
        for names in itertools.combinations(self.dimensions, 2):
            pairs |= _meetings({name: [*self.dimensions[name]] for name in names}, effective)
        for pair in pairs:
            for place, met in itertools.permutations(pair):
                self._beside[place].add(met)
        for triple in self.triples:
            if triple.keys() <= self.dimensions.keys():
                known = {n: [k for k in triple[n] if k in self.dimensions[n]] for n in triple}
                self._threes[frozenset(triple)] = _meetings(known, effective)
        threes = set().union(*self._threes.values())
        self._asked = sorted(pairs, key=sorted), sorted(threes, key=sorted)

    def _effective(self) -> list[tuple[Mapping[str, str], Set[str]]]:
        """Classes of what decides, and the dimensions that take effect with them."""
        row = {name: next(_members(classes))[1] for name, classes in self.dimensions.items()}
        names = [name for name in self.deciding if name in row]
        found: dict[tuple[tuple[str, ...], frozenset[str]], None] = {}  # in order, each once
        for chosen in itertools.product(*(_members(self.dimensions[name]) for name in names)):
            kinds, members = (zip(*chosen, strict=True)) if chosen else ((), ())
            live = self.effects(row | dict(zip(names, members, strict=True)))
            found[kinds, frozenset(row if live is None else live)] = None
        seen = [(dict(zip(names, kinds, strict=True)), live) for kinds, live in found]
        return sorted(seen, key=lambda one: -len(one[1]))

    @property
    def pairs(self) -> tuple[int, int]:
        """How many pairs of classes were met, of those of which both can take effect in a row."""
        return self._met(0)

    @property
    def met_triples(self) -> tuple[int, int]:
        """How many of the triples that were asked for were met, and how many there are."""
        return self._met(1)

    def _met(self, which: int) -> tuple[int, int]:
        asked = self._asked[which]
        left = sum(self._is_open(meeting) or meeting in self._lost for meeting in asked)
        return len(asked) - left, len(asked)

    def _is_open(self, meeting: Meeting) -> bool:
        if len(meeting) == 2:
            one, other = meeting
            return other in self._beside[one]
        return meeting in self._threes[frozenset(name for name, _ in meeting)]

    def _close(self, meeting: Meeting) -> None:
        if len(meeting) == 2:
            one, other = meeting
            self._beside[one].discard(other)
            self._beside[other].discard(one)
        else:
            self._threes[frozenset(name for name, _ in meeting)].discard(meeting)

    @property
    def unseen(self) -> list[tuple[str, Any]]:
        """The members that no row had, by dimension."""
        return [(name, member) for name, _, member in self._unseen()]

    def _unseen(self) -> Iterator[tuple[str, str, Any]]:
        for name, classes in self.dimensions.items():
            for number, (kind, member) in enumerate(_members(classes)):
                if not self._used[name, number]:
                    yield name, kind, member

    def rows(self) -> Iterator[Row]:
        """Without end, unless nothing at all is accepted."""
        pairs, triples = self._asked
        yield from self._meetings(triples)
        for wanted in [*self._unseen()]:
            row = self._visited(wanted)
            if row is not None:
                yield row
        yield from self._meetings(pairs)
        while (row := self._accepted({}, {})) is not None:
            yield row

    def _meetings(self, asked: Sequence[Meeting]) -> Iterator[Row]:
        """Rows in which what is asked for meets."""
        for meeting in self.random.sample(asked, len(asked)):
            if self._is_open(meeting):
                row = self._accepted(dict(meeting), {})
                if row is None:
                    self._lost.add(meeting)
                    self._close(meeting)
                else:
                    yield row

    @property
    def unmet(self) -> list[Meeting]:
        """The triples that were asked for, and that no row had."""
        return [m for m in self._asked[1] if self._is_open(m) or m in self._lost]

    def _visited(self, wanted: tuple[str, str, Any]) -> Row | None:
        """A row with a member that none had yet, and with others of them where it can be."""
        left = [*self._unseen()]
        if wanted not in left:
            return None
        for share in (0.7, 0.3, 0.0):
            with_it = [one for one in left if self.random.random() < share]
            self.random.shuffle(with_it)
            chosen = {name: (kind, member) for name, kind, member in (*with_it, wanted)}
            places = {name: kind for name, (kind, _) in chosen.items()}
            members = {name: member for name, (_, member) in chosen.items()}
            row = self._accepted(places, members, {wanted[0]})
            if row is not None:
                return row
        return None

    def _accepted(
        self, places: Mapping[str, str], members: Row, needed: Set[str] | None = None
    ) -> Row | None:
        """A row with these classes and members that may be run, and is now counted.

        Dimensions that are `needed` (those of `places`) have to take effect. Of several rows that
        may be run, it is the one that costs least for what meets in it.
        """
        needed = places.keys() if needed is None else needed
        best: tuple[float, Row, list[tuple[str, int]], set[Place]] | None = None
        found = 0
        for tried in range(MOST_TRIES if len(places) > 2 else TRIES):
            chosen = self._classes(places, greedy=tried < GREEDY)
            row, numbers = self._dealt(chosen, members)
            live = self.effects(row)
            if not self.accepts(row) or (live is not None and not needed <= live):
                continue
            had = {place for place in chosen.items() if live is None or place[0] in live}
            numbers = [one for one in numbers if live is None or one[0] in live]
            worth = self._worth(had) / self.cost(row)
            if best is None or worth > best[0]:
                best = worth, row, numbers, had
            found += 1
            if found == CANDIDATES or not worth:
                break
        if best is None:
            return None
        _, row, numbers, had = best
        self._used.update(numbers)
        met = [frozenset(pair) for pair in itertools.combinations(had, 2)]
        for names in self._threes:
            met.append(frozenset(place for place in had if place[0] in names))
        met = [meeting for meeting in met if len(meeting) > 1]
        for meeting in met:
            self._close(meeting)
        self._lost.difference_update(met)
        return row

    def _worth(self, had: set[Place]) -> int:
        """How much meets for the first time in a row of these classes."""
        pairs = sum(len(self._beside[place] & had) for place in had) // 2
        threes = sum(
            frozenset(place for place in had if place[0] in names) in open_
            for names, open_ in self._threes.items()
        )
        return pairs + threes

    def _classes(self, places: Mapping[str, str], *, greedy: bool) -> dict[str, str]:
        """A class for each dimension: the one that meets most classes for the first time."""
        chosen = dict(places)
        rest = [name for name in self.dimensions if name not in chosen]
        self.random.shuffle(rest)
        taken = set(chosen.items())
        for name in rest:
            classes = list(self.dimensions[name])
            self.random.shuffle(classes)
            if OFF in classes and self.random.random() < 0.5:
                # What is rare meets the plain case often: three features at once are rarer still.
                classes.insert(0, classes.pop(classes.index(OFF)))
            chosen[name] = classes[0]
            if greedy:
                chosen[name] = max(classes, key=lambda one: self._gain(taken, (name, one)))
            taken.add((name, chosen[name]))
        return chosen

    def _gain(self, taken: set[Place], place: Place) -> int:
        """How much a class would meet for the first time beside those that are taken."""
        found = len(self._beside[place] & taken)
        for names, open_ in self._threes.items():
            if open_ and place[0] in names:
                others = [one for one in taken if one[0] in names]
                found += len(others) == 2 and frozenset((*others, place)) in open_
        return found

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


def _meetings(
    classes: Mapping[str, Sequence[str]],
    effective: Sequence[tuple[Mapping[str, str], Set[str]]],
) -> set[Meeting]:
    """All that one class of each of these dimensions makes, if some row has the effect of all."""
    made = (frozenset(zip(classes, k, strict=True)) for k in itertools.product(*classes.values()))
    return {
        meeting
        for meeting in made
        if any(
            all(name in live and kinds.get(name, kind) == kind for name, kind in meeting)
            for kinds, live in effective
        )
    }


def _members(classes: Dimension) -> Iterator[tuple[str, Any]]:
    return ((kind, member) for kind, members in classes.items() for member in members)
