"""What kernel releases, platform strings and names of distributions tell of a system."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.facts import OsFacts

MACHINES: Final = (
    "x86_64|amd64|i[3-6]86|aarch64|arm64|armv[678]l|ppc64le|ppc64|s390x|riscv64|loongarch64|mips64"
)
_PLATFORM: Final = re.compile(
    rf"(?P<name>Linux)-(?P<release>\S+)-(?P<machine>{MACHINES})(?:-with-(?P<libc>\S+))?$", re.I
)
_LIBC: Final = re.compile(r"(glibc|musl)[- ]?(\d+\.\d+(?:\.\d+)?)$")
_NAMES: Final = {"macos": "Darwin", "darwin": "Darwin", "windows": "Windows"}


def platform(text: str) -> OsFacts:
    """The facts in Python's `platform.platform()`; its libc is read from the interpreter's file
    by older versions, so that it is not taken."""
    found = _PLATFORM.match(text)
    if found:
        return OsFacts("Linux", found["release"], found["machine"])
    name = _NAMES.get(text.partition("-")[0].lower())
    machine = re.search(rf"-({MACHINES})-", text, re.I) if name else None
    return OsFacts(name, machine=machine[1] if machine else None)


def libc(text: str | None) -> str | None:
    """ "glibc 2.35" of "glibc-2.35"; None for anything else."""
    found = _LIBC.match(text or "")
    return f"{found[1]} {found[2]}" if found else None


def distribution(text: str) -> OsFacts:
    """The facts in "Ubuntu 22.04.5 LTS (x86_64)"."""
    if not text:
        return OsFacts()
    found = re.fullmatch(rf"(.+?)\s*\((?:({MACHINES})|[^()]*(?:64|32)[- ]?\S*)\)", text, re.I)
    named, machine = (found[1], found[2]) if found else (text, None)
    first = re.sub(r"^Microsoft\s+", "", named).split()[:1]
    name = _NAMES.get(first[0].lower()) if first else None
    if name is None and machine:
        name = "Linux"
    return OsFacts(name, machine=machine, distribution=named)
