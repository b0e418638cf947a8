"""How much of the time since then a process could use, on a machine that has other work, too.

A limit in seconds of the clock calls a sound process a hang where others take the processors. By
`TimeGiven` a limit is reached by a process that sleeps as by the clock, by one that computes by
what it computes, and by one that waits for its turn not before it had it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

FAR: Final = 15
"""At least one of so many seconds of the clock counts, however busy the machine is: what never
answers is given up."""
LOOK_S: Final = 0.5
_TICK_S: Final = 0.05
_BYTES: Final = 4096


class TimeGiven:
    """The time of a process and of all that it has started, from now on.

    Waits for a processor are what Linux counts of each thread (/proc/PID/task/TID/schedstat). Of
    several threads, the one that waited longest counts; but where they take all processors from
    each other, nobody else made them wait. Where the system counts no waits, this is the clock.

    Args:
        pid: the process; what was before it is asked for the first time is left out.
        clock: seconds.
        root: of /proc, for a copy of one.
    """

    def __init__(
        self,
        pid: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        root: str = "/proc",
    ) -> None:
        self._pid, self._clock, self._root = pid, clock, root
        self._counted = 0.0
        self._begun = self._looked = clock()
        self._before = dict(self._threads())

    @property
    def by_the_clock(self) -> float:
        """Seconds of the clock since this was made."""
        return self._clock() - self._begun

    @property
    def mostly_waited(self) -> bool:
        """Whether more than half of the time passed in waits: it says little of the process."""
        return self.by_the_clock > 2 * self._counted

    def no_answer(self, limit_s: float) -> str:
        """How a process ended that was given up at its limit."""
        busy = f" ({self.by_the_clock:.0f} s by the clock of a busy machine)"
        return f"gave no answer within {limit_s:g} s{busy if self.mostly_waited else ''}"

    def seconds(self) -> float:
        """What is counted; at most LOOK_S old."""
        if self._clock() - self._looked >= LOOK_S:
            self.look()
        return self._counted

    def look(self) -> float:
        """What is counted, as of now."""
        now, after = self._clock(), dict(self._threads())
        past = now - self._looked
        waited = ran = 0.0
        for thread, (has_run, has_waited) in after.items():
            ran_before, waited_before = self._before.get(thread, (0.0, 0.0))
            waited = max(waited, has_waited - waited_before)
            ran += has_run - ran_before
        own = min(past, ran / self._processors())
        self._counted += max(past - waited, own, past / FAR)
        self._looked, self._before = now, after
        return self._counted

    def _processors(self) -> int:
        try:
            return len(os.sched_getaffinity(self._pid)) or 1
        except (AttributeError, OSError):  # not on this system; or it has ended
            return os.cpu_count() or 1

    def _threads(self) -> Iterator[tuple[int, tuple[float, float]]]:
        """Of each thread, how long it has run and has waited for a processor, in seconds."""
        for pid in self._family():
            for thread in self._names(f"{pid}/task"):
                words = self._read(f"{pid}/task/{thread}/schedstat").split()
                if len(words) == 3:
                    yield int(thread), (int(words[0]) * 1e-9, int(words[1]) * 1e-9)

    def _family(self) -> list[int]:
        """The process and its descendants."""
        children: dict[int, list[int]] = {}
        for name in self._names(""):
            # The name of a program, in parentheses, may hold any character.
            words = self._read(f"{name}/stat").rpartition(b")")[2].split()
            if len(words) > 1:
                children.setdefault(int(words[1]), []).append(int(name))
        family = [self._pid]
        for pid in family:
            family += children.get(pid, [])
        return family

    def _names(self, folder: str) -> list[str]:
        try:
            return [name for name in os.listdir(f"{self._root}/{folder}") if name.isdecimal()]
        except OSError:  # no such system, or the process has ended
            return []

    def _read(self, file: str) -> bytes:
        try:
            handle = os.open(f"{self._root}/{file}", os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.read(handle, _BYTES)
        except OSError:  # it ends just now
            return b""
        finally:
            os.close(handle)


def wait_for(process: subprocess.Popen[Any], limit_s: float, given: TimeGiven) -> int:
    """The exit code of a process whose time is counted in `given`.

    Its pipes, if it has any, are somebody else's to read.

    Raises:
        subprocess.TimeoutExpired: it was given so many seconds, and goes on.
    """
    while True:
        try:
            return process.wait(_TICK_S)
        except subprocess.TimeoutExpired:
            if given.seconds() >= limit_s:
                raise
