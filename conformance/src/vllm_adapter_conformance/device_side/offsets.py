"""Tables and caches of more elements than 32 bits can count, of which a few rows are touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vllm_adapter.engine.ops.step import make_step

Device = Any
"""The device, with a bench's names: `bind`, `to_device`, `runtime`, `device`, `opened`."""
Facts = Mapping[str, Any]


def look_behind(
    device: Device,
    op: str,
    facts: Facts,
    places: Sequence[int],
    rows: torch.Tensor,
    slots: torch.Tensor | None = None,
    query: torch.Tensor | None = None,
    new: torch.Tensor | None = None,
    blocks: int = 1,
) -> list[torch.Tensor] | str:
    """Calls an operator on tensors of more than 2^31 elements, of which `places` alone are set.

    rows: [tables, places, ...]. Gives the results, and of a cache that was written the rows at
    `places`; or why the device could not hold it.
    """
    shape = (places[-1] + 2, *rows.shape[2:])
    needed = len(rows) * shape[0] * rows[0, 0].numel() * rows.element_size()
    free = device.runtime.query_memory_capacity(device.opened.record.index).free_bytes
    # A kernel may touch more than it has to: it is not to take all that there is.
    if free < needed * 1.5:
        return f"it takes {needed >> 20} MiB, and {free >> 20} MiB are free"
    try:
        tables = [torch.empty(shape, dtype=rows.dtype, device=device.device) for _ in rows]
    except (RuntimeError, MemoryError) as error:
        return f"{needed >> 20} MiB could not be had: {str(error).splitlines()[0]}"
    for table, mine in zip(tables, rows, strict=True):
        for place, row in zip(places, mine, strict=True):
            table[place].copy_(device.to_device(row))
    binding = device.bind(op, dict(facts))
    if op == "embedding":
        return [binding.run(device.to_device(torch.tensor(places)), tables[0]).cpu()]
    if op == "reshape_and_cache":
        assert new is not None and slots is not None
        written = (device.to_device(part) for part in new)
        binding.run(*written, *tables, device.to_device(slots))
        return [torch.stack([table[place].cpu() for place in places]) for table in tables]
    assert query is not None
    context = blocks * rows.shape[2]
    step = make_step((1,), (context,), [[*places[-blocks:]]], rows.shape[2], device.device)
    binding.plan(step)
    lengths = step.block_table, step.seq_lens, step.query_start_loc
    options = query.shape[2] ** -0.5, int(facts["window"]), float(facts["soft_cap"])
    result = binding.run(device.to_device(query), *tables, *lengths, *options, binding.handle)
    return [result.cpu()]
