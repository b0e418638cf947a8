"""What the kernel's log says of devices, beyond those that are lost or never came up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.box import Box, quoted
from vllm_adapter.doctor.rule import Data, Hit
from vllm_adapter.doctor.rules.health import device_errors

_LINE: Final = (
    r"NVRM: Xid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<xid>\d+),? ?(?P<what>.*)"
    r"|(?:amdgpu|xe|i915) (?P<place>[0-9a-f]{4}:[0-9a-f:.]+): (?P<other>\S.*)"
)


def logged(box: Box, data: Data) -> Iterator[Hit]:
    """Errors of devices; where the parsers could not tell which device it is, lines of the log.

    Such a line is wrapped, or the last one. The first kind of `data` that fits it counts.
    """
    if any(one.health.errors for one in box.facts.accelerators):
        yield from device_errors(box, {"kinds": data["kinds"], "by_place": True})
        return
    for line, found in box.told(_LINE, ("nvrm: xid", "amdgpu", "gpu hang")):
        error = f"Xid {found['xid']}: {found['what']}" if found["xid"] else found["other"]
        place = f"device {found['bdf'] or found['place']}"
        for case, pattern in {**data["of_health"], **data["kinds"]}.items():
            if re.search(pattern, error):
                yield Hit([quoted(line)], {"devices": place}, case)
                break
