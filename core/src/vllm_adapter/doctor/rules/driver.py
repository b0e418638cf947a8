"""Drivers: too old, not reachable, not of one piece, or not the one that counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted
from vllm_adapter.doctor.rules._cuda_driver import driver_of, is_older, runtime_of
from vllm_adapter.driver_tables import (
    cuda_of_driver,
    decode_cuda,
    minimum_driver,
)
from vllm_adapter.host.facts import Driver, Line

_TOO_OLD: Final = r"driver on your system is too old \(found version (?P<number>\d+)\)"
_NO_LIBCUDA: Final = r"(?:libcuda|libnvidia-ml)\.so[.\d]*: cannot open shared object file"
_ERROR_35: Final = (
    r"(?i)CUDA driver version is insufficient for CUDA runtime version"
    r"|Found no NVIDIA driver on your system|cudaErrorInsufficientDriver"
)
_NO_DEVICE: Final = (
    r"(?i)no CUDA-capable device is detected|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE"
    r"|NVMLError_LibraryNotFound|NVML Shared Library Not Found"
)
_NO_DEVICE_WORDS: Final = (
    "no cuda-capable", "no cuda gpus", "error_no_device", "nvmlerror_libr", "nvml shared libr",
)  # fmt: skip
_OLDEST: Final = "450.80.02"
"""Of any runtime that vLLM's or torch's builds still have (CUDA 11): facts of driver_tables."""
_OLDEST_ARCH: Final = 5
"""Compute capability (major) of the oldest device in any torch 2 build's list."""


def _default_runtime(version: str | None) -> str | None:
    """CUDA of the default (PyPI) build of a torch release: pytorch#172663, #190355."""
    found = re.match(r"2\.(\d+)", version or "")
    minor = int(found[1]) if found else 0
    return {11: "13.0", 12: "13.0", 13: "13.0", 14: "13.2"}.get(minor)


def _insufficient(box: Box) -> list[Line]:
    words = ("is insufficient for", "found no nvidia driver", "insufficientdriver")
    return [line for line, _ in box.told(_ERROR_35, words)]


def _below(box: Box, driver: Driver | None) -> bool | None:
    """Whether the driver is below what this runtime needs; None where one is not known.

    Where the runtime is not told, a driver below CUDA 12 is, and one between 12 and 13 may be.
    """
    if driver is None:
        return None
    runtime = _wanted_runtime(box)
    minimum = minimum_driver(runtime) if runtime else None
    if minimum:
        return is_older(driver.version, minimum)
    return is_older(driver.version, minimum_driver("12") or "") or None


def _wanted_runtime(box: Box) -> str | None:
    runtime, torch = runtime_of(box), box.facts.torch
    if runtime is None and torch and torch.version and not torch.local and not torch.hip:
        return _default_runtime(torch.version)
    return runtime


def _too_old(box: Box) -> Iterator[Finding]:
    said = [(line, match) for line, match in box.told(_TOO_OLD, ("found version",))]
    driver, runtime, torch = driver_of(box), _wanted_runtime(box), box.facts.torch
    minimum = minimum_driver(runtime) if runtime else None
    below = bool(driver and minimum and is_older(driver.version, minimum))
    vague = _insufficient(box) if _below(box, driver) else []
    if not said and not vague and not (below and torch and not torch.available):
        return
    serves = decode_cuda(int(said[0][1]["number"])) if said else None
    if serves is None and driver:
        serves = cuda_of_driver(driver.version)
    evidence = [quoted(line) for line, _ in said[:2]] + [quoted(line) for line in vague[:2]]
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
            f"{has} is older than the program's CUDA needs: 12.x starts from "
            f"{minimum_driver('12')}, 13.x from {minimum_driver('13')}, 11.x from "
            f"{minimum_driver('11')}"
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
    driver = driver_of(box)
    if driver and is_older(driver.version, _OLDEST) and not box.says(_TOO_OLD):
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
    if not _cuda_is_meant(box):
        return
    missing = [
        quoted(line)
        for line, _ in box.told(_NO_LIBCUDA, ("libcuda.so", "libnvidia-ml.so"))
        if "nvidia-container-cli" not in line.text
    ][:2]
    failed = [quoted(line) for line in _insufficient(box)][:2]
    none = [quoted(line) for line, _ in box.told(_NO_DEVICE, _NO_DEVICE_WORDS)][:2]
    driver = driver_of(box)
    if driver and not missing:
        yield from _not_here(box, driver, failed, none)
        return
    if not missing and not failed and not none:
        return
    where = " (this is a container)" if box.container else ""
    yield finding(
        "VA1102",
        [*missing, *failed, *none],
        f"no NVIDIA driver can be reached from here{where}: libcuda.so.1 or the device nodes are "
        "not there. It is not a matter of versions"
        + (", although the message speaks of one" if failed and not missing else ""),
        "check that /dev/nvidiactl and libcuda.so.1 exist; start the container with `--gpus all` "
        "and the NVIDIA container toolkit, or install the driver on the host",
    )


def _cuda_is_meant(box: Box) -> bool:
    """Whether CUDA's absence is a fault here: on another vendor's box it is the rule."""
    if box.other_runtime or (box.vendors and "cuda" not in box.vendors):
        return False
    vllm, torch = box.facts.vllm, box.facts.torch
    if vllm and vllm.platform and vllm.platform not in ("cuda", "unspecified"):
        return False
    return not (torch and (torch.local or "").startswith("cpu"))


def _but(box: Box, driver: Driver) -> str:
    newest = minimum_driver("13") or ""
    if _wanted_runtime(box) or not is_older(driver.version, newest):
        return ""
    return f" for CUDA 12 (a CUDA 13 program needs {newest})"


def _not_here(
    box: Box, driver: Driver, failed: list[Evidence], none: list[Evidence]
) -> Iterator[Finding]:
    """A driver answers on the host, and the program that failed did not reach it, or a device."""
    answers = [Evidence(f"driver {driver.version}", driver.source)]
    if failed and not _below(box, driver):
        yield finding(
            "VA1102",
            [*failed, *answers],
            f"driver {driver.version} is new enough{_but(box, driver)}, and the program does not "
            "reach it: it runs in a container without the GPUs, or finds another libcuda first",
            "start the container with `--gpus all`; look at `ldconfig -p | grep libcuda` and "
            "LD_LIBRARY_PATH for stubs and cuda-compat folders",
        )
    elif none:
        yield finding(
            "VA1111",
            [*none, *answers],
            f"driver {driver.version} answers, and the program counts no GPU: "
            "CUDA_VISIBLE_DEVICES hides all, the container has the libraries without the nodes, "
            "or a worker of Ray was given no GPU",
            "in the same place: `nvidia-smi -L`, `ls /dev/nvidia*`, `echo $CUDA_VISIBLE_DEVICES`; "
            "start the container with `--gpus all`; ask Ray for num_gpus",
        )


RULES: Final = (
    Rule("VA1101", _too_old),
    Rule("VA1108", _for_every_runtime),
    Rule("VA1102", _unreachable),
)
