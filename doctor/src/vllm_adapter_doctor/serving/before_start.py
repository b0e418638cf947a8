"""What is done where a device is not in order before it is opened: warn, wait, other, fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_adapter.errors import DeviceUnhealthy
from vllm_adapter_doctor.devices.driver_rules import driver_verdicts
from vllm_adapter_doctor.devices.manager import DeviceCandidate, DeviceManager
from vllm_adapter_doctor.devices.visible import Environment, environment_for
from vllm_adapter_doctor.live.health import TIMEOUT_S, HealthReading, can_read, read_health
from vllm_adapter_doctor.live.tools import ask_tools
from vllm_adapter_doctor.serving.health import (
    DevicesInUse,
    findings,
    refuses,
    sentence,
    used,
    verdict_findings,
)

if TYPE_CHECKING:
    from vllm_adapter.contract.finding import Finding
    from vllm_adapter.hostfacts.facts import HostFacts

WAIT_LIMIT_S: Final = 300.0
_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 30.0


class Policy(Enum):
    """What happens where a device that is about to be opened is not in order."""

    WARN = "warn"
    """Say it and go on; a device that cannot be used at all is refused."""
    WAIT = "wait"
    """Look again, less and less often, until it is in order or the limit is over."""
    OTHER = "other"
    """Take other devices of the same adapter that are in order, and say so."""
    FAIL = "fail"
    """Refuse."""


@dataclass(frozen=True, slots=True)
class PreparedDevices:
    """The devices to open. `environment` is what must be set so that others are taken.

    `unread` is whether their health could not be read, which was said.
    """

    used: DevicesInUse
    environment: Environment | None = None
    unread: bool = False


@dataclass
class StartRequest:
    """One start: whose devices, how many (None: not known), and how its questions are asked.

    The first `skip` of the devices are not opened. `manager` gives the box's devices with what a
    reading says of them. `say` takes sentences.
    """

    vendor: str
    count: int | None
    manager: Callable[[HealthReading], DeviceManager]
    say: Callable[[str], None]
    read: Callable[[str], HealthReading] = read_health
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    skip: int = 0
    _faults: set[str] = field(default_factory=set)

    def prepare(self, policy: Policy, limit_s: float = WAIT_LIMIT_S) -> PreparedDevices:
        """Looks at the devices and follows the policy.

        Raises:
            DeviceUnhealthy: one cannot be used, or the policy refuses it; with its finding's code.
        """
        if not can_read(self.vendor):
            return PreparedDevices(DevicesInUse())
        manager, taken, wrong = self._look()
        if policy is Policy.WAIT and wrong:
            manager, taken, wrong = self._wait(manager, taken, wrong, limit_s)
        elif policy is Policy.OTHER and wrong:
            return self._others(manager, taken, wrong)
        bad = [one for one in wrong if policy is not Policy.WARN or refuses(one)]
        if bad and (taken.certain or policy is not Policy.WARN):
            raise _refused(bad[0])
        for one in wrong:
            self.say(sentence(one))
        return PreparedDevices(taken, unread=bool(self._faults))

    def _look(self) -> tuple[DeviceManager, DevicesInUse, list[Finding]]:
        reading = self.read(self.vendor)
        if reading.fault is not None and reading.fault not in self._faults:
            self._faults.add(reading.fault)
            self.say(f"the health of {self.vendor}'s devices cannot be read: {reading.fault}")
        manager = self.manager(reading)
        taken = used(manager, self.vendor, self.count)
        if self.skip and taken.certain:
            taken = DevicesInUse(taken.devices[self.skip :])
        known = {one.device.id: one for one in manager.candidates()}
        asked = [known[device.id] for device in taken.devices if device.id in known]
        found = [_health_findings(each) for each in asked]
        if found and all(any(map(refuses, of_one)) for of_one in found):
            taken = replace(taken, certain=True)  # whichever it opens cannot be used
        return manager, taken, [one for of_one in found for one in of_one]

    def _wait(
        self, manager: DeviceManager, taken: DevicesInUse, wrong: list[Finding], limit_s: float
    ) -> tuple[DeviceManager, DevicesInUse, list[Finding]]:
        began, delay = self.clock(), _FIRST_DELAY_S
        self.say(f"waiting up to {limit_s:g} s: {sentence(wrong[0])}")
        while wrong and (remaining := began + limit_s - self.clock()) > 0:
            self.sleep(min(delay, remaining))
            delay = min(2 * delay, _LONGEST_DELAY_S)
            manager, taken, wrong = self._look()
        if not wrong:
            self.say(f"healthy after {self.clock() - began:.0f} s")
        return manager, taken, wrong

    def _others(
        self, manager: DeviceManager, taken: DevicesInUse, wrong: list[Finding]
    ) -> PreparedDevices:
        count = len(taken.devices) if self.count is None else self.count
        siblings = manager.inventory.of(self.vendor)
        good = [
            one
            for one in manager.candidates()
            if one.device.vendor == self.vendor and one.usable and not _health_findings(one)
        ]
        chosen = [one.device for one in _same_kind(good)[:count]]
        if self.count is None or len(chosen) < count:
            few = f"{len(chosen)} of {count} needed devices are healthy"
            unknown = "the server's flags do not say how many devices it needs"
            raise _refused(wrong[0], unknown if self.count is None else few)
        environment = environment_for(chosen, siblings)
        if not environment.variables:
            raise _refused(wrong[0], "; ".join(environment.notes))
        names = ", ".join(one.id for one in chosen)
        self.say(f"{sentence(wrong[0])}: {names} of {self.vendor}'s devices taken in place of it")
        return PreparedDevices(DevicesInUse(tuple(chosen)), environment)


def _health_findings(one: DeviceCandidate) -> list[Finding]:
    reported = one.device.reported
    return [*verdict_findings(one), *([] if reported is None else findings(reported, idle=True))]


def _same_kind(candidates: Sequence[DeviceCandidate]) -> list[DeviceCandidate]:
    """The largest group of one kind; of equal ones the first."""
    groups: dict[tuple[str | None, str | None, int | None], list[DeviceCandidate]] = {}
    for one in candidates:
        key = (one.device.name, one.device.arch, one.device.memory_total_bytes)
        groups.setdefault(key, []).append(one)
    return max(groups.values(), key=len, default=[])


def _refused(one: Finding, why: str = "") -> DeviceUnhealthy:
    message = sentence(one).removesuffix(f" [{one.code}]")
    return DeviceUnhealthy(f"{message}; {why}" if why else message, hint=one.action, code=one.code)


def box(host: HostFacts, reading: HealthReading, vendor: str) -> HostFacts:
    """The quick facts of this machine with what a reading, files and the environment say."""
    from vllm_adapter.hostfacts._tree import Tree
    from vllm_adapter_doctor.live.drivers import read_drivers
    from vllm_adapter_doctor.live.packages import read_environment

    tree = Tree(Path("/"))
    facts = replace(
        host,
        accelerators=reading.accelerators,
        environment=read_environment(os.environ),
        drivers=read_drivers(tree, host.modules, os.environ),
    )
    if not any(one.stops for one in driver_verdicts(vendor, facts)):
        return facts
    # its tool knows of a forward-compatibility package, which the files do not
    reported = ask_tools(tree, {vendor}, os.environ, timeout_s=TIMEOUT_S)
    return replace(facts, drivers=(*facts.drivers, *reported.drivers))


def start_here(vendor: str, count: int | None, say: Callable[[str], None]) -> StartRequest:
    """A start on this machine, with the adapters that are installed."""
    from vllm_adapter.discovery import registry
    from vllm_adapter.settings import Settings

    settings = Settings.from_environ()
    records = registry.scan(settings)
    host = registry.host_for(records)
    known = registry.with_cached_probes(registry.located(records, host), host)

    def manager(reading: HealthReading) -> DeviceManager:
        return DeviceManager(box(host, reading, vendor), settings, known, live=True)

    return StartRequest(vendor, count, manager, say)


def look_at(vendor: str, index: int, say: Callable[[str], None]) -> None:
    """Looks at one device that a command is about to open, and says what is wrong with it.

    Raises:
        DeviceUnhealthy: it cannot be used at all.
    """
    reading = read_health(vendor) if can_read(vendor) else HealthReading()
    if reading.accelerators:
        start = start_here(vendor, index + 1, say)
        start.skip, start.read = index, lambda _: reading
        start.prepare(Policy.WARN)
