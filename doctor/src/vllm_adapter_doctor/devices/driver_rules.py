"""What a driver, a torch build and an arch allow: each a decision, and never a crash later.

The rules are data: a descriptor's `driver` and `numerics`, and the tables of `driver_tables`. An
older driver, or an arch without a feature, downgrades what was wanted, and says what that costs in
bytes. What nobody told is unknown, and unknown is not "too old".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.hostfacts.facts import Driver, HostFacts, TorchBuild
from vllm_adapter_doctor.devices.driver_decision import BITS, DriverDecision, Outcome
from vllm_adapter_doctor.vendor_data.driver_tables import (
    cuda_of_driver,
    full_driver,
    on_windows,
    rocm_targets,
    serves,
    wheel_archs,
    without_version,
)
from vllm_adapter_doctor.vendor_data.driver_versions import (
    Version,
    begins_with,
    older,
    parse_version,
)

_RUNTIMES: Final = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU runtime"}
_MODULE_FILE: Final = "/sys/module/"


def negotiate(
    capability: Capability, host: HostFacts, wanted: Iterable[str] = ()
) -> tuple[DriverDecision, ...]:
    """Every decision on a device: its driver, its torch build, and the dtypes that are wanted.

    The order is from what stops everything to what is lost; a caller that finds a refusal need not
    look further. `wanted` are dtypes such as "float8_e4m3fn".
    """
    wanted = tuple(wanted)
    component = capability.driver.get("component")
    driver = _driver(host, component)
    version = parse_version(driver.version) if driver else None
    decisions = [*_process(capability, host, component, driver, version)]
    decisions += _code(capability, host)
    decisions += _features(capability, driver, version, wanted)
    return tuple(decisions)


def _driver(host: HostFacts, component: str | None) -> Driver | None:
    if component is None:
        return None
    windows = on_windows(component)  # under WSL the driver is the Windows host's
    return (host.driver(windows) if windows else None) or host.driver(component)


def _process(
    capability: Capability,
    host: HostFacts,
    component: str | None,
    driver: Driver | None,
    version: Version | None,
) -> Iterator[DriverDecision]:
    """Whether a process starts at all with this driver."""
    if component is None:
        return
    if driver is None or version is None:
        why = (
            ": a module of the kernel's own tree has none"
            if component in without_version()
            else ""
        )
        yield DriverDecision(
            Outcome.UNKNOWN,
            "driver",
            f"no version of the driver {component} was told, which does not make it too old{why}",
        )
        return
    rules = capability.driver
    named = f"{component} {driver.version}"
    for i, blocked in enumerate(rules.get("blocked", ())):
        if begins_with(driver.version, blocked):
            yield DriverDecision(
                Outcome.REFUSE,
                "driver",
                f"the driver {named} is known not to work: install another one",
                driver.version,
                pointer=f"/driver/blocked/{i}",
            )
    minimum = rules.get("minimum")
    if minimum is not None and _is_older(driver, version, minimum):
        yield DriverDecision(
            Outcome.REFUSE,
            "driver",
            f"{capability.identity.name or capability.identity.arch} needs the driver "
            f"{component} {minimum} or newer, and this is {driver.version}: upgrade the driver",
            driver.version,
            minimum,
            pointer="/driver/minimum",
        )
    yield from _builds(rules, host, driver, version)


def _builds(
    rules: Mapping[str, Any], host: HostFacts, driver: Driver, version: Version
) -> Iterator[DriverDecision]:
    runtime, wanted = _runtime(host.torch)
    if runtime is None or wanted is None:
        return
    rows = [
        (i, row)
        for i, row in enumerate(rules.get("builds", ()))
        if row["runtime"] == runtime and begins_with(wanted, row["version"])
    ]
    if not rows:
        return
    i, row = max(rows, key=lambda found: len(found[1]["version"]))
    pointer, name = f"/driver/builds/{i}", f"{_RUNTIMES.get(runtime, runtime)} {wanted}"
    minimum = row.get("minimum")
    if minimum is not None and _is_older(driver, version, minimum):
        yield _too_old(rules, host, driver, version, (runtime, wanted, name), minimum, pointer)
        return
    if "tested" in row:
        yield _tested(row["tested"], driver, name, pointer)
        return
    yield DriverDecision(
        Outcome.OK,
        "driver",
        f"the driver {driver.version} starts torch's {name}",
        driver.version,
        minimum,
        pointer=pointer,
    )
    full = full_driver(wanted, runtime)
    if full is not None and _is_older(driver, version, full):
        yield DriverDecision(
            Outcome.NOTE,
            "ptx",
            f"the driver {driver.version} is older than {full}, which {name} came with: code that "
            "is compiled from PTX, and its newest features, may fail",
            driver.version,
            full,
        )


def _too_old(
    rules: Mapping[str, Any],
    host: HostFacts,
    driver: Driver,
    version: Version,
    runtime: tuple[str, str, str],
    minimum: str,
    pointer: str,
) -> DriverDecision:
    kind, wanted, name = runtime
    told = host.driver(kind)
    own = cuda_of_driver(driver.version, kind)
    libcuda = parse_version(told.version if told else None)
    newer = own is not None and libcuda is not None and older(parse_version(own) or (), libcuda)
    asked = parse_version(wanted)
    if told and newer and libcuda and asked and not older(libcuda, asked):
        return DriverDecision(
            Outcome.NOTE,
            "driver",
            f"the driver {driver.version} alone is too old for torch's {name}, and a forward-"
            f"compatibility package serves CUDA {told.version} on it: data-centre GPUs only",
            driver.version,
            minimum,
            pointer=pointer,
        )
    others = [
        row["version"]
        for row in rules.get("builds", ())
        if row["runtime"] == kind
        and "minimum" in row
        and not _is_older(driver, version, row["minimum"])
    ]
    best = max(others, key=lambda text: parse_version(text) or (), default=None)
    other = f", or install a torch build for {_RUNTIMES.get(kind, kind)} {best}" if best else ""
    return DriverDecision(
        Outcome.REFUSE,
        "driver",
        f"torch is built for {name}, which needs the driver {minimum} or newer, and this is "
        f"{driver.version}: upgrade the driver{other}",
        driver.version,
        minimum,
        pointer=pointer,
    )


def _tested(tested: list[str], driver: Driver, name: str, pointer: str) -> DriverDecision:
    listed = ", ".join(tested)
    if driver.source.startswith(_MODULE_FILE):
        return DriverDecision(
            Outcome.UNKNOWN,
            "driver",
            f"the kernel module says {driver.version}, which is no release of the driver package: "
            f"it cannot be held against what the vendor lists for {name} ({listed})",
            driver.version,
            listed,
            pointer=pointer,
        )
    if any(begins_with(driver.version, first) for first in tested):
        return DriverDecision(
            Outcome.OK,
            "driver",
            f"the vendor lists the driver {driver.version} with {name}",
            driver.version,
            listed,
            pointer=pointer,
        )
    return DriverDecision(
        Outcome.NOTE,
        "driver",
        f"the vendor lists the drivers {listed} with {name}, and not {driver.version}",
        driver.version,
        listed,
        pointer=pointer,
    )


def _is_older(driver: Driver, version: Version, than: str) -> bool:
    """Whether a driver is older. Numbers of a Windows driver are compared by branch alone."""
    bound = parse_version(than) or ()
    if driver.component == "windows":
        return older(version[:1], bound[:1])
    return older(version, bound)


def _runtime(torch: TorchBuild | None) -> tuple[str | None, str | None]:
    for kind in _RUNTIMES:
        version = getattr(torch, kind, None)
        if version:
            return kind, version
    return None, None


def _code(capability: Capability, host: HostFacts) -> Iterator[DriverDecision]:
    """Whether the torch build has code for the arch."""
    torch, arch = host.torch, capability.identity.arch
    if torch is None:
        return
    built, sure = torch.archs, True
    if not built and torch.version and torch.cuda:
        known = wheel_archs(torch.version, host.os.machine or "x86_64")
        built, sure = known or ((), True)
    if serves(built, arch) is not False:
        targets = rocm_targets(torch.hip) if torch.hip else None
        if targets is not None and arch.startswith("gfx") and arch not in targets:
            yield DriverDecision(
                Outcome.NOTE,
                "build",
                f"AMD's matrix of ROCm {torch.hip} does not list {arch}: it may work, and nobody "
                "promises it",
                arch,
                ", ".join(targets),
                pointer="/identity/arch",
            )
        return
    yield DriverDecision(
        Outcome.REFUSE if sure else Outcome.NOTE,
        "build",
        f"torch {torch.version or 'here'} holds code for {', '.join(built)}, and none "
        f"that runs on {arch}: install a build with it",
        arch,
        ", ".join(built),
        pointer="/identity/arch",
    )


def _features(
    capability: Capability, driver: Driver | None, version: Version | None, wanted: tuple[str, ...]
) -> Iterator[DriverDecision]:
    """What of the wanted dtypes is lost to the arch, or else to the driver."""
    for feature in wanted:
        to, pointer, why = _lost_to_arch(capability, feature)
        if to is not None:
            yield _downgrade(feature, to, why, pointer)
            continue
        for i, rule in enumerate(capability.driver.get("downgrades", ())):
            if rule["feature"] != feature:
                continue
            at = f"/driver/downgrades/{i}"
            if driver is None or version is None:
                yield DriverDecision(
                    Outcome.UNKNOWN,
                    feature,
                    f"{feature} needs the driver {rule['below']} or newer, and none was told",
                    None,
                    rule["below"],
                    pointer=at,
                )
            elif _is_older(driver, version, rule["below"]):
                why = (
                    f"the driver {driver.version} is older than {rule['below']}: {rule['reason']}"
                )
                yield _downgrade(
                    feature, rule["to"], why, at, got=driver.version, need=rule["below"]
                )


def _lost_to_arch(capability: Capability, feature: str) -> tuple[str | None, str, str]:
    numerics, identity = capability.numerics, capability.identity
    name = identity.name or identity.arch
    half = "float16" if numerics.native_bfloat16 is False else "bfloat16"
    if feature.startswith("float8_e4m3") and numerics.native_fp8 is False:
        return half, "/numerics/native_fp8", f"{name} multiplies no eight-bit floats"
    if feature == "float4_e2m1fn" and numerics.native_fp4 is False:
        to = half
        if numerics.native_fp8 and numerics.fp8_flavour:
            to = f"float8_{numerics.fp8_flavour}"
        return to, "/numerics/native_fp4", f"{name} multiplies no four-bit floats"
    if feature == "bfloat16" and numerics.native_bfloat16 is False:
        return "float16", "/numerics/native_bfloat16", f"{name} does not compute bfloat16"
    unit = capability.compute_units.get(feature)
    if unit is not None and unit.emulated:
        return half, f"/compute_units/{feature}/emulated", f"{name} emulates {feature}"
    return None, "", ""


def _downgrade(
    feature: str,
    to: str,
    why: str,
    pointer: str,
    *,
    got: str | None = None,
    need: str | None = None,
) -> DriverDecision:
    cost = ""
    if feature in BITS and to in BITS and BITS[feature] != BITS[to]:
        times = Fraction(BITS[to], BITS[feature])
        cost = f"; weights and KV cache kept in it take {float(times):g} times the bytes"
    return DriverDecision(
        Outcome.DOWNGRADE,
        feature,
        f"{why}; {to} is used in place of {feature}{cost}",
        got,
        need,
        feature,
        to,
        pointer,
    )
