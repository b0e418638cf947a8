"""What an emulated device can show of memory, of late work and of failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from . import looks
from .torch_streams import emptied, pinned

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

TRIES: Final = 5
CHILD: Final = "vllm_adapter_conformance.rules._failing_child"
CHILD_LIMIT_S: Final = 120.0


def fresh(holder: HeldDevice, *, device: int, size: int) -> list[bytes]:
    """Memory that nobody wrote, twice, the second time over memory that held zeros."""
    seen = []
    for _ in range(2):
        memory = holder.runtime.allocate_memory(size, device)
        seen.append(looks.get(holder, memory))
        looks.fill(holder, memory, 0)
        memory.free()
    return seen


def late(holder: HeldDevice, *, device: int, data: bytes) -> list[bytes]:
    """The end of a long copy's target, without a wait, in some tries; the last may be late."""
    runtime, seen = holder.runtime, []
    memory, stream = runtime.allocate_memory(len(data), device), runtime.create_stream(device)
    source = pinned(holder, data)
    for _ in range(TRIES):
        back = emptied(holder, len(data))
        runtime.copy_host_to_device(memory, source, stream=stream)
        runtime.copy_device_to_host(memory, back, stream=stream)
        seen.append(bytes(back[-64:]))
        runtime.synchronize_stream(device, stream)
        if seen[-1] != data[-64:]:
            break
    memory.free()
    return seen


def with_fault(holder: HeldDevice, *, device: int, fault: str) -> dict[str, Any]:
    """What calls of the library answer in a fresh process in which a fault strikes."""
    runtime: Any = holder.runtime
    done = subprocess.run(
        [sys.executable, "-m", CHILD, str(runtime.library.path), str(device)],
        env=os.environ | {"SIM_FAULT": fault},
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
    )
    if done.returncode:
        return {"died": f"{done.returncode}: {done.stderr[-300:]}"}
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen
