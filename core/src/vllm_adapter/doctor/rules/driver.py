"""Drivers: too old, not reachable, not of one piece, or not the one that counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, TextRule, finding, quoted
from vllm_adapter.driver_tables import (
    cuda_of_driver,
    decode_cuda,
    full_driver,
    minimum_driver,
)
from vllm_adapter.driver_versions import older, parse_version
from vllm_adapter.host.facts import Driver

_TOO_OLD: Final = re.compile(r"driver on your system is too old \(found version (?P<number>\d+)\)")
_NO_LIBCUDA: Final = re.compile(r"libcuda\.so[.\d]*: cannot open shared object file")
_ERROR_35: Final = re.compile(
    r"(?i)CUDA driver version is insufficient for CUDA runtime version|no CUDA-capable device is "
    r"detected|Found no NVIDIA driver on your system"
)
_ZERO: Final = re.compile(r"^\W*Driver Version:?\s*0\s*$|CUDA Version: ERR!")
_OLDEST: Final = "450.80.02"
"""Of any runtime that vLLM's or torch's builds still have (CUDA 11): facts of driver_tables."""
_OLDEST_ARCH: Final = 5
"""Compute capability (major) of the oldest device in any torch 2 build's list."""


def _driver(box: Box) -> Driver | None:
    """The NVIDIA driver that counts: under WSL the Windows host's."""
    return box.facts.driver("windows") or box.facts.driver("nvidia")


def _is_older(version: str, than: str) -> bool:
    one, other = parse_version(version), parse_version(than)
    return bool(one and other and older(one, other))


def _runtime(box: Box) -> str | None:
    """The CUDA runtime that torch was built with, as far as the report tells."""
    torch = box.facts.torch
    if torch is None:
        return None
    if torch.cuda:
        return torch.cuda
    built = re.fullmatch(r"cu(\d{2})(\d)", torch.local or "")
    return f"{built[1]}.{built[2]}" if built else None


def _default_runtime(version: str | None) -> str | None:
    """CUDA of the default (PyPI) build of a torch release: pytorch#172663, #190355."""
    found = re.match(r"2\.(\d+)", version or "")
    minor = int(found[1]) if found else 0
    return {11: "13.0", 12: "13.0", 13: "13.0", 14: "13.2"}.get(minor)


def _too_old(box: Box) -> Iterator[Finding]:
    said = [(line, match) for line, match in box.lines(_TOO_OLD)]
    driver = _driver(box)
    runtime = _runtime(box)
    torch = box.facts.torch
    if runtime is None and torch and torch.version and not torch.local:
        runtime = _default_runtime(torch.version)
    minimum = minimum_driver(runtime) if runtime else None
    below = bool(driver and minimum and _is_older(driver.version, minimum))
    if not said and not (below and torch and not torch.available):
        return
    serves = decode_cuda(int(said[0][1]["number"])) if said else None
    if serves is None and driver:
        serves = cuda_of_driver(driver.version)
    evidence = [quoted(line) for line, _ in said[:2]]
    if driver:
        evidence.append(Evidence(f"driver {driver.version}", driver.source))
    has = f"driver {driver.version} (CUDA {serves})" if driver else f"the driver (CUDA {serves})"
    if runtime and minimum:
        major = runtime.partition(".")[0]
        cause = (
            f"{has} is older than {minimum}, the minimum of every CUDA {major}.x runtime; torch "
            f"was built with {runtime}"
        )
        action = f"upgrade the driver to {minimum} or newer, or {_other_build(serves)}"
    else:
        cause = (
            f"{has} is below the minimum of the CUDA that torch was built with: 12.x needs "
            f"{minimum_driver('12')}, 13.x {minimum_driver('13')}, 11.x {minimum_driver('11')}"
        )
        action = (
            f"upgrade the driver to the minimum of that major version, or {_other_build(serves)}"
        )
    yield finding("VA1101", evidence, cause, action)


def _other_build(serves: str | None) -> str:
    """A torch build that a driver of this CUDA starts, by minor-version compatibility."""
    major = (serves or "").partition(".")[0]
    if major == "12":
        return "install a torch build for CUDA 12 (cu126 or cu128)"
    if major == "11":
        return "install a torch build for CUDA 11 (cu118, which needs 450 or newer)"
    return "install a torch build for an older CUDA"


def _for_every_runtime(box: Box) -> Iterator[Finding]:
    """A driver below all supported runtimes, and devices that no build has code for."""
    driver = _driver(box)
    if driver and _is_older(driver.version, _OLDEST) and not box.says(_TOO_OLD):
        serves = cuda_of_driver(driver.version)
        told = f" (CUDA {serves})" if serves else ""
        yield finding(
            "VA1108",
            [Evidence(f"driver {driver.version}", driver.source)],
            f"driver {driver.version}{told} is older than {_OLDEST}, below which no CUDA 11 or "
            "newer runtime starts",
            "upgrade to driver 525 or newer (580 for CUDA 13); a card whose last driver is older "
            "cannot run vLLM",
        )
    old = {}
    for one in box.facts.accelerators:
        arch = re.fullmatch(r"sm_(\d+)(\d)", one.arch or "")
        if one.vendor == "cuda" and arch and int(arch[1]) < _OLDEST_ARCH:
            old[one.name or "the device"] = (f"{arch[1]}.{arch[2]}", one.source)
    for name, (capability, source) in old.items():
        yield finding(
            "VA1108",
            [Evidence(f"{name}: compute capability {capability}", source)],
            f"{name} has compute capability {capability}, which no current torch build has code "
            "for",
            "take another device",
        )


