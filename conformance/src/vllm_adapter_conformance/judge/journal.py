"""The run's journal: one JSON object a line, appended by the worker and by its parent.

It survives a crash of the worker, and is what tells a crash from a hang. Events:

    plan    items                       the run begins
    begin   item, pid, limit            a case begins
    end     item, ... (a Result)        a case has ended; written by the parent after a crash
    progress  item, text                how far the case is that runs
    overdue item, limit                 the device was busy for longer than that, and ended
    hang    item, pid                   the parent ends a worker whose case is over its limit
    loaded  files, device, silent       the last word of a process of the device: its files, what
                                        its runtime says of the device; or why there is none
    judged  files                       what a worker has loaded, which judges
    error   sentence                    the run cannot be judged
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]


class Journal:
    """Appends whole lines, so that two processes may write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()

    def write(self, event: str, **values: Any) -> None:
        """One event; it is in the file when this returns."""
        line = json.dumps({"event": event, **values}).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]

    def close(self) -> None:
        """Ends writing."""
        os.close(self._descriptor)


class JournalReader:
    """Reads a journal that still grows; keeps what was read in `events`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self._offset = 0

    def new(self) -> list[Event]:
        """The events since the last call; a half-written line waits for the next."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found: list[Event] = [json.loads(line) for line in whole.splitlines()]
        self.events += found
        return found


def of(events: Iterable[Event], kind: str) -> Iterator[Event]:
    """The events of one kind."""
    return (event for event in events if event["event"] == kind)


@dataclass(frozen=True, slots=True)
class Ran:
    """What the processes of a run had loaded."""

    files: Sequence[str] = ()
    """Of the device's processes: these are what a certificate is of."""
    device: Mapping[str, Any] = field(default_factory=dict)
    """What the last of these said of the device."""
    silent: Sequence[str] = ()
    """A sentence for each of them that did not say what it had loaded."""
    judges: Sequence[str] = ()
    """Files of the workers."""


def ran(events: Iterable[Event]) -> Ran:
    """What the processes had loaded, as far as they came to say so."""
    files: set[str] = set()
    judges: set[str] = set()
    device: dict[str, Any] = {}
    silent = []
    for event in events:
        if event["event"] == "judged":
            judges.update(event["files"])
        if event["event"] != "loaded":
            continue
        files.update(event["files"])
        device |= event["device"]
        if event["silent"] is not None:
            silent.append(
                f"a process of the device did not say which files it had loaded: {event['silent']}"
            )
    return Ran(sorted(files), device, silent, sorted(judges))
