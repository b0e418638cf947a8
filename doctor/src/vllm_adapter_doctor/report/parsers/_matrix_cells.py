"""One row of a link matrix: its cells, and the columns behind them.

Nothing here trusts positions of a header: pasting moves it, and blanks get lost. What cannot be
distinguished is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

DOUBT: Final = "\x00"
"""Stands where two pieces of a wrapped line meet and nobody knows whether a blank was there."""

_CHUNK: Final = re.compile(r"[^\s|]+")
_LIST: Final = re.compile(r"\d+(?:-\d*)?(?:,\d+(?:-\d*)?)*,?")
_NUMBER: Final = re.compile(r"\d{1,4}")
_OTHER_WORD: Final = re.compile(r"[A-Z][A-Z0-9_]{1,9}\*?")
_NONE: Final = ("N/A", "NA", "-")
_MOST_CPUS: Final = 1024
"""CPUs of the largest boxes with accelerators; a number above it is two that ran together."""
LOST: Final = ("lost", "lost too", "lost as well")
"""Columns behind the edge of a screen: what is left of them may stand in the one before."""
_PADDING: Final = 2
_CUT_WIDTH: Final = 12
"""Characters at which `nvidia-smi topo -m` was seen to cut a list of single CPUs."""


@dataclass(frozen=True, slots=True)
class CellPatterns:
    """What a tool's cells look like: `known` is a pattern, longer words first."""

    known: str
    self_word: str = "X"
    others: bool = True
    """Whether other words in capitals are taken for cells too, where blanks part them."""

    def split(self, chunk: str) -> tuple[list[str], str] | None:
        """The words of a piece without blanks, and figures glued to their end.

        A numbered word keeps all its digits: "NV180-35" may be NV18 or NV1, so it is None. So is
        the stump of a word that was cut: "NV", "SY".
        """
        found = re.fullmatch(rf"((?:{self.known})+)(\d[\d,\-]*(?:N/A)?|)", chunk)
        if found:
            return re.findall(self.known, found[1]), found[2]
        if not self.others or not _OTHER_WORD.fullmatch(chunk):
            return None
        stump = any(word.startswith(chunk) for word in self.known.split("|"))
        return None if stump else ([chunk], "")


@dataclass(slots=True)
class MatrixRow:
    """Cells as far as they could be read; `values` by column: "cpu", "numa", "memory"."""

    label: str
    cells: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    clean: bool = True
    """Whether the cells end with the line, or with the columns behind them: not in damage."""
    tail: str = ""


def read_row(
    label: str,
    text: str,
    words: CellPatterns,
    count: int | None,
    columns: tuple[str, ...],
    *,
    cut: bool = False,
    broken: bool = False,
) -> MatrixRow:
    """The row that starts after its label; `count` is how many cells it should have.

    Without a count (the header is lost) the cells are all leading words. `cut` says that nothing
    follows the text, not even a line break; `broken`, that it was joined from several lines.
    """
    row = MatrixRow(label)
    starts: list[tuple[int, int]] = []
    tail = ""
    for chunk in _CHUNK.finditer(text):
        if len(row.cells) == count:
            tail = text[starts[-1][1] :] if starts else text
            break
        found = words.split(chunk[0])
        room = (count if count is not None else 1 << 16) - len(row.cells)
        if found is None or len(found[0]) > room or (found[1] and len(found[0]) < room and count):
            if count is None and (_LIST.match(chunk[0]) or chunk[0] in _NONE):
                tail = text[chunk.start() :]
            else:
                row.clean = False
            break
        row.cells += found[0]
        starts.append((chunk.start(), chunk.end() - len(found[1])))
        if found[1]:
            tail = text[starts[-1][1] :]
            break
    row.tail = tail
    row.whole = len(row.cells) == count if count is not None else row.clean
    if not row.whole and row.cells:
        row.cells.pop()  # the last one may be cut: NV1 of NV18, S of SYS
    if row.whole and tail.strip(" \t|"):
        first = None if broken else _first_filled(text, starts, tail)
        row.values = read_values(tail, columns, first, cut)
    elif cut and row.whole and row.cells:
        row.cells.pop()
        row.whole = False
    if row.whole and row.cells[-1:] and row.cells[-1][-1:].isdigit():
        if len(tail.replace("|", " ").split()) < len(columns):
            row.cells[-1] = ""  # NV1 of NV18; NV10 that was NV1 and node 0
    return row


