"""Pieces of NVIDIA's stack against each other: kernel module, libcuda, toolkit, Windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.facts import Driver
from vllm_adapter_doctor.devices.driver_rules import FORWARD, MINOR_VERSION, driver_verdicts
from vllm_adapter_doctor.devices.verdict import DeviceVerdict
from vllm_adapter_doctor.findings.host import MAX_EVIDENCE, ExaminedHost, quoted
from vllm_adapter_doctor.findings.rule import Data, RuleHit
from vllm_adapter_doctor.findings.rules._cuda_driver import VENDOR, driver_of, runtime_of
from vllm_adapter_doctor.vendor_data.driver_tables import cuda_of_driver, is_older
from vllm_adapter_doctor.vendor_data.driver_versions import parse_version

_ZERO: Final = r"^\W*Driver Version:?\s*0\s*$|CUDA Version: ERR!"
_JETSON: Final = (
    r"(?i)\btegra\d*\b|\bL4T\b|\bJet(?:son|pack)\b|\(nvgpu\)|\bOrin\b|\bXavier\b|\bAGX\W+Thor\b"
)
"""Modules whose nvidia-smi never names a CUDA version: libcuda is a part of their system."""
_MISMATCH: Final = (
    r"(?i)NVML: Driver/library version mismatch|driver/library version mismatch"
    r"|unsupported display driver / cuda driver combination"
    r"|API mismatch: the (?:client|NVIDIA kernel module)"
    r"|(?:Error |error )803\b.{0,40}unsupported display driver"
)
_MISMATCH_WORDS: Final = ("version mismatch", "driver combination", "api mismatch")
_UNKNOWN_CUDA: Final = r"Driver Version: \d\S*\s+CUDA Version: (?:ERR!|N/A)"


def _verdict(box: ExaminedHost, code: str) -> DeviceVerdict | None:
    return next((one for one in driver_verdicts(VENDOR, box.facts) if one.code == code), None)


def minor_version(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """CUDA works on a driver that is older than the toolkit's own: good, with a reservation."""
    torch, runtime = box.facts.torch, runtime_of(box)
    one = _verdict(box, MINOR_VERSION)
    if one is None or one.got is None or torch is None or not torch.available:
        return
    serves = cuda_of_driver(one.got)
    yield RuleHit(
        [
            *(Evidence(f"{seen.text} (CUDA {serves})", seen.source) for seen in one.evidence),
            Evidence(f"torch built with CUDA {runtime}, available", "host facts"),
        ],
        {"driver": one.got, "runtime": runtime or "", "full": one.need or ""},
    )


def without_cuda(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """A driver that answers and names no version of CUDA: in Windows, or in a container."""
    smi, driver = box.facts.driver("nvidia-smi"), box.facts.driver("nvidia")
    two = bool(
        smi and driver and smi.version.partition(".")[0] != driver.version.partition(".")[0]
    )
    unknown = [quoted(line) for line, _ in box.lines(_UNKNOWN_CUDA)]
    if box.wsl or (unknown and two):
        zero = [quoted(line) for line, _ in box.lines(_ZERO)]
        dx = [quoted(line) for line, _ in box.lines(r"(?i)dxg|dxcore.*(?:fail|error)")]
        torch = box.facts.torch
        if zero or (dx and torch and torch.available is False):
            yield RuleHit([*zero, *dx][:4], case="windows")
    elif unknown and not box.has_line(_JETSON):
        yield RuleHit(unknown[:2], case="no libcuda")


def _releases(box: ExaminedHost) -> tuple[Driver, Driver] | None:
    """(kernel module, libraries) where the text has both, of one machine, and they differ."""
    if box.wsl or box.facts.driver("windows"):
        return None
    library = box.facts.driver("nvml")
    for kernel in box.facts.drivers:
        if library is None or kernel.component != "nvidia":
            continue
        if "/proc" not in kernel.source and "kernel" not in kernel.source:
            continue
        mine, theirs = parse_version(kernel.version), parse_version(library.version)
        if mine and theirs and mine[:2] != theirs[:2]:
            return kernel, library
    return None


def two_releases(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """The kernel's own word against the library's: one finding, and which is older if reported."""
    said = [quoted(line) for line, _ in box.program_lines(_MISMATCH, _MISMATCH_WORDS)]
    both = _releases(box)
    if both is not None:
        kernel, library = both
        yield RuleHit(
            [
                *(Evidence(f"{one.component} {one.version}", one.source) for one in both),
                *said[: MAX_EVIDENCE - len(both)],
            ],
            {"kernel": kernel.version, "libraries": library.version},
            "upgraded" if is_older(kernel, library.version) else "left over",
        )
    elif said:
        yield RuleHit(said[:MAX_EVIDENCE], case="said")


def forward_compatibility(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """A libcuda that is newer than the kernel driver's branch."""
    driver, one = driver_of(box), _verdict(box, FORWARD)
    if driver and one:
        values = {"driver": driver.version, "own": one.got or "", "told": one.need or ""}
        yield RuleHit(one.evidence, values)
