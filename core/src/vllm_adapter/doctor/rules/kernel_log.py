"""What the kernel's log says of devices, beyond those that are lost or never came up.

Xid numbers: NVIDIA's list of Xid errors. Those that a program brings upon itself are no fault of
the box, and are only noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import MAX_EVIDENCE, Box, Rule, finding, quoted
from vllm_adapter.doctor.rules.health import LOST, MEMORY
from vllm_adapter.doctor.text_rule import TextRule
from vllm_adapter.host.facts import Accelerator

_RESET: Final = "end all programs on it and reset it; if that fails, reboot the host"
_KINDS: Final = (
    # code, errors, what they mean, what to do, how bad
    (
        "VA1809",
        r"\bXid (?:74|149)\b",
        "an error of an NVLink",
        "`nvidia-smi nvlink -s` and `-e`; reseat or replace the bridge or board if counts grow",
        Severity.WARNING,
    ),
    (
        "VA1709",
        r"\bXid (?:61|62|109|119|120|143|154)\b",
        "its firmware stopped answering (GSP or a microcontroller)",
        f"{_RESET}; upgrade the driver where it comes back",
        Severity.ERROR,
    ),
    (
        "VA1709",
        r"(?i)GPU reset|ring \S+ timeout|GPU recovery failed|MES failed|GPU HANG|wedged|"
        r"Timedout job",
        "it hung and was reset, and what ran on it is lost",
        "upgrade kernel, firmware and runtime of the device; where one program does it, report "
        "that; look at power and temperature where any does",
        Severity.ERROR,
    ),
    (
        "VA1115",
        r"does not support it",
        "the loaded driver has no support for it",
        "an older card needs an older (legacy) driver branch, a newer one a newer driver; "
        "Blackwell and later work with the open kernel modules only (nvidia-open)",
        Severity.ERROR,
    ),
    (
        "VA1710",
        r"\bXid (?:13|31|43|45|68|69)\b|page fault",
        "a program's own error (an access out of bounds, or its end); the device goes on",
        "look for the program's error; run it with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer",
        Severity.NOTE,
    ),
)


_LOST_KINDS: Final = (
    ("VA1701", LOST, "the kernel driver lost it", "", Severity.ERROR),
    ("VA1707", MEMORY, "its memory has uncorrectable errors", "", Severity.ERROR),
)
_READINGS: Final = r"^\s*\|\s*(?:(?:ERR!|N/A|\d+ ?%)\s+(?:ERR!|N/A|\d+ ?C)\s)[^\n]*"
"""The line of nvidia-smi's table with fan, temperature, state, power, memory and load."""
_ERR_CELLS: Final = r"ERR!(?:\s*/\s*ERR!)?"
"""One reading: usage and limit of the power are read together."""
_LINE: Final = (
    r"NVRM: Xid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<xid>\d+),? ?(?P<what>.*)"
    r"|(?:amdgpu|xe|i915) (?P<place>[0-9a-f]{4}:[0-9a-f:.]+): (?P<other>\S.*)"
)


def _name(one: Accelerator) -> str:
    return f"{one.vendor} device {one.bdf or one.index}"


def _logged(box: Box) -> Iterator[Finding]:
    for code, pattern, what, action, severity in _KINDS:
        hits = [
            (one, error)
            for one in box.facts.accelerators
            for error in one.health.errors
            if re.search(pattern, error)
        ]
        if hits:
            names = ", ".join(dict.fromkeys(_name(one) for one, _ in hits))
            yield finding(
                code,
                [Evidence(error, f"{one.source}, {_name(one)}") for one, error in hits[:5]],
                f"{names}: {what}",
                action,
                severity,
            )


def _quoted_line(box: Box) -> Iterator[Finding]:
    """A line of the log that the parsers did not take for a whole one: wrapped, or the last."""
    if not _unnamed(box):
        return
    for line, found in box.told(_LINE, ("nvrm: xid", "amdgpu", "gpu hang")):
        error = f"Xid {found['xid']}: {found['what']}" if found["xid"] else found["other"]
        named = found["bdf"] or found["place"]
        for code, pattern, what, action, severity in (*_LOST_KINDS, *_KINDS):
            if re.search(pattern, error):
                yield finding(code, [quoted(line)], f"device {named}: {what}", action, severity)
                break


def _unnamed(box: Box) -> bool:
    """Whether no device of the facts has an error: the parsers could not tell which it is."""
    return not any(one.health.errors for one in box.facts.accelerators)


def _none_listed(box: Box) -> bool:
    """Whether no other run of the tool, or program, shows a GPU."""
    return not any(
        one.vendor == "cuda" and one.source.startswith(("nvidia-smi", "torch"))
        for one in box.facts.accelerators
    )


