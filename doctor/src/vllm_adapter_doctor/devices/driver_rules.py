"""What a driver allows: each a verdict, and never a crash later.

The rules are data: a descriptor's `driver`, and the tables of `driver_tables` where there is no
descriptor. What nobody told is unknown, and unknown is not "too old"; and what torch itself says
to work is never refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.facts import Driver, HostFacts, TorchBuild
from vllm_adapter_doctor.devices.build_rules import code_verdicts
from vllm_adapter_doctor.devices.dtype_rules import dtype_verdicts
from vllm_adapter_doctor.devices.verdict import DeviceVerdict, Outcome
from vllm_adapter_doctor.vendor_data.driver_tables import (
    DRIVER_FLOORS,
    cuda_of_driver,
    full_driver,
    is_older,
    oldest_driver,
    on_windows,
    runtime_minimums,
    runtime_of,
    without_version,
)
from vllm_adapter_doctor.vendor_data.driver_versions import begins_with, older, parse_version

TOO_OLD: Final = "VA1101"
BELOW_FLOOR: Final = "VA1108"
MINOR_VERSION: Final = "VA1105"
FORWARD: Final = "VA1107"
_RUNTIMES: Final = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU runtime"}
_MODULE_FILE: Final = "/sys/module/"


def negotiate(
    capability: Capability, host: HostFacts, wanted: Iterable[str] = ()
) -> tuple[DeviceVerdict, ...]:
    """What a descriptor says of a host: its driver, its torch build, and the wanted dtypes.

    The order is from what stops everything to what is lost; a caller that finds a refusal need not
    look further. `wanted` are dtypes such as "float8_e4m3fn".
    """
    component = capability.driver.get("component")
    driver = driver_of(host, component)
    found = [*_by_descriptor(capability, host), *code_verdicts(capability.identity.arch, host)]
    found += dtype_verdicts(capability, driver, tuple(wanted))
    return tuple(found)


def driver_verdicts(
    vendor: str, host: HostFacts, capability: Capability | None = None
) -> tuple[DeviceVerdict, ...]:
    """What a vendor's driver means for a device of it: of its descriptor if there is one."""
    floor = DRIVER_FLOORS.get(vendor)
    driver = driver_of(host, floor.component) if floor else None
    found = [*_floor(vendor, host), *_forward_compatible(host, driver)]
    if capability is not None and "component" in capability.driver:
        found += _by_descriptor(capability, host)
        if "builds" in capability.driver:
            return tuple(found)
    if driver is not None and parse_version(driver.version):
        found += _builds(runtime_minimums(vendor), host, driver, described=False)
    return tuple(found)


def driver_of(host: HostFacts, component: str | None) -> Driver | None:
    """The driver that counts: under WSL it is the Windows host's."""
    if component is None:
        return None
    windows = on_windows(component)
    return (host.driver(windows) if windows else None) or host.driver(component)


def _floor(vendor: str, host: HostFacts) -> Iterator[DeviceVerdict]:
    """A driver that starts none of the runtimes that torch is built with."""
    floor = DRIVER_FLOORS.get(vendor)
    driver = driver_of(host, floor.component) if floor else None
    oldest = oldest_driver(vendor)
    if floor is None or driver is None or oldest is None or not is_older(driver, oldest):
        return
    yield DeviceVerdict(
        Outcome.REFUSE,
        "driver",
        BELOW_FLOOR,
        f"the driver {driver.version} serves no {floor.runtime} runtime that torch is built with "
        f"(from {oldest} on)",
        driver.version,
        oldest,
        next_step=floor.next_step,
        evidence=_seen(driver),
    )


def unserved_runtimes(vendor: str, host: HostFacts) -> Iterator[str]:
    """The runtimes of a vendor's toolkit that its driver is too old for, as one sentence."""
    floor = DRIVER_FLOORS.get(vendor)
    driver = driver_of(host, floor.component) if floor else None
    rows = [one for one in runtime_minimums(vendor) if driver and is_older(driver, one["minimum"])]
    if floor and driver and rows and not any(_forward_compatible(host, driver)):
        newer = ", ".join(f"{one['version']} ({one['minimum']} or newer)" for one in rows)
        yield f"the driver {driver.version} is too old for images of {floor.runtime} {newer}"


