"""Finds tables that look like those of `nvidia-smi topo -m` anywhere in a text.

A table is a header of labels and the rows that repeat them. The header may be lost or moved, rows
may be missing, cut, wrapped or indented, cells may be glued, and a log may have put a prefix
before each line: the labels, and the device's own cell (X, S), say where a row begins and whether
it fits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from vllm_adapter_doctor.report.parsers._matrix_cells import (
    DOUBT,
    LOST,
    CellPatterns,
    MatrixRow,
    read_row,
)
from vllm_adapter_doctor.report.text import Report

_COLUMN: Final = re.compile(
    r"(?P<cpu>CPU\s*Aff(?:inity)?)|(?P<memory>GPU\s*NUMA(?:\s*ID?)?)"
    r"|(?P<numa>(?:NUMA|Node)\s*Aff(?:inity)?|NUMA)"
)
_COMPLETE: Final = re.compile(r"(?:Affinity|ID|NUMA)\s*\|?\s*$")
_WHOLE_COLUMN: Final = re.compile(r"(?:CPU|NUMA|Node)\s*Affinity|GPU\s*NUMA\s*ID")
_FRAGMENT: Final = re.compile(r"(?:[A-Za-z0-9]{1,8}\s*){0,4}")
"""What remains of a header's continuation besides whole labels and columns."""
_NIC: Final = r"NIC\d+|mlx\d+_bond_?\d+|mlx\d+_\d+"
_NIC_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\d[a-z0-9_]*|NIC\d+")
_PIECE: Final = re.compile(r"[A-Z]{1,8}\*?\d*|N/A|[\d,\-]+|_SW")
_FIGURES: Final = re.compile(r"N/A|[\d,\-]+")
_FAR: Final = 12
"""Lines of other text that may lie between two rows of one table."""


@dataclass(frozen=True, slots=True)
class MatrixStyle:
    """One tool's tables: a pattern of a device's label, and its words."""

    device: str
    words: CellPatterns
    nics: bool = False
    affinity_alone: bool = False
    """Whether `CPU Affinity` is the only column that the tool prints behind the cells."""

    @property
    def label(self) -> str:
        """The pattern of any label."""
        return rf"(?:{self.device})" + (rf"|{_NIC}" if self.nics else "")


@dataclass(slots=True)
class MatrixTable:
    """One table. `first` and `last` are positions in the report's lines."""

    first: int
    last: int
    labels: tuple[str, ...]
    devices: int
    """How many of the labels are devices; the others are network cards."""
    columns: tuple[str, ...] = ()
    head: str = ""
    """What stands before the first label: the maker, in a grid."""
    rows: dict[str, MatrixRow] = field(default_factory=dict)
    headless: bool = False


def normal(label: str) -> str:
    """A label with single blanks: "GPU 0/0"."""
    return " ".join(label.split())


def find_tables(report: Report, style: MatrixStyle) -> list[MatrixTable]:
    """The tables in order; a header without any row that fits is none."""
    reader = _Reader(report, style)
    tables = reader.with_header()
    return sorted(tables + reader.without_header(), key=lambda table: table.first)


