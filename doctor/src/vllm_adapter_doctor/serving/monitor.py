"""Watches the devices of a running server, and says what begins and what ends, once each.

`HealthMonitor` judges readings alone; `Watcher` is the thread that takes them. A
reading is a child process with a time limit, so that a tool that hangs holds up neither.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from vllm_adapter.contract.finding import Finding
from vllm_adapter.hostfacts.facts import Accelerator
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.findings.rules.health import figures
from vllm_adapter_doctor.live.health import TIMEOUT_S, HealthReading
from vllm_adapter_doctor.serving.health import (
    DevicesInUse,
    findings,
    is_lost,
    later_reading_of,
    sentence,
)

INTERVAL_S: Final = 30.0
CLEAN_READINGS: Final = 2
"""A condition has ended when so many readings in a row are without it: caps come and go."""
LOST_READINGS: Final = 2
"""A server is ended for a loss that two readings say, the second one at once."""
MISSED_READINGS: Final = 3
"""A device is lost when so many readings in a row tell of its siblings and not of it."""
_LONGEST_S: Final = 3600.0
"""A tool that hangs may leave a process in the driver each time: it is asked ever less often."""
_ENDED: Final = {
    "VA1702": "is no longer throttled",
    "VA1703": "is no longer held by another program",
    "VA1704": "is healthy again, as its tool says",
    "VA1707": "has no uncorrectable memory errors any more",
}


@dataclass
class _State:
    """What is known of one device: conditions by code with their clean readings; losses."""

    clean: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    lost: int = 0
    seen: bool = False
    gone: bool = False


@dataclass
class HealthMonitor:
    """The judgement over time. `own` gives the ids of processes that are the server's."""

    used: DevicesInUse
    own: Callable[[], set[int]]
    unread: bool = False
    _states: dict[str, _State] = field(default_factory=dict)

    @property
    def suspicious(self) -> bool:
        """Whether one reading said that a device is lost, and a second one shall say so."""
        return any(0 < one.lost < LOST_READINGS for one in self._states.values())

    def observe(self, reading: HealthReading) -> tuple[list[str], str | None]:
        """(sentences that are new, the sentence that ends the server or None)."""
        if reading.fault is not None:
            said = (
                f"the devices' health cannot be read: {reading.fault}; they are asked again, and "
                "this is not said again"
            )
            first, self.unread = not self.unread, True
            return ([said] if first else []), None
        new: list[str] = []
        if self.unread:
            self.unread = False
            new.append(f"the devices' health can be read again ({reading.asked})")
        own = self.own() if any(one.processes for one in reading.accelerators) else set()
        # ids of another namespace name none of ours, and then prove nothing
        known = self.used.certain and any(
            p.pid in own for one in reading.accelerators for p in one.processes
        )
        for device in self.used.devices:
            state = self._states.setdefault(device.id, _State())
            if state.gone:
                continue
            reported = later_reading_of(device, reading.accelerators)
            lost = self._absent(device, state) if reported is None else None
            if reported is not None:
                state.seen, state.missed = True, 0
                found = findings(reported, own=own)
                lost = next((sentence(one) for one in found if is_lost(one, reported)), None)
                state.lost = state.lost + 1 if lost else 0
                if state.lost < LOST_READINGS:
                    lost = None
                if not known:
                    found = [one for one in found if one.code != "VA1703"]
                new += _changes(
                    device, reported, state, [one for one in found if not is_lost(one, reported)]
                )
            if lost is not None:
                state.gone = True
                if self.used.certain:
                    return new, lost
                new.append(
                    f"{lost}; it is not known whether the server uses it, so the server goes on"
                )
        return new, None

    def _absent(self, device: Device, state: _State) -> str | None:
        """The loss of a device that was reported and is not any more, while its siblings are."""
        state.missed += 1
        if not state.seen or state.missed < MISSED_READINGS:
            return None
        where = f" ({device.bdf})" if device.bdf else ""
        return f"{device.id}{where} is no longer among the devices that its tool lists [VA1701]"


def _changes(
    device: Device, reported: Accelerator, state: _State, found: list[Finding]
) -> list[str]:
    """What begins and what has ended."""
    new = []
    for one in found:
        if one.code not in state.clean:
            new.append(sentence(one))
        state.clean[one.code] = 0
    codes = {one.code for one in found}
    for code in [code for code in state.clean if code not in codes]:
        state.clean[code] += 1
        if state.clean[code] >= CLEAN_READINGS:
            del state.clean[code]
            now = figures(reported.health)
            where = f" ({device.bdf})" if device.bdf else ""
            new.append(f"{device.id}{where} {_ENDED[code]}{f': {now}' if now else ''} [{code}]")
    return new


class Watcher(threading.Thread):
    """Takes a reading every `interval_s` seconds until `stop`; ends by itself at a loss.

    `say` takes sentences, `lost` the one that ends the server; both are called in this thread.
    """

    def __init__(
        self,
        watch: HealthMonitor,
        read: Callable[[], HealthReading],
        *,
        say: Callable[[str], None],
        lost: Callable[[str], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(name="vllm-adapter-health", daemon=True)
        self._watch = watch
        self._read = read
        self._say = say
        self._lost = lost
        self._interval_s = interval_s
        self._stopped = threading.Event()

    def run(self) -> None:
        """The thread's work."""
        pause = self._interval_s
        while not self._stopped.wait(pause):
            reading = self._read()
            if self._stopped.is_set():
                return
            pause = min(2 * pause, _LONGEST_S) if reading.hangs else self._interval_s
            sentences, lost = self._watch.observe(reading)
            if self._watch.suspicious:
                pause = min(1.0, self._interval_s)
            for one in sentences:
                self._say(one)
            if lost is not None:
                self._lost(lost)
                return

    def stop(self) -> None:
        """Ends the thread, and waits for a reading that is under way: its child is then gone."""
        self._stopped.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(2 * TIMEOUT_S + 2)
