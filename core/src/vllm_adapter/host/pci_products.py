"""Product names of PCI ids, for boxes where nothing but the bus tells of a device.

From pci.ids (2026-05) and a driver script that lists Ascend's; only what a reader of a table
needs. An id that is not here has no name, which is no fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TEXT: Final = """
10de 2335 H200 SXM|10de 233b H200 NVL|10de 2330 H100 SXM|10de 2331 H100 PCIe|10de 2321 H100 NVL
10de 2342 GH200|10de 2348 GH200|10de 2329 H20|10de 20b0 A100-SXM4-40GB|10de 20b1 A100-PCIE-40GB
10de 20b2 A100-SXM4-80GB|10de 20b5 A100-PCIE-80GB|10de 26b9 L40S|10de 26b5 L40|10de 27b8 L4
10de 1eb8 T4|10de 2684 GeForce RTX 4090|10de 2b85 GeForce RTX 5090|10de 2bb1 RTX PRO 6000
10de 2bb4 RTX PRO 6000|10de 2bb5 RTX PRO 6000|10de 2901 B200|10de 2909 HGX B200|10de 3182 B300
10de 2941 GB200|10de 31c2 GB300|10de 31c3 GB300|10de 2e12 GB10|10de 2b00 Thor
1002 74a0 Instinct MI300A|1002 74a1 Instinct MI300X|1002 74a2 Instinct MI308X
1002 74a5 Instinct MI325X|1002 74a9 Instinct MI300X HF|1002 74bd Instinct MI300X HF
1002 74b5 Instinct MI300X VF|1002 74b9 Instinct MI325X VF|1002 75a0 Instinct MI350X
1002 75a3 Instinct MI355X|1002 75a8 Instinct MI350P|1002 7408 Instinct MI250X
1002 740c Instinct MI250X/MI250|1002 740f Instinct MI210|1002 738c Instinct MI100
1002 738e Instinct MI100|1002 744c Radeon RX 7900 XT/XTX|1002 7550 Radeon RX 9070 XT
1002 7551 Radeon AI PRO R9700|1002 1586 Radeon 8060S (Strix Halo)|1002 150e Radeon 890M (Strix)
8086 0bd5 Data Center GPU Max 1550|8086 0bd6 Data Center GPU Max 1550
8086 0bd4 Data Center GPU Max 1550VG|8086 0bd7 Data Center GPU Max 1350
8086 0bd8 Data Center GPU Max 1350|8086 0b69 Data Center GPU Max 1450
8086 0bd9 Data Center GPU Max 1100|8086 0bda Data Center GPU Max 1100
8086 0bdb Data Center GPU Max 1100|8086 0b6e Data Center GPU Max 1100C
8086 56a0 Arc A770|8086 56a1 Arc A750|8086 56c0 Data Center GPU Flex 170
8086 56c1 Data Center GPU Flex 140|8086 e20b Arc B580|8086 e20c Arc B570|8086 e211 Arc Pro B60
8086 e212 Arc Pro B50|8086 e222 Arc Pro B65|8086 e223 Arc Pro B70
1da3 1000 Gaudi|1da3 1010 Gaudi|1da3 1020 Gaudi 2|1da3 1060 Gaudi 3|1da3 1063 Gaudi 3 PCIe
19e5 d801 Ascend 910|19e5 d802 Ascend 910B|19e5 d803 Ascend 910C|19e5 d500 Ascend 310P
19e5 d100 Ascend 310|1ed5 0201 MTT S80|1ed5 0222 MTT S3000|1ed5 0323 MTT S4000
1ed5 0327 MTT S4000|1ed5 0328 MTT S4000|9999 0a01 C500|cabc 0370 MLU370-S4|1d94 6211 K100_AI
"""


def _read() -> dict[str, str]:
    rows = (
        row.split(maxsplit=2) for line in _TEXT.strip().splitlines() for row in line.split("|")
    )
    return {f"{vendor}:{device}": name for vendor, device, name in rows}


PRODUCTS: Final[Mapping[str, str]] = _read()
"""By "vendor:device", as in `PciDevice`."""
TWO_STACKS: Final = frozenset(f"8086:{device}" for device in ("0bd5", "0bd6", "0bd4"))
"""Cards of two stacks, where the ids prove it; each stack is a device of its own under FLAT."""
