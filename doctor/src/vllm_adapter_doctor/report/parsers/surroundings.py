"""Where the machine of a report runs: WSL, a cloud, a virtual machine, a container, a phone."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts, OsFacts
from vllm_adapter_doctor.report.parsers._fields import known_value
from vllm_adapter_doctor.report.text import Report

_HYPERVISOR: Final = re.compile(r"^\s*(?:Hypervisor vendor|超管理器厂商)\s*:[:\s]*(\S.*)$")
_RELEASE: Final = re.compile(
    r"\b(?:Linux-|Linux version |Linux \S+ |kernel(?: release| version)?:? +)(\d+\.\d+\.\d+\S*)",
    re.I,
)
_WINDOWS_DRIVER: Final = re.compile(  # since 595 some of Linux have two numbers too
    r"^\W*(?:CUDA Driver Version|Nvidia driver version)\s*: (?:5[3-8]\d|59[0-4])\.\d\d$"
)
_TWO_NUMBERS: Final = re.compile(  # the tool's own and Windows's: see `_WINDOWS_DRIVER`
    r"\bNVIDIA-SMI\s+(\d{3}\.\d+(?:\.\d+)?)\s+Driver Version:\s+((?:4[5-9]\d|5\d\d)\.\d\d)\s"
)
_SIGNS: Final = (
    (
        re.compile(
            r"microsoft-standard-WSL2|/usr/lib/wsl/|/dev/dxg\b|/mnt/wslg\b|\bWSL is detected\b"
            r"|\bWSL environment detected|\blibrocdxg|roc\w*4wsl"
            r"|\bWSL ?2\b.*\b(?:Ubuntu|Windows|kernel)"
            r"|\b(?:Ubuntu|Windows|Debian)\b.*\bWSL ?2\b",
            re.I,
        ),
        ("wsl2",),
    ),
    (
        re.compile(
            r"/\.dockerenv|/docker/overlay2|nvidia-container-cli|^Attaching to \S+-\d+\b"
            r"|(?:^|[$#] )(?:sudo )?docker (?:run|exec|compose)\b"
            r"|^\(?\w*\)?\s?root@[0-9a-f]{12}:"
        ),
        ("container", "docker"),
    ),
    (
        re.compile(r"/run/\.containerenv|(?:^|[$#] )(?:sudo )?podman (?:run|exec)\b"),
        ("container", "podman"),
    ),
    (
        re.compile(r"\bKUBERNETES_(?:SERVICE_HOST|PORT)\b|/kubepods|/secrets/kubernetes\.io"),
        ("container", "kubernetes"),
    ),
    (
        re.compile(
            r"^\W*(?:NVIDIA_REQUIRE_CUDA|NVIDIA_DRIVER_CAPABILITIES)=|/vllm-workspace/"
            r"|^\W*VLLM_USAGE_SOURCE=production-docker-image"
        ),
        ("container",),
    ),
    (re.compile(r"/data/data/com\.termux/"), ("android", "termux")),
    (re.compile(r"^(?:\S*[$#] )?Linux \S+ \d.{0,200}\bAndroid$"), ("android",)),
)
_WRAPPERS: Final = {
    "compose": ("container", "docker"),
    "kubernetes": ("container", "kubernetes"),
}
_CLOUDS: Final = (("aws", "aws"), ("amzn\\d*", "aws"), ("azure", "azure"), ("gcp", "gcp"))


def parse(report: Report) -> HostFacts:
    """`os.environment` and nothing else.

    A Microsoft hypervisor is WSL only under WSL's kernel, and Azure's under another; where nothing
    tells the kernel it may be either.
    """
    words: set[str] = set()
    release = ""
    hypervisor: str | None = None
    for line in report.lines:
        text = line.text
        if hypervisor is None and (vendor := _HYPERVISOR.match(text)):
            hypervisor = known_value(vendor[1].strip())
        if not release and (named := _RELEASE.search(text)):
            release = named[1].lower()
        if (tool := _TWO_NUMBERS.search(text)) and tool[1] != tool[2]:
            words.add("wsl2")
        for sign, meaning in _SIGNS:
            if sign.search(text):
                words.update(meaning)
    for wrapper in report.wrappers:
        words.update(_WRAPPERS.get(wrapper, ()))
    if "wsl2" not in words and re.search(r"-microsoft$", release):
        words.add("wsl1")
    for flavour, cloud in _CLOUDS:
        if re.search(rf"[-.]{flavour}(?:[.-]|$)", release):
            words.add(cloud)
    if hypervisor == "Microsoft" and not release and report.first(_WINDOWS_DRIVER):
        words.add("wsl2")
    if hypervisor:
        words.add(f"hypervisor:{hypervisor}")
        if not words & {"wsl1", "wsl2"}:
            words.add("vm")
            if release and hypervisor == "Microsoft":
                words.add("azure")
    return HostFacts(os=OsFacts(environment=tuple(sorted(words))))