def _forward_compatible(host: HostFacts, driver: Driver | None) -> Iterator[DeviceVerdict]:
    """A runtime's own library that is newer than the branch of the kernel's driver."""
    if driver is None or driver.component == "windows":
        return
    for kind, name in _RUNTIMES.items():
        reported, own = host.driver(kind), cuda_of_driver(driver.version, kind)
        mine, theirs = parse_version(own), parse_version(reported.version if reported else None)
        if reported is None or not (mine and theirs and older(mine, theirs)):
            continue
        yield DeviceVerdict(
            Outcome.NOTE,
            "forward compatibility",
            FORWARD,
            f"a forward-compatibility package serves {name} {reported.version} on the driver "
            f"{driver.version}, whose branch has {own}",
            own,
            reported.version,
            evidence=(
                Evidence(f"driver {driver.version} (its branch: {name} {own})", driver.source),
                Evidence(f"{name} {reported.version}", reported.source),
            ),
        )


def _seen(driver: Driver) -> tuple[Evidence, ...]:
    return (Evidence(f"driver {driver.version}", driver.source),)


def _by_descriptor(capability: Capability, host: HostFacts) -> Iterator[DeviceVerdict]:
    """Whether a process starts at all with this driver."""
    rules = capability.driver
    component = rules.get("component")
    if component is None:
        return
    driver = driver_of(host, component)
    if driver is None or parse_version(driver.version) is None:
        in_tree = component in without_version()
        why = ": a module of the kernel's own tree has none" if in_tree else ""
        yield DeviceVerdict(
            Outcome.UNKNOWN,
            "driver",
            "",
            f"no version of the driver {component} was reported: its age is unknown{why}",
        )
        return
    for i, blocked in enumerate(rules.get("blocked", ())):
        if begins_with(driver.version, blocked):
            yield DeviceVerdict(
                Outcome.REFUSE,
                "driver",
                TOO_OLD,
                f"the driver {component} {driver.version} is known not to work",
                driver.version,
                pointer=f"/driver/blocked/{i}",
                next_step="install another one",
                evidence=_seen(driver),
            )
    minimum = rules.get("minimum")
    if minimum is not None and is_older(driver, minimum):
        yield DeviceVerdict(
            Outcome.REFUSE,
            "driver",
            TOO_OLD,
            f"{capability.identity.name or capability.identity.arch} needs the driver "
            f"{component} {minimum} or newer, and this is {driver.version}",
            driver.version,
            minimum,
            "/driver/minimum",
            "upgrade the driver",
            evidence=_seen(driver),
        )
    yield from _builds(rules.get("builds", ()), host, driver, described=True)


@dataclass(frozen=True, slots=True)
class _Build:
    """A torch build's runtime, and the row that says what driver it needs."""

    kind: str
    version: str
    row: Mapping[str, Any]
    pointer: str | None

    @property
    def name(self) -> str:
        return f"{_RUNTIMES.get(self.kind, self.kind)} {self.version}"


def _builds(
    rows: Sequence[Mapping[str, Any]], host: HostFacts, driver: Driver, *, described: bool
) -> Iterator[DeviceVerdict]:
    build = _build(rows, host.torch, described=described)
    if build is None:
        return
    minimum = build.row.get("minimum")
    if minimum is not None and is_older(driver, minimum):
        yield _too_old(rows, host, driver, build, minimum)
        return
    if "tested" in build.row:
        yield _tested(build.row["tested"], driver, build)
        return
    yield DeviceVerdict(
        Outcome.OK,
        "driver",
        "",
        f"the driver {driver.version} starts torch's {build.name}",
        driver.version,
        minimum,
        build.pointer,
    )
    full = full_driver(build.version, build.kind)
    if full is not None and is_older(driver, full) and not _serves_in_full(driver, build):
        yield DeviceVerdict(
            Outcome.NOTE,
            "ptx",
            MINOR_VERSION,
            f"the driver {driver.version} is older than {full}, which {build.name} came with: "
            "code that is compiled from PTX, and its newest features, may fail",
            driver.version,
            full,
            evidence=_seen(driver),
        )


