"""docs/devices.md: every descriptor of this tree, its main figures, and whether it has run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.manifest import Manifest, read_manifest
from vllm_adapter.discovery.descriptors import load_all
from vllm_adapter_conformance.rules.l0_hardware import kinds

ADAPTERS = Path(__file__).parent.parent / "adapters"
NAMES = ("cuda", "rocm", "xpu", "ascend", "gaudi", "musa", "mlu", "biren")
KINDS = ("datasheet", "queried", "measured", "assumed")
_HEAD = """\
# Devices

Made from the adapters' manifests and descriptors by `make docs`.

**Not run on hardware** means what it says: the file was written from documents, public source
files and listings, and nobody has opened such a device with it. `vllm-adapter list` and L0
certificates say the same. Rates are dense, in 10^12 operations a second, of one device: a card of
two dies or stacks is two. An empty cell is unknown. A file named after an arch alone serves that
arch's other devices, whose memory and units are the live ones.
"""


def devices() -> str:
    """The page."""
    manifests = [read_manifest(_file(name)) for name in NAMES]
    described = [load_all(manifest) for manifest in manifests]
    lines = [_HEAD, "## Figures by source", ""]
    lines += [f"| adapter | descriptors | {' | '.join(KINDS)} |", "|---|---|---|---|---|---|"]
    for manifest, files in zip(manifests, described, strict=True):
        found = sum((kinds(one) for one in files), Counter[str]())
        counts = " | ".join(str(found[kind]) for kind in KINDS)
        lines.append(f"| `{manifest.name}` | {len(files)} | {counts} |")
    for manifest, files in zip(manifests, described, strict=True):
        lines += ["", *_vendor(manifest, files)]
    return "\n".join([*lines, ""])


def _vendor(manifest: Manifest, files: tuple[Capability, ...]) -> list[str]:
    first = files[0].vllm
    lines = [f"## {manifest.name}: {manifest.vendor}", ""]
    lines += [
        f"Collectives `{first.dist_backend}`; devices are hidden by "
        f"`{first.visible_devices_variable}`.",
        "",
        "| descriptor | device | 16-bit | FP8 | FP8 format | memory GB | GB/s | subgroup "
        "| KV block | hardware |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [_row(manifest, one) for one in files]


def _row(manifest: Manifest, one: Capability) -> str:
    stem, memory, numerics = Path(one.origin).stem, one.memory, one.numerics
    half = _peak(one, "bfloat16") or _peak(one, "float16")
    eight = _peak(one, "float8_e4m3fn") or _peak(one, "float8_e4m3fnuz")
    flavour = f"{numerics.fp8_flavour} to {numerics.fp8_max:g}" if numerics.fp8_flavour else ""
    if numerics.native_fp8 is False:
        flavour = "none"
    capacity = "" if memory.capacity_bytes is None else f"{memory.capacity_bytes / 1e9:.4g}"
    width = "" if memory.bandwidth_gb_s is None else f"{memory.bandwidth_gb_s:g}"
    ran = "run" if stem in (manifest.tested_on or ()) else "not run on hardware"
    cells = (
        f"`{stem}`",
        one.identity.name or "others",
        half,
        eight,
        flavour,
        capacity,
        width,
        str(one.execution.subgroup_size or ""),
        str(one.kv.block_multiple or ""),
        ran,
    )
    return f"| {' | '.join(cells)} |"


def _peak(one: Capability, dtype: str) -> str:
    unit = one.compute_units.get(dtype)
    peak = unit.peak_gflops if unit else None
    return "" if peak is None else f"{peak / 1000:.4g}"


def _file(name: str) -> Path:
    return ADAPTERS / name / f"src/vllm_adapter_{name}/adapter.json"