def _unread(box: Box) -> Iterator[Finding]:
    """Readings that nvidia-smi's table has as ERR!: a single one is a sensor, several a fault."""
    if not box.searched.has(("err!",)):
        return
    rows = [line for line, _ in box.told(_READINGS, ("err!",))]
    sensors = [line for line in rows if len(re.findall(_ERR_CELLS, line.text)) == 1]
    faults = [line for line in rows if len(re.findall(_ERR_CELLS, line.text)) > 1]
    if faults:
        yield finding(
            "VA1704",
            [quoted(line) for line in faults[:MAX_EVIDENCE]],
            "nvidia-smi cannot read several values of this GPU: its firmware does not answer well",
            "power-cycle the host; if it stays, `nvidia-smi -q` and the kernel's log (Xid), then "
            "have the card checked",
            Severity.WARNING,
        )
    if sensors:
        yield finding(
            "VA1714",
            [quoted(line) for line in sensors[:MAX_EVIDENCE]],
            "nvidia-smi cannot read one value of this GPU (ERR!), and reads the others",
            severity=Severity.NOTE,
        )


RULES: Final = (
    Rule("VA1709", _logged),
    Rule("VA1709", _quoted_line),
    Rule("VA1714", _unread),
    TextRule(
        "VA1701",
        ("determine the device handle",),
        r"Unable to determine the device handle for (?P<gpu>GPU ?\S*?):? [^\n]*"
        r"(?:is lost|Unknown Error|Not Found)",
        "the driver has lost {gpu}",
        "drain the host and power-cycle it (a warm reboot may not be enough); if it comes back, "
        "have card, power and slot checked; `dmesg | grep Xid` has the time and the reason",
        on=_unnamed,
    ),
    TextRule(
        "VA1704",
        ("no devices were found",),
        r"^\W*No devices were found\.?$",
        "the NVIDIA driver is loaded and could start no GPU: none is on the bus, the card was "
        "given to another driver (vfio-pci), or its start failed",
        "`lspci -k -d 10de:` shows the card and its driver, `dmesg | grep NVRM` the reason; "
        "Blackwell needs the open kernel modules; power-cycle the host",
        unless=(r"HL-SMI|hl-smi|xpu-smi",),
        on=_none_listed,
    ),
    TextRule(
        "VA1704",
        ("rminitadapter failed", "gpu initialization failed"),
        r"NVRM: [^\n]*(?:RmInitAdapter failed|GPU initialization failed)[^\n]*",
        "the NVIDIA driver found the GPU and could not start it",
        "power-cycle the host; reseat card and power; update its firmware (VBIOS); on a virtual "
        "machine check the passthrough; Blackwell needs the open kernel modules",
        unless=(r"NVRM: GPU [0-9a-f]{4}:",),
    ),
    TextRule(
        "VA1115",
        ("requires use of the nvidia open kernel modules",),
        r"requires use of the NVIDIA open kernel modules",
        "this GPU works with the open kernel modules only, and the closed ones are loaded",
        "install nvidia-open (on Ubuntu nvidia-driver-NNN-open) and reboot",
    ),
    TextRule(
        "VA1401",
        ("vfio-pci",),
        r"Kernel driver in use: vfio-pci",
        "the device is bound to vfio-pci, for a virtual machine: no program of this host can use "
        "it",
        "give it back to the vendor's driver (driver_override), or run inside that virtual "
        "machine",
        Severity.NOTE,
    ),
    TextRule(
        "VA1704",
        ("nvrm: bar", "pci i/o region assigned"),
        r"NVRM: BAR\d is 0M|This PCI I/O region assigned to your NVIDIA device is invalid",
        "the firmware gave the GPU no address window for its memory",
        "switch on 'Above 4G decoding' (and large BARs) in the firmware; on a virtual machine "
        "raise its 64-bit MMIO size; boot with pci=realloc",
    ),
    TextRule(
        "VA1709",
        ("gsp", "rpcrecvpoll"),
        r"NVRM: (?!Xid)[^\n]*(?:\bRPC\b[^\n]*\bGSP\b|rpcRecvPoll\b|\bGSP\b)[^\n]*?"
        r"(?i:time[ds]? ?-?out|not respond|heartbeat|is (?:hung|stuck|unresponsive))"
        r"|NVRM: (?!Xid)[^\n]*(?i:time[ds]? ?-?out)[^\n]*(?:\bGSP\b|for fn \d+)",
        "the GPU's firmware (GSP) stopped answering the driver",
        f"{_RESET}; upgrade the driver where it comes back",
        unless=(
            r"\bXid\b[^\n]*: (?:119|120)\b",
            r"RmInitAdapter failed|GPU initialization failed",
        ),
    ),
    TextRule(
        "VA1707",
        ("unrepairable",),
        r"(?i)\bunrepairable[ _]memory\W{1,40}Yes\b",
        "the driver says that the device's memory has errors beyond repair",
        "take the device out of use and have it replaced",
    ),
    TextRule(
        "VA1707",
        ("pending",),
        r"^\s*(?:Pending|Pending Page Blacklist)\s*:\s*Yes\b",
        "the driver waits for a reset to take bad rows or pages of the device's memory out of use",
        "drain the device and reset it (`nvidia-smi --gpu-reset -i N`) or reboot; replace it if "
        "the count grows",
        Severity.WARNING,
        only=r"Remapped Rows|Retired Pages|Pending Page Blacklist",
    ),
)  # fmt: skip