def _serves_in_full(driver: Driver, build: _Build) -> bool:
    """Whether its whole branch serves that runtime; a Windows driver's number tells too little."""
    own = parse_version(cuda_of_driver(driver.version, build.kind))
    asked = parse_version(build.version)
    return driver.component == "windows" or bool(own and asked and not older(own, asked))


def _build(
    rows: Sequence[Mapping[str, Any]], torch: TorchBuild | None, *, described: bool
) -> _Build | None:
    kind, wanted = runtime_of(torch)
    if kind is None or wanted is None:
        return None
    fitting = [
        (i, row)
        for i, row in enumerate(rows)
        if row["runtime"] == kind and begins_with(wanted, row["version"])
    ]
    if not fitting:
        return None
    i, row = max(fitting, key=lambda found: len(found[1]["version"]))
    return _Build(kind, wanted, row, f"/driver/builds/{i}" if described else None)


def _too_old(
    rows: Sequence[Mapping[str, Any]], host: HostFacts, driver: Driver, build: _Build, minimum: str
) -> DeviceVerdict:
    works = _why_older_driver_works(host, driver, build)
    if works:
        return DeviceVerdict(
            Outcome.NOTE,
            "driver",
            "",
            f"the driver {driver.version} alone is too old for torch's {build.name}, and {works}",
            driver.version,
            minimum,
            build.pointer,
        )
    others = [
        row["version"]
        for row in rows
        if row["runtime"] == build.kind
        and "minimum" in row
        and not is_older(driver, row["minimum"])
    ]
    best = max(others, key=lambda text: parse_version(text) or (), default=None)
    kind = _RUNTIMES.get(build.kind, build.kind)
    other = f", or install a torch build for {kind} {best}" if best else ""
    return DeviceVerdict(
        Outcome.REFUSE,
        "driver",
        TOO_OLD,
        f"torch is built for {build.name}, which needs the driver {minimum} or newer, and this is "
        f"{driver.version}",
        driver.version,
        minimum,
        build.pointer,
        f"upgrade the driver{other}",
        evidence=_seen(driver),
    )


def _why_older_driver_works(host: HostFacts, driver: Driver, build: _Build) -> str:
    """Why a driver below the minimum serves all the same; empty where nothing says so."""
    torch = host.torch
    if torch is not None and torch.available:
        return (
            "torch says that it works: as a forward-compatibility package makes it, on "
            "data-centre GPUs only"
        )
    if torch is not None and torch.available is False:
        return ""
    served = next((one.need for one in _forward_compatible(host, driver)), None)
    asked, theirs = parse_version(build.version), parse_version(served)
    if not asked or not theirs or older(theirs, asked):
        return ""
    return f"a forward-compatibility package serves CUDA {served} on it: data-centre GPUs only"


def _tested(tested: Sequence[str], driver: Driver, build: _Build) -> DeviceVerdict:
    listed = ", ".join(tested)
    outcome, reason = (
        Outcome.NOTE,
        f"the vendor lists the drivers {listed} with {build.name}, and not {driver.version}",
    )
    if driver.source.startswith(_MODULE_FILE):
        outcome, reason = (
            Outcome.UNKNOWN,
            f"the kernel module says {driver.version}, which is no release of the driver package: "
            f"it cannot be compared with what the vendor lists for {build.name} ({listed})",
        )
    elif any(begins_with(driver.version, first) for first in tested):
        outcome, reason = (
            Outcome.OK,
            f"the vendor lists the driver {driver.version} with {build.name}",
        )
    return DeviceVerdict(outcome, "driver", "", reason, driver.version, listed, build.pointer)
