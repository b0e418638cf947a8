"""Whether our bridge fits the installed vLLM: asked by the broker and by `serve`, before weights.

The answer is from vLLM's source alone (`vllm_drift`): a release that was tried has a snapshot, and
what differs between those is handled. Of another release the nearest snapshot is taken.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Final

from vllm_adapter.broker.vllm_drift import compare, snapshots
from vllm_adapter.broker.vllm_install import VllmInstall

LOOK: Final = "`vllm-adapter doctor --vllm` lists what differs"
REPLACED: Final = (
    "linear",
    "embedding",
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "gelu_and_mul",
    "rotary_embedding",
    "reshape_and_cache",
    "paged_attention",
    "attention",
)
"""The operators that have a place in vLLM; in the native shape its own kernel stands there."""
_FAMILIES: Final = ("cpu", "cuda", "rocm", "xpu")
"""vLLM's device families; each has a module in `platforms/`."""
_GENERIC_ALONE: Final = (
    "distributed/device_communicators/",
    "lora/",
    "model_executor/layers/fused_moe/",
    "triton_utils/",
    "v1/structured_output/",
    "v1/worker/",
)
"""What only the generic shape overrides or calls; of Platform, what no native class has either."""
_BASE: Final = "platforms/interface.py:Platform."


@dataclass(frozen=True, slots=True)
class VllmFit:
    """`misfit` is why the native shape cannot be used; `note` what is worth saying, or empty."""

    misfit: str = ""
    note: str = ""


def fit(vllm: VllmInstall, family: str) -> VllmFit:
    """How the bridge fits, for devices that vLLM calls `family`.

    Raises:
        InputError: the snapshots of this installation cannot be read.
    """
    compared = compare(vllm)
    drift = [one for one in compared.drift if _concerns(one.name, family)]
    note = "" if compared.exact else f"tried with {tried()}; this is {vllm.version}: {LOOK}"
    if not drift:
        return VllmFit(note=note)
    first, more = drift[0], len(drift) - 1
    what = f"{first.name} is {first.now or 'not there'}, and was {first.was or 'not there'}"
    rest = f" and {more} more differ{'s' if more == 1 else ''}" if more else ""
    return VllmFit(
        f"vLLM {vllm.version} is not what the bridge was written for, by {compared.release}: "
        f"{what}{rest}; {LOOK}",
        note,
    )


def _concerns(name: str, family: str) -> bool:
    """Whether a hook is used for devices of a family; of none of vLLM's: the generic shape."""
    others = tuple(f"platforms/{one}.py:" for one in _FAMILIES if one != family)
    if name.startswith(others):
        return False
    if family not in _FAMILIES:
        return True
    if name.startswith(_BASE):
        return name.removeprefix(_BASE) in _mixed_in()
    return not name.startswith(_GENERIC_ALONE)


@functools.cache
def _mixed_in() -> frozenset[str]:
    """What a native class overrides."""
    newest = json.loads(snapshots()[-1][1].read_text("utf-8"))
    return frozenset(newest["signatures"]["platforms/cpu.py:CpuPlatform"])


def tried() -> str:
    """The oldest and the newest release that there is a snapshot of, in words."""
    files = [file for _, file in snapshots()]
    oldest, newest = (json.loads(f.read_text("utf-8"))["vllm"] for f in (files[0], files[-1]))
    return f"vLLM {oldest} to {newest}"