def _unreachable(box: Box) -> Iterator[Finding]:
    """No driver at all. The same CUDA error also means an old driver: told apart by evidence."""
    missing = [quoted(line) for line, _ in box.lines(_NO_LIBCUDA)][:2]
    failed = [quoted(line) for line, _ in box.lines(_ERROR_35)][:2]
    if not missing and not failed:
        return
    driver = _driver(box)
    if driver and not missing:
        return  # the driver answers: its version is judged, or the message is about something else
    inside = "container" in box.facts.os.environment
    where = " (this is a container)" if inside else ""
    yield finding(
        "VA1102",
        [*missing, *failed],
        f"no NVIDIA driver can be reached from here{where}: libcuda.so.1 or the device nodes are "
        "not there. It is not a matter of versions"
        + ("" if missing else ", although the message speaks of one"),
        "check that /dev/nvidiactl and libcuda.so.1 exist; start the container with `--gpus all` "
        "and the NVIDIA container toolkit, or install the driver on the host",
    )


def _minor_version(box: Box) -> Iterator[Finding]:
    """CUDA works on a driver that is older than the toolkit's own: good, with a reservation."""
    driver, runtime, torch = _driver(box), _runtime(box), box.facts.torch
    if not (driver and runtime and torch and torch.available):
        return
    full, minimum = full_driver(runtime), minimum_driver(runtime)
    if full and minimum and _is_older(driver.version, full):
        if _is_older(driver.version, minimum) or "windows" in (driver.component,):
            return
        serves, asked = cuda_of_driver(driver.version), parse_version(runtime)
        own = parse_version(serves) if serves else None
        if own and asked and not older(own, asked):
            return  # the branch serves this CUDA version in full
        yield finding(
            "VA1105",
            [
                Evidence(f"driver {driver.version} (CUDA {serves})", driver.source),
                Evidence(f"torch built with CUDA {runtime}, available", "host facts"),
            ],
            f"driver {driver.version} runs CUDA {runtime} by minor-version compatibility; code "
            "compiled from PTX at run time may fail on it",
            f"nothing; if an error names PTX, upgrade to driver {full} or newer",
            Severity.WARNING,
        )


def _wsl(box: Box) -> Iterator[Finding]:
    if not {"wsl2", "wsl1"} & set(box.facts.os.environment):
        return
    zero = [
        quoted(line) for line, _ in box.lines(r"^\W*Driver Version:?\s*0\s*$|CUDA Version: ERR!")
    ]
    dx = [quoted(line) for line, _ in box.lines(r"(?i)dxg|dxcore.*(?:fail|error)")]
    torch = box.facts.torch
    if zero or (dx and torch and torch.available is False):
        yield finding(
            "VA1106",
            [*zero, *dx][:4],
            "Windows gives this WSL no CUDA: its driver answers with version 0, so that there is "
            "no libcuda from a Windows driver, or this Windows build has none for WSL 2",
        )


def _forward_compatibility(box: Box) -> Iterator[Finding]:
    """A libcuda that is newer than the kernel driver's branch."""
    driver, told = box.facts.driver("nvidia"), box.facts.driver("cuda")
    if not (driver and told) or "wsl2" in box.facts.os.environment:
        return
    own = cuda_of_driver(driver.version)
    mine, theirs = parse_version(own) if own else None, parse_version(told.version)
    if mine and theirs and older(mine, theirs):
        yield finding(
            "VA1107",
            [
                Evidence(f"driver {driver.version} (its branch: CUDA {own})", driver.source),
                Evidence(f"CUDA {told.version}", told.source),
            ],
            f"driver {driver.version} belongs to CUDA {own}, and a libcuda for {told.version} "
            "answers: a forward-compatibility package is loaded",
            severity=Severity.NOTE,
        )


RULES: Final = (
    Rule("VA1101", _too_old),
    Rule("VA1108", _for_every_runtime),
    Rule("VA1102", _unreachable),
    Rule("VA1105", _minor_version),
    Rule("VA1106", _wsl),
    Rule("VA1107", _forward_compatibility),
    TextRule(
        "VA1103",
        r"(?i)NVML: Driver/library version mismatch|unsupported display driver / cuda driver "
        r"combination|API mismatch: the (?:client|NVIDIA kernel module)",
        "the NVIDIA kernel module that is loaded is older than the libraries: they were upgraded "
        "under it",
        "reboot, or stop every GPU program and reload the nvidia modules; compare "
        "/proc/driver/nvidia/version with the libraries' version",
    ),
    TextRule(
        "VA1104",
        r"(?i)forward compatibility was attempted on non supported HW",
        "a cuda-compat libcuda is first on the loader's path, and this GPU may not use it "
        "(only data-centre GPUs may)",
    ),
    TextRule(
        "VA1105",
        r"(?i)provided PTX was compiled with an unsupported toolchain",
        "the driver is too old to compile this program's PTX, although it starts programs of this "
        "CUDA major version",
        "upgrade the driver to the one that the toolkit of this program ships",
    ),
)