class _Reader:
    def __init__(self, report: Report, style: MatrixStyle) -> None:
        self.style = style
        self.lines = [line.text for line in report.lines]
        self.cut = not report.ended
        self.used: set[int] = set()
        label = style.label
        self._device = re.compile(style.device)
        self._label = re.compile(label)
        self._run = re.compile(rf"(?<![\w/#])(?:{style.device})[\s|]*(?:(?:{label})[\s|]*)*")
        self._row = re.compile(rf"(?<![\w/#])({label})[\s|]+(?=[A-Z])")

    def with_header(self) -> list[MatrixTable]:
        tables: list[MatrixTable] = []
        table: MatrixTable | None = None
        for at, line in enumerate(self.lines):
            if at in self.used:
                continue
            if not self._label.search(line):
                if table and (at - table.last > _FAR or line.lstrip().startswith("Legend")):
                    table = None
                continue
            if table and self._add(table, at):
                continue
            header = self._header(at)
            if header:
                table = header
                tables.append(table)
                self.used.update(range(at, table.last + 1))
        return [table for table in tables if self._is_table(table)]

    def _is_table(self, table: MatrixTable) -> bool:
        return any(table.labels.index(label) < len(row.cells) for label, row in table.rows.items())

    def _header(self, at: int) -> MatrixTable | None:
        line, last = self._wrapped_header(at)
        found = self._header_of(line, at, last)
        return found if found or last == at else self._header_of(self.lines[at], at, at)

    def _header_of(self, line: str, at: int, last: int) -> MatrixTable | None:
        runs = list(self._run.finditer(line))
        if not runs:
            return None
        run = max(runs, key=lambda one: len(one[0]))
        labels = [normal(label) for label in self._label.findall(run[0])]
        rest = line[run.end() :]
        first = _COLUMN.search(rest)
        if first and self.style.nics:  # old tools name the columns of network cards themselves
            between = rest[: first.start()].replace("|", " ").split()
            if not all(_NIC_NAME.fullmatch(name) for name in between):
                return None
            labels += between
        elif rest[: first.start() if first else None].strip(" |\t"):
            return None
        if len(set(labels)) < len(labels):
            return None
        columns = [found.lastgroup or "" for found in _COLUMN.finditer(rest)]
        if columns and not _COMPLETE.search(rest):
            columns[-1:] = LOST  # the screen ended here, and in the middle of the values too
        devices = sum(bool(self._device.fullmatch(label)) for label in labels)
        if any(self._device.fullmatch(label) for label in labels[devices:]):
            return None
        head = line[: run.start()].strip(" |\t")
        return MatrixTable(at, last, tuple(labels), devices, tuple(dict.fromkeys(columns)), head)

    def _wrapped_header(self, at: int) -> tuple[str, int]:
        """A header with its continuation lines, where a terminal's width broke it."""
        line, last = self.lines[at], at
        while last + 1 < len(self.lines) and last - at < 16:
            nxt = self.lines[last + 1]
            if not nxt.strip() or self._row_in(last + 1, None):
                break
            if _COMPLETE.search(line) and not re.match(r"\s*(?:NUMA|GPU NUMA|Aff)", nxt):
                break
            if not _FRAGMENT.fullmatch(_COLUMN.sub("", self._label.sub("", nxt)).strip(" |\t")):
                break
            # a word that was broken in two makes sense only when its halves meet
            joined = max((f"{line} {nxt}", line + nxt), key=self._named)
            if self._named(joined) == self._named(line):
                break
            line = joined
            last += 1
        return line, last

    def _named(self, line: str) -> int:
        return len(set(self._label.findall(line))) + len(_WHOLE_COLUMN.findall(line))

    def _add(self, table: MatrixTable, at: int) -> bool:
        """Takes the line as a row of the table, if it is one."""
        found = self._row_in(at, table.labels)
        if not found:
            return False
        label, start = found
        if label in table.rows:
            return True
        columns = table.columns if label in table.labels[: table.devices] else ()
        text, last = self._wrapped_row(at, start, len(table.labels), columns)
        row = self._read(label, text, last, len(table.labels), columns, last > at)
        if not self._fits(row, table.labels.index(label)):
            return False
        table.rows[label] = row
        table.last = last
        self.used.update(range(at, last + 1))
        return True

    def _row_in(self, at: int, labels: tuple[str, ...] | None) -> tuple[str, int] | None:
        """(label, where its cells begin) of a line that is a row."""
        line = self.lines[at]
        names = self._row.finditer(line)
        for found in names:
            label = normal(found[1])
            if labels is not None and label not in labels:
                continue
            chunk = re.match(r"[^\s|]+", line[found.end() :])
            if (
                not chunk
                or self._label.match(line, found.end())
                or _COLUMN.match(line, found.end())
            ):
                continue
            if self.style.words.split(chunk[0]):
                return label, found.end()
        if labels is None:
            return None
        for label in labels:  # network cards by their own names
            if self._label.fullmatch(label):
                continue
            if match := re.search(rf"(?<![\w/]){re.escape(label)}[\s|]+(?=[A-Z])", line):
                return label, match.end()
        return None

    def _wrapped_row(
        self, at: int, start: int, count: int, columns: tuple[str, ...]
    ) -> tuple[str, int]:
        """A row's text with the lines that it was broken into."""
        text, last = self.lines[at][start:], at
        while last + 1 < len(self.lines) and last - at < 16:
            row = read_row("", text, self.style.words, count, columns)
            nxt = self.lines[last + 1]
            pieces = nxt.split()
            # a value may go on in the next line although what is here looks whole
            full = len(row.values) == len(columns) > 0 and not all(
                _FIGURES.fullmatch(piece) for piece in pieces
            )
            if full or not self._goes_on(nxt):
                break
            begun = row.whole and row.tail.strip()  # a value may have been broken in two
            text = text + DOUBT + nxt if begun else self._join(text, nxt, pieces)
            last += 1
        return text, last

    def _goes_on(self, line: str) -> bool:
        """Whether a line can be the rest of a row that a terminal broke."""
        pieces = line.split()
        return (
            bool(pieces)
            and not self._label.search(line)
            and all(_PIECE.fullmatch(piece) or self.style.words.split(piece) for piece in pieces)
        )

    def _join(self, text: str, nxt: str, pieces: list[str]) -> str:
        """Two pieces of a row, with a blank between them only where one was."""
        before, after = (text.split() or [""])[-1], pieces[0]
        words = self.style.words
        known = re.compile(rf"(?:{words.known})+")
        if nxt[:1] in (" ", "\t"):
            return f"{text} {nxt}"
        left, right = known.fullmatch(before), known.fullmatch(after)
        if left and right:
            return f"{text} {nxt}"
        if known.fullmatch(before + after):
            more = len(pieces) > 1 and bool(words.split(pieces[1]))
            return text + nxt if not left or more else text + DOUBT + nxt
        if left or before == "N/A":
            return f"{text} {nxt}"
        return text + DOUBT + nxt

    def _read(
        self,
        label: str,
        text: str,
        last: int,
        count: int | None,
        columns: tuple[str, ...],
        broken: bool = False,
    ) -> MatrixRow:
        cut = self.cut and last == len(self.lines) - 1
        words = self.style.words
        return read_row(label, text, words, count, columns, cut=cut, broken=broken)

    def _fits(self, row: MatrixRow, own: int) -> bool:
        """Whether the device's own cell, and no other, is where the header has it."""
        mine = self.style.words.self_word
        if own < len(row.cells):
            return [i for i, cell in enumerate(row.cells) if cell == mine] == [own]
        return row.clean and mine not in row.cells

    def without_header(self) -> list[MatrixTable]:
        """Groups of rows whose header is lost: each row's own cell tells its column."""
        tables: list[MatrixTable] = []
        group: list[tuple[int, str, MatrixRow]] = []
        for at in range(len(self.lines) + 1):
            if group and (at - group[-1][0] > _FAR or at == len(self.lines)):
                tables += self._headless(group)
                group = []
            if at == len(self.lines) or at in self.used:
                continue
            found = self._row_in(at, None) if self._label.search(self.lines[at]) else None
            if not found or any(found[0] == row.label for _, _, row in group):
                continue
            if at + 1 < len(self.lines) and self._goes_on(self.lines[at + 1]):
                continue  # a broken line: without a header nobody knows where it ends
            text = self.lines[at][found[1] :]
            row = self._read(found[0], text, at, None, ())
            if row.whole and row.cells.count(self.style.words.self_word) == 1:
                group.append((at, text, row))
        return tables

    def _headless(self, group: list[tuple[int, str, MatrixRow]]) -> list[MatrixTable]:
        """A table of at least two rows of one length, each with its own cell elsewhere."""
        mine = self.style.words.self_word
        counts = {len(row.cells) for _, _, row in group}
        placed = {row.cells.index(mine): row.label for _, _, row in group}
        if len(group) < 2 or len(placed) < len(group) or len(counts) > 1:
            return []
        labels = self._guessed([placed.get(column, "") for column in range(counts.pop())])
        devices = [label for label in labels if self._device.fullmatch(label)]
        if not devices or labels[: len(devices)] != devices:
            return []
        rows = {row.label: row for _, _, row in group}
        for at, _, row in group:
            cut = self.cut and at == len(self.lines) - 1
            row.values = {} if cut else self._plain_values(row.tail)
            if not row.tail and row.cells[-1][-1:].isdigit():
                row.cells[-1] = ""  # NV1 of NV18 at the edge of a screen
        first, last = group[0][0], group[-1][0]
        return [MatrixTable(first, last, tuple(labels), len(devices), (), "", rows, headless=True)]

    def _guessed(self, labels: list[str]) -> list[str]:
        """Names columns without a row: devices count up, in one form, from column 0."""
        named = {i: label for i, label in enumerate(labels) if self._device.fullmatch(label)}
        numbers = {i: re.findall(r"\d+", label) for i, label in named.items()}
        if not named or any(
            int(found[0]) != i or found[1:] not in ([], ["0"]) for i, found in numbers.items()
        ):
            return labels
        form = next(iter(named.values()))
        end = max(named) if self.style.nics else len(labels)
        return [
            label or (re.sub(r"\d+", str(i), form, count=1) if i < end else "")
            for i, label in enumerate(labels)
        ]

    def _plain_values(self, tail: str) -> dict[str, str]:
        """Values behind the cells whose column is plain without a header."""
        pieces = tail.split()
        if not pieces or not re.fullmatch(r"\d+-\d+(?:,\d+-\d+)*", pieces[0]):
            return {}
        if len(pieces) == 1 and self.style.affinity_alone:
            return {"cpu": pieces[0]}
        if len(pieces) == 3 and pieces[2] == "N/A" and _FIGURES.fullmatch(pieces[1]):
            return {"cpu": pieces[0], "numa": pieces[1]}
        return {}
