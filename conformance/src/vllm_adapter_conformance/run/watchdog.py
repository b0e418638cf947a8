"""Ends a worker whose case is far over its limit: it ends the device's process itself."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from vllm_adapter.hostfacts.time_given import TimeGiven
from vllm_adapter_conformance.judge.journal import Event, Journal, JournalReader

POLL_S: Final = 0.2
GRACE_S: Final = 240.0
"""For the judge's own part of a case, and opening a new process: its limit leaves both out."""
STACKS_S: Final = 0.5
"""Time for the worker's fault handler to write its stacks."""


class WorkerWatchdog:
    """A thread of the parent: nothing that a kernel does in the worker can hold it up."""

    def __init__(self, path: Path, journal: Journal) -> None:
        self._reader, self._journal = JournalReader(path), journal
        self._running: Event | None = None
        self._pid, self._given, self._since = os.getpid(), TimeGiven(os.getpid()), 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="case limits", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch; may be called again."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            case = self._late()
            if case is not None:
                self._journal.write("hang", item=case["item"], pid=case["pid"])
                self._end(case["pid"])

    def _late(self) -> Event | None:
        """The case that runs now and is over its limit, once."""
        for event in self._reader.new():
            if event["event"] == "begin":
                self._running = event
                if event["pid"] != self._pid:
                    self._pid, self._given = event["pid"], TimeGiven(event["pid"])
                self._since = self._given.seconds()
            elif event["event"] in ("end", "hang"):
                self._running = None
        case = self._running
        late = case and self._given.seconds() > self._since + case["limit"] + GRACE_S
        return case if late else None

    def _end(self, pid: int) -> None:
        with suppress(ProcessLookupError):  # it may end by itself meanwhile
            os.kill(pid, signal.SIGUSR1)
            self._stop.wait(STACKS_S)
            os.kill(pid, signal.SIGKILL)
