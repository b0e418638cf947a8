"""The choice of platform: who serves, and who should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter_doctor.findings.host import ExaminedHost, quoted
from vllm_adapter_doctor.findings.rule import Data, RuleHit

_LISTED: Final = r"^.*?\s-\s+(?P<name>[\w.-]+)\s+->\s+(?P<value>[\w.]+:[\w.]+)"
_GROUP: Final = r"Available plugins for group (?P<group>[\w.]+)"
_ACTIVATED: Final = r"Platform plugin (?P<name>[\w.-]+) is activated"
_SERVES: Final = (
    r"device_config=(?P<device>\w+)|detected platform (?P<platform>\w+)"
    r"|(?P<none>No platform detected|UnspecifiedPlatform)"
)
_WORDS: Final = ("device_config=", "detected platform", "no platform detected", "unspecifiedplat")


def swallowed(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """A platform plug-in that was listed, not activated, and another platform that serves."""
    listed: list[tuple[str, str, Evidence]] = []
    group = ""
    for line in box.facts.report:
        head = re.search(_GROUP, line.text)
        if head:
            group = head["group"]
            continue
        entry = re.search(_LISTED, line.text)
        if entry and group == "vllm.platform_plugins":
            listed.append((entry["name"], entry["value"], quoted(line)))
    activated = {match["name"] for _, match in box.lines(_ACTIVATED)}
    serving = [
        (lines[0], match)
        for lines, match in box.searched.program_lines(_SERVES, _WORDS, debug=True)
    ]
    if not listed or not serving or activated & {name for name, _, _ in listed}:
        return
    line, match = serving[-1]
    device = match["device"] or match["platform"] or "no platform"
    if device not in ("cpu", "no platform"):
        return
    module, function = listed[0][1].split(":")
    yield RuleHit(
        [*(evidence for _, _, evidence in listed), quoted(line)],
        {
            "names": ", ".join(name for name, _, _ in listed),
            "serves": device,
            "module": module,
            "function": function,
        },
    )


def other_silicon(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A device with the face of another vendor's. `data` has names and faces by vendor."""
    vendors = {one.vendor: one for one in box.facts.accelerators}
    for vendor, (name, face) in data["faces"].items():
        if vendor in vendors:
            one = vendors[vendor]
            said = f"{one.name or name}, reported by {one.source}"
            yield RuleHit(
                box.evidence(re.escape(one.name), said) if one.name else [Evidence(said, "facts")],
                {"name": name, "face": face, "adapter": vendor},
            )
