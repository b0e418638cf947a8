"""Device codes of PCI ids, for texts and boxes where only the bus tells of a device.

Ids are those of pci.ids (2026-08-22), and for Ascend of the vendor's driver script. An Ascend id
names a family of bins, and a Gaudi id no revision, so those have no code here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TEXT: Final = """
10de sm_70 1db1 1db4 1db5 1db6
10de sm_75 1eb8
10de sm_80 20b0 20b1 20b2 20b5
10de sm_86 2204 2236
10de sm_89 2684 26b5 26b9 27b8
10de sm_90 2321 2329 2330 2331 2335 233b 2342 2348
10de sm_100 2901 2909 2941
10de sm_103 3182 31c2 31c3
10de sm_110 2b00
10de sm_120 2b85 2bb1 2bb4 2bb5
10de sm_121 2e12
1002 gfx908 738c 738e
1002 gfx90a 7408 740c 740f
1002 gfx942 74a0 74a1 74a2 74a5 74a9 74b5 74b9 74bd
1002 gfx950 75a0 75a3 75a8
1002 gfx1100 744c
1002 gfx1150 150e
1002 gfx1151 1586
1002 gfx1201 7550 7551
1ed5 mp_22 0323 0327 0328
19e5 310p d500
"""


def _read() -> dict[str, str]:
    rows = (line.split() for line in _TEXT.strip().splitlines())
    return {f"{vendor}:{device}": arch for vendor, arch, *devices in rows for device in devices}


ARCHS: Final[Mapping[str, str]] = _read()
"""By "vendor:device", as in `PciDevice`."""
