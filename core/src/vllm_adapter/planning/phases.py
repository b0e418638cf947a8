"""The two kinds of step of a plan, decode and prefill, against the roofline."""

from __future__ import annotations

from vllm_adapter.planning.demand import ModelDemand
from vllm_adapter.planning.negotiate import AgreedDtypes
from vllm_adapter.planning.roofline import Phase, Rates, gemms, step
from vllm_adapter.planning.sizing import SizingInput, step_tokens


def phases(
    demand: ModelDemand, asked: SizingInput, peaks: Rates, dtypes: AgreedDtypes
) -> tuple[Phase, ...]:
    """Decoding at full batch, and a full step of prefill, at the planned context."""
    groups = asked.groups
    tokens = step_tokens(asked)
    found = []
    whole = min(tokens, asked.context)
    some = max(1, tokens // whole)
    prefill = gemms(demand, groups.tensor, some * whole, dtypes.dtype, dtypes.packing)
    if demand.kv_layers:
        decode = gemms(demand, groups.tensor, asked.sequences, dtypes.dtype, dtypes.packing)
        found.append(
            step(
                demand,
                decode,
                peaks,
                name="decode",
                sequences=asked.sequences,
                new=1,
                context=max(1, asked.context // 2),
                kv_dtype=dtypes.kv,
                ranks=groups.tensor,
            )
        )
    found.append(
        step(
            demand,
            prefill,
            peaks,
            name="prefill",
            sequences=some,
            new=whole,
            context=whole,
            kv_dtype=dtypes.kv,
            ranks=groups.tensor,
        )
    )
    return tuple(found)
