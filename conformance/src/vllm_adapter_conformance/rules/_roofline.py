"""The roofline of a bench's device: measured at its first use, and kept with the bench."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.performance.figures import Figure, figure
from vllm_adapter_conformance.performance.roofline import Roofline

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.target import Target

_KEPT: Final[weakref.WeakKeyDictionary[Bench, dict[str, Any]]] = weakref.WeakKeyDictionary()
FLOAT32: Final = "float32"


def memory_of(bench: Bench) -> dict[str, Any]:
    """What `measure_memory` gives; each row has a `rate` (a Figure in bytes/s), too."""
    from vllm_adapter_conformance.performance.measuring import measure_memory

    kept = _KEPT.setdefault(bench, {})
    if "memory" not in kept:
        seen = measure_memory(bench)
        for row in seen["rows"]:
            row["rate"] = figure([row["bytes"] / s for s in row["seconds"]], "bytes/s")
        kept["memory"] = seen
    found: dict[str, Any] = kept["memory"]
    return found


def compute_of(bench: Bench, dtype: str) -> dict[str, Any]:
    """What `measure_products` gives in a dtype; each row has a `rate` (in flop/s), too."""
    from vllm_adapter_conformance.performance.measuring import measure_products

    kept = _KEPT.setdefault(bench, {})
    if dtype not in kept:
        seen = measure_products(bench, dtype, own_linear=has_library(bench.target))
        for row in seen["rows"]:
            row["rate"] = figure([row["flops"] / s for s in row["seconds"]], "flop/s")
        kept[dtype] = seen
    found: dict[str, Any] = kept[dtype]
    return found


def stream(bench: Bench) -> Mapping[str, Any]:
    """The row of the fastest copy or read beyond the caches; of the largest, if none is."""
    rows = memory_of(bench)["rows"]
    beyond = [row for row in rows if row["beyond"]] or rows[-2:]
    fastest: Mapping[str, Any] = max(beyond, key=_most)
    return fastest


def product(bench: Bench, dtype: str) -> tuple[str, Mapping[str, Any]]:
    """Dtype and row of the fastest product.

    A kernel may compute in float32 where torch is slow in its dtype; a C library's own linear is
    its rate in each dtype.
    """
    dtypes = (dtype,) if has_library(bench.target) else tuple({dtype, FLOAT32})
    found = [(d, row) for d in dtypes for row in compute_of(bench, d)["rows"]]
    return max(found, key=lambda pair: _most(pair[1]))


def roofline_of(bench: Bench, dtype: str) -> Roofline:
    """What the device does in a dtype."""
    memory = memory_of(bench)
    return Roofline(
        memory=_median(stream(bench)),
        compute=_median(product(bench, dtype)[1]),
        launch=figure(memory["launch"], "s").median,
        best_memory=max(_most(row) for row in memory["rows"]),
        best_compute=_most(product(bench, dtype)[1]),
    )


def beside(bench: Bench, dtype: str, bound: str) -> dict[str, Any]:
    """What is measured in turn with a call that is bound by memory or compute."""
    if bound == "memory":
        row = stream(bench)
        return {"what": row["what"], "bytes": row["bytes"]}
    used, row = product(bench, dtype)
    own = has_library(bench.target)
    return {"what": "gemm", "side": row["side"], "dtype": used, "own_linear": own}


def amount(what: Mapping[str, Any]) -> float:
    """Bytes or operations of one call of `beside`."""
    return float(what["bytes"] if "bytes" in what else 2 * what["side"] ** 3)


def has_library(target: Target) -> bool:
    """Whether the device is a C library's, whose products are its own linear."""
    manifest = target.record.manifest
    return bool(manifest and manifest.device and manifest.device.library is not None)


def _median(row: Mapping[str, Any]) -> float:
    rate: Figure = row["rate"]
    return rate.median


def _most(row: Mapping[str, Any]) -> float:
    """The fastest sample: what else runs on the machine has only made the others slower."""
    rate: Figure = row["rate"]
    return rate.most
