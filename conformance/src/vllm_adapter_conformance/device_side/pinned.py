"""Pinned memory of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import looks

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice


def staged(holder: HeldDevice, *, device: int, contents: Sequence[bytes]) -> list[dict[str, Any]]:
    """Round trips whose both ends are pinned; all buffers live at a time, and are filled first."""
    runtime = holder.runtime
    outs = [runtime.allocate_pinned_memory(len(data)) for data in contents]
    backs = [runtime.allocate_pinned_memory(len(data)) for data in contents]
    for out, back, data in zip(outs, backs, contents, strict=True):
        if out.readonly or back.readonly or len(out) != len(data) or len(back) != len(data):
            break
        if data:
            out.cast("B")[:] = data
            back.cast("B")[:] = bytes([looks.HOST_POISON]) * len(data)
    seen = []
    for out, back, data in zip(outs, backs, contents, strict=True):
        told: dict[str, Any] = {
            "lengths": [len(out), len(back)],
            "bytes": [out.nbytes, back.nbytes],
            "read-only": out.readonly or back.readonly,
        }
        if told["lengths"] == told["bytes"] == [len(data)] * 2 and not told["read-only"]:
            memory = runtime.allocate_memory(len(data), device)
            runtime.copy_host_to_device(memory, out)
            runtime.copy_device_to_host(memory, back)
            runtime.synchronize_stream(device)
            memory.free()
            told |= {"out": bytes(out), "back": bytes(back), "pinned": _is_pinned(out)}
        seen.append(told)
    return seen


def _is_pinned(view: memoryview) -> bool | None:
    """What torch says of it; None: nothing."""
    import torch

    if not view.nbytes:
        return None
    return torch.frombuffer(view, dtype=torch.uint8).is_pinned()
