"""A tiny decoder's script, all anew in each round, while faults may strike."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_adapter.errors import OutOfMemory, VllmAdapterError

from .load_decoder import TinyDecoder, run_script

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

TYPED: Final = (VllmAdapterError, torch.OutOfMemoryError)


def one_round(device: HeldDevice, *, model: Mapping[str, Any]) -> torch.Tensor:
    """Everything anew, as after a restart of the engine: weights, cache and script.

    `model` has `shape` (as `TinyDecoder` takes it), `weights` and `script`. Gives [rows, hidden]
    on the host.
    """
    script = model["script"]
    blocks = 4 * len(script["lengths"])
    decoder = TinyDecoder(device, model["shape"], model["weights"], blocks=blocks)
    try:
        with torch.no_grad():
            prompt, *steps = (device.to_device(x) for x in (script["prompt"], *script["steps"]))
            results = run_script(decoder, script["lengths"], prompt, steps)
            found = torch.cat([part.cpu() for part in results])
            device.synchronize()
            return found
    finally:
        decoder.close()


def try_round(device: HeldDevice, *, model: Mapping[str, Any]) -> dict[str, Any]:
    """One round, and how it ended.

    Gives the `error` (None: none), its `words`, whether it is `typed`, the `results` (None after
    an error) and how many allocations are `left`.
    """
    found: dict[str, Any] = {"error": None, "words": "", "typed": True, "results": None}
    try:
        found["results"] = one_round(device, model=model)
    except Exception as error:
        name, typed = type(error).__name__, isinstance(error, TYPED)
        found |= {"error": name, "words": str(error)[:500], "typed": typed}
    gc.collect()
    return found | {"left": _left(device)}


def ask_for_too_much(device: HeldDevice, *, model: Mapping[str, Any]) -> dict[str, Any]:
    """A round, then more memory than there is, then a round again.

    Gives `first` and `after` (host tensors [rows, hidden]), and `errors`: the class of each
    refusal (None: there was none) and whether it is OutOfMemory.
    """
    first = one_round(device, model=model)
    total = device.runtime.query_memory_capacity(device.index).total_bytes
    row: dict[str, Any] = {"what": f"{2 * total} bytes", "error": None, "typed": False}
    try:
        device.runtime.allocate_memory(2 * total, device.index).free()
    except Exception as error:
        typed = isinstance(error, (OutOfMemory, torch.OutOfMemoryError))
        row |= {"error": type(error).__name__, "typed": typed}
    return {"first": first, "after": one_round(device, model=model), "errors": [row]}


def _left(device: HeldDevice) -> int | None:
    try:
        return device.runtime.memory_stats(device.index).live_allocations
    except VllmAdapterError:
        return None
