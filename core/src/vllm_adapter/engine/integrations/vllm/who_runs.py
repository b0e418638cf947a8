"""Who runs each operator under vLLM, and why: noted by every process, read by the one that serves.

A process writes a file of its own beside the selection's, at each operator that is bound for the
first time; none is written per token.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter.broker.selection_file import operators_folder
from vllm_adapter.engine.registries import on_reset
from vllm_adapter.errors import InputError
from vllm_adapter.files import write_atomic
from vllm_adapter.settings import Settings

_log: Final = logging.getLogger("vllm_adapter.integrations")
VLLM: Final = "vLLM's own"
CORE: Final = "core's torch"
_PAUSE_S: Final = 1.0
"""At most so often a count of what ran on the host is written anew."""


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One line of the table. `provider`: an adapter's name, or one of the two words above."""

    operator: str
    provider: str
    why: str


class _Notes:
    """What this process has to say, and whether it may be written."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], OperatorRow] = {}
        self.fallbacks: dict[str, int] = {}
        self.written = 0.0
        self.works = True

    def write(self) -> None:
        where = folder()
        if where is None or not self.works:
            return
        content = {"rows": [asdict(row) for row in self.rows.values()], "host": self.fallbacks}
        try:
            where.mkdir(mode=0o700, exist_ok=True)
            write_atomic(where / f"{os.getpid()}.json", json.dumps(content))
        except (OSError, InputError) as error:
            self.works = False
            _log.warning("the table of who runs what cannot be kept: %s", error)
        self.written = time.monotonic()


_notes = _Notes()


def forget() -> None:
    """Begins anew, as a child does that was forked."""
    global _notes
    _notes = _Notes()


on_reset(forget)
os.register_at_fork(after_in_child=forget)


def folder() -> Path | None:
    """Where the processes of this tree write; None where no selection is shared."""
    file = Settings.from_environ().selection
    return None if file is None else operators_folder(file)


def note(operator: str, provider: str, why: str) -> None:
    """Keeps who runs an operator; the first reason for each provider stands."""
    key = operator, provider
    if key not in _notes.rows:
        _notes.rows[key] = OperatorRow(operator, provider, why)
        _notes.write()


def note_fallbacks(counts: Mapping[str, int]) -> None:
    """Keeps how often aten operators of a C library's device ran on the host."""
    if counts != _notes.fallbacks and time.monotonic() - _notes.written > _PAUSE_S:
        _notes.fallbacks = dict(counts)
        _notes.write()


@dataclass(frozen=True, slots=True)
class WhoRuns:
    """What all processes have noted: rows in the order of operators, and counts of the host's."""

    rows: tuple[OperatorRow, ...]
    fallbacks: Mapping[str, int]

    def text(self) -> str:
        """The table, with what it comes to."""
        if not self.rows:
            return "no operator of this model has been bound: this is plain vLLM"
        head = OperatorRow("operator", "who runs it", "why")
        width = max(len(row.operator) for row in (head, *self.rows))
        second = max(len(row.provider) for row in (head, *self.rows))
        lines = [
            f"{row.operator:{width}}  {row.provider:{second}}  {row.why}"
            for row in (head, *self.rows)
        ]
        if all(row.provider in (VLLM, CORE) for row in self.rows):
            lines.append("no operator of this model is run by an adapter: this is plain vLLM")
        return "\n".join(lines)


def read_all(where: Path | None) -> WhoRuns:
    """What the processes of a tree have written so far; a torn or foreign file counts as none."""
    rows: dict[tuple[str, str], OperatorRow] = {}
    fallbacks: dict[str, int] = {}
    for content in _contents(where):
        for raw in content["rows"]:
            row = OperatorRow(**raw)
            rows.setdefault((row.operator, row.provider), row)
        for name, number in content["host"].items():
            fallbacks[name] = fallbacks.get(name, 0) + number
    return WhoRuns(tuple(rows[key] for key in sorted(rows)), fallbacks)


def _contents(where: Path | None) -> Iterable[Any]:
    for file in sorted(where.glob("*.json")) if where is not None else ():
        try:
            content = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and {"rows", "host"} <= content.keys():
            yield content