def _first_filled(text: str, starts: list[tuple[int, int]], tail: str) -> bool | None:
    """Whether the first column behind the cells has a value; None if blanks do not tell."""
    if tail[:1] not in (" ", "\t"):
        return None
    if "\t" in text:
        # two tabs are a blank; one does not tell, for some pages lose tabs
        return False if tail.split("\t")[1:2] == [""] else None
    if len(starts) < 2 or any(after[0] - before[1] < 2 for before, after in pairwise(starts)):
        return None
    width = round((starts[-1][0] - starts[0][0]) / (len(starts) - 1))
    # the cell of a device with itself is printed " X " by some tools, one place to the right
    if any(abs(after[0] - before[0] - width) > 1 for before, after in pairwise(starts)):
        return None
    first = len(text) - len(tail.lstrip())
    return abs(first - starts[-1][0] - width) <= _PADDING


def read_values(
    tail: str, columns: tuple[str, ...], first: bool | None, cut: bool
) -> dict[str, str]:
    """The values behind the cells by column; a value that could belong to two is left out."""
    if DOUBT in tail or not columns:
        return {}
    if "|" in tail:  # a grid, where blank cells can be seen
        fields = [piece.strip() for piece in tail.strip().strip("|").split("|")]
        if len(fields) > len(columns):
            return {}
        named = dict(zip(columns, fields, strict=False))
    else:
        pieces = _pieces(tail, len(columns))
        if len(pieces) >= len(columns) and first is not False:
            named = dict(zip(columns, pieces, strict=False))
        elif first is True and pieces:
            named = {columns[0]: pieces[0]}
        elif first is False and len(pieces) == len(columns) - 1:
            named = dict(zip(columns[1:], pieces, strict=False))
        else:
            return {}
    if not all(_fits(column, value) for column, value in named.items()):
        return {}
    if cut and named and tail.endswith(last := list(named.values())[-1]) and last not in _NONE:
        named.pop(list(named)[-1])
    return {column: value for column, value in named.items() if value and value not in _NONE}


def _pieces(tail: str, count: int) -> list[str]:
    """The values in order; empty where a glued one can be read in two ways."""
    pieces: list[str] = []
    glued = False
    for piece in re.sub(r",\s+(?=\d)", ",", tail).split():
        ends = re.fullmatch(r"(\d[\d,\-]*)(N/A)", piece)
        glued = glued or ends is not None
        pieces += ends.groups() if ends else (piece,)
    if glued and len(pieces) == count - 1:
        ways = _two_lists(pieces[0])
        whole = is_complete_cpu_list(pieces[0]) and not _too_many(pieces[0])
        pieces[:1] = ways[0] if len(ways) == 1 and not whole else ()
        return pieces if len(pieces) == count else []
    return [] if glued and len(pieces) < count else pieces


def _too_many(text: str) -> bool:
    return any(int(number) >= _MOST_CPUS for number in re.findall(r"\d+", text))


def _two_lists(text: str) -> list[tuple[str, str]]:
    """Each way to read "144-1911" as a list of CPUs and a NUMA node."""
    return [
        (text[:at], text[at:])
        for at in range(1, len(text))
        if text[at:].isdigit()
        and (text[at] != "0" or text[at:] == "0")
        and is_complete_cpu_list(text[:at])
        and not _too_many(text[:at])
    ]


def _fits(column: str, value: str) -> bool:
    if not value or value in _NONE:
        return True
    form = _NUMBER if column == "memory" else _LIST
    return bool(form.fullmatch(value)) and not _too_many(value)


def is_complete_cpu_list(text: str) -> bool:
    """Whether a list of CPUs can be all of it.

    Cut lists end in a comma, a dash or a smaller number than the one before; single CPUs in a row
    ("0,2,4,6,8,10") are what `nvidia-smi` leaves of a whole socket.
    """
    parts = text.split(",")
    last = -1
    for part in parts:
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not ends or int(ends[1]) <= last or int(ends[2] or ends[1]) < int(ends[1]):
            return False
        last = int(ends[2] or ends[1])
    single = sum("-" not in part or len(set(part.split("-"))) == 1 for part in parts)
    return not (
        (len(parts) > 1 and single == len(parts))
        or single > 2
        or (len(text) == _CUT_WIDTH and len(parts) > 2)
    )
