"""The CPU adapter's hooks: live values for the generic descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm_adapter import AdapterSpec, hookimpl

if TYPE_CHECKING:
    from vllm_adapter import HostFacts

NATIVE_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
NATIVE_FLOAT16 = frozenset({"avx512_fp16", "amx_fp16", "asimdhp"})
"""Flags of /proc/cpuinfo (x86-64 and aarch64) for arithmetic in the dtype, not mere conversion."""


class CpuPlugin(AdapterSpec):
    """Fills in what a generic descriptor cannot know: cores, memory, which dtypes are native."""

    @hookimpl
    def describe(self, device: str, host: HostFacts) -> Mapping[str, Any]:
        threads = len(host.cpuset.cpus) or host.cpu.logical
        flags = frozenset(host.cpu.flags)
        units: dict[str, dict[str, Any]] = {"float32": {}, "float16": {}, "bfloat16": {}}
        if threads:
            for unit in units.values():
                unit["max_threads"] = threads
        if flags:
            units["float16"]["emulated"] = not flags & NATIVE_FLOAT16
            units["bfloat16"]["emulated"] = not flags & NATIVE_BFLOAT16
        known = [
            size
            for size in (host.memory.total_bytes, host.cgroup.memory_limit_bytes)
            if size is not None
        ]
        live: dict[str, Any] = {"compute_units": units}
        if known:
            live["memory"] = {"capacity_bytes": min(known)}
        if host.cpu.model:
            live["identity"] = {"name": host.cpu.model}
        return live
