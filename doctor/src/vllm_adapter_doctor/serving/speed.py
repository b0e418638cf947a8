"""What an adapter's operators cost where vLLM has kernels of its own, said before the start."""

from __future__ import annotations

from vllm_adapter.broker.selection import Selection
from vllm_adapter.broker.vllm_fit import REPLACED
from vllm_adapter.discovery.adapter import Adapter
from vllm_adapter.errors import VllmAdapterError
from vllm_adapter.settings import Fallback, Settings


def speed_notes(selection: Selection, settings: Settings) -> list[str]:
    """Sentences about what was measured: who runs, and what it costs; none where nothing was."""
    record = selection.record
    if record is None or selection.platform is None or selection.shape != "native":
        return []
    try:
        capability = Adapter(record).capability(record.devices[0], settings)
    except VllmAdapterError:
        return []  # the start says it
    speeds = capability.vllm.relative_speed
    if speeds is None:
        return []
    declared = [op for op in REPLACED if op in capability.operators]
    if settings.fallback is Fallback.ERROR:
        asked, by = declared, "VA_FALLBACK=error"
    else:
        asked, by = [op for op in declared if op in settings.ops], "VA_OPS"
    taken = [op for op in declared if speeds.get(op, 0) >= 1]
    kept = {op: speeds.get(op) for op in declared if op not in (*taken, *asked)}
    notes = []
    if kept:
        first = next(iter(kept))
        notes.append(
            f"vLLM's own kernels run {_listed(kept)}, decoding with {record.name}'s being slower "
            f"or not measured (its share of the speed in brackets); VA_OPS={first}:{record.name} "
            "takes one all the same"
        )
    slow = {op: speeds.get(op) for op in asked if op not in taken}
    if slow:
        notes.append(
            f"{by} has {record.name} run {_listed(slow)}: decoding with each alone reaches that "
            "share of the speed with vLLM's own kernel"
        )
    return notes


def _listed(shares: dict[str, float | None]) -> str:
    words = [f"{op} ({'?' if share is None else f'{share:g}'})" for op, share in shares.items()]
    return ", ".join(words)
