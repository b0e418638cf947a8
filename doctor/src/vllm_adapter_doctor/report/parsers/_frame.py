"""Tables as `nvidia-smi` draws them, and as half a dozen vendors' tools draw after it.

A device is a row with number, name and bus address, and under it a row of readings. Nothing is
taken from columns' positions: a paste may have lost blanks, the outer bars, or its end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_adapter.hostfacts.device_facts import DeviceProcess, Health
from vllm_adapter_doctor.report.parsers._common import MIB, is_complete_line, normal_bdf
from vllm_adapter_doctor.report.text import Report

BDF: Final = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7](?![0-9A-Fa-f])"
_FIRST: Final = re.compile(
    rf"(?:^|\|)\s*(?P<index>\d{{1,3}})\s+(?P<left>(?=[^|]*[A-Za-z])[^|]*)\|\s*"
    rf"(?P<bdf>{BDF}|N/A(?=\s))(?P<rest>.*)$"  # a Jetson's GPU is on no bus
)
_PERSISTENCE: Final = re.compile(r"\s+(?:On|Off|N/A|Enabled|Disabled|WDDM|TCC|MCDM)$")
_STATE: Final = re.compile(r"On|Off|N/A|Enabled|Disabled")
_CELL_BEFORE: Final = re.compile(r"\d+\s+([^|]*[A-Za-z][^|]*?)\s*\|?\s*$")
_MEMORY: Final = re.compile(r"(?<![\d.])(\d+)\s*(?:Mi?[Bb]\s*)?/\s*(\d+)\s*Mi?[Bb]\b")
_TEMPERATURE: Final = re.compile(r"(?<![\d.])(-?\d{1,3})\s*C\b")
_POWER: Final = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*W(?:\s*/\s*(?:(\d+(?:\.\d+)?)\s*W\b)?)?")
_PERCENT: Final = re.compile(r"(?<![\d.])(\d{1,3})\s*%")
_HEAD_LINES: Final = 5
_BORDER: Final = re.compile(r"[+|][-=+]{5,}")
_TYPED: Final = re.compile(
    r"(?:^|\|)\s*(?P<index>\d{1,3})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d+)\s+"
    r"(?:C|G|C\+G|M\+C|M)\s+(?P<name>\S+(?: \S+)*?)\s+(?:(?P<mib>\d+)\s*MiB\b|N/A)\s*\|?\s*$"
)
_UNREADABLE: Final = re.compile(r"ERR!|Unknown Error|GPU is lost")
UNREADABLE: Final = "the tool prints an error in place of a reading"
LOST: Final = "the tool says that the GPU is lost"


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device of a table. `below` are the lines of readings under its first line."""

    index: int
    name: str
    bdf: str | None
    right: str
    below: tuple[str, ...]
    closed: bool

    @property
    def memory(self) -> tuple[int, int] | None:
        """Bytes used and bytes in all."""
        for line in self.below[:1]:
            found = _MEMORY.search(line)
            if found and int(found[1]) <= int(found[2]):
                return int(found[1]) * MIB, int(found[2]) * MIB
        return None

    def health(self) -> Health:
        """Temperature, power, utilisation, and readings that are errors."""
        first = self.below[0] if self.below else ""
        remaining, _, rest = _split(first)
        power = _POWER.search(remaining)
        temperature = _TEMPERATURE.search(remaining)
        percent = _PERCENT.search(rest)
        cells = " ".join((self.name, self.right, *self.below))
        errors = [UNREADABLE] if _UNREADABLE.search(cells) else []
        if "GPU is lost" in cells:
            errors = [LOST]
        return Health(
            temperature_c=float(temperature[1]) if temperature else None,
            power_w=float(power[1]) if power else None,
            power_cap_w=float(power[2]) if power and power[2] else None,
            utilization_percent=float(percent[1]) if percent else None,
            errors=tuple(errors),
        )


def _split(line: str) -> tuple[str, str, str]:
    """What is before the memory reading, that reading, and what is after it."""
    found = _MEMORY.search(line)
    if found is None:
        remaining, bar, rest = line.strip().strip("|").partition("|")
        return remaining, bar, rest.partition("|")[2]
    return line[: found.start()], found[0], line[found.end() :]


def device_rows(report: Report, start: int, stop: int) -> list[DeviceRow]:
    """The devices of the table between two positions of the report's lines."""
    rows: list[DeviceRow] = []
    texts = [line.text for line in report.lines[start:stop]]
    for position, text in enumerate(texts):
        found = _FIRST.search(text)
        if not found:
            continue
        below = []
        for line in texts[position + 1 : position + 4]:
            if _BORDER.search(line) or _FIRST.search(line):
                break
            below.append(line)
        name = _PERSISTENCE.sub("", found["left"].strip())
        if _STATE.fullmatch(name):  # the name of the board has a cell of its own before it
            board = _CELL_BEFORE.search(text[: found.start()])
            name = board[1] if board else ""
        closed = text.rstrip().endswith("|") or is_complete_line(report, start + position)
        bdf = normal_bdf(found["bdf"])
        rows.append(DeviceRow(int(found["index"]), name, bdf, found["rest"], tuple(below), closed))
    return rows


def processes(report: Report, start: int, stop: int) -> dict[int, tuple[DeviceProcess, ...]]:
    """The processes of each device, from rows that name their type (C, G)."""
    found: dict[int, list[DeviceProcess]] = {}
    for line in report.lines[start:stop]:
        row = _TYPED.search(line.text)
        if row:
            size = int(row["mib"]) * MIB if row["mib"] else None
            process = DeviceProcess(int(row["pid"]), row["name"], size)
            found.setdefault(int(row["index"]), []).append(process)
    return {index: tuple(every) for index, every in found.items()}


def tables(report: Report, heads: Sequence[re.Pattern[str]]) -> list[tuple[int, int, int]]:
    """(which head, start, stop) of each stretch that begins with one of these lines.

    A head names the tool or, where a paste has lost that line, the columns.
    """
    seen = sorted(
        (position, which, "Name" in found[0])
        for which, head in enumerate(heads)
        for position, found in report.find(head)
    )
    starts: list[tuple[int, int]] = []
    for position, which, columns in seen:
        if not (columns and starts and position - starts[-1][0] <= _HEAD_LINES):
            starts.append((position, which))
    ends = [*(position for position, _ in starts), len(report.lines)][1:]
    return [(which, start, end) for (start, which), end in zip(starts, ends, strict=False)]
