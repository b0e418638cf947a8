"""Dtypes that a model and a device agree on: products, checkpoint, KV cache; a downgrade is said.

The rules read the descriptor alone: whether the chip multiplies a dtype, which eight-bit float it
has. A downgrade changes the bytes, so memory is counted after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vllm_adapter.errors import InputError
from vllm_adapter.planning.box import LostFeature, PlanBox
from vllm_adapter.planning.demand import ModelDemand
from vllm_adapter.planning.dtypes import BITS, lost_to_arch
from vllm_adapter.planning.line import Figures, PlanLine
from vllm_adapter.planning.tensors import WeightPacking

COMPUTED: Final = ("bfloat16", "float16", "float32")
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class AgreedDtypes:
    """`dtype` of activations and of what is not packed; `packing` None where nothing is packed.

    `rate`: the dtype whose peak the products have; `kv` that of the cache. `lines` say why.
    """

    dtype: str
    packing: WeightPacking | None
    rate: str
    kv: str
    kv_word: str
    weight_bytes: int
    lines: tuple[PlanLine, ...]


def agree(
    demand: ModelDemand,
    box: PlanBox,
    figures: Figures,
    own: Mapping[str, str],
    advised: str | None,
) -> AgreedDtypes:
    """The dtypes for a model on a box; `own` are the operator's, `advised` the adapter's KV dtype.

    Raises:
        InputError: the operator asks for a dtype that the chip has not.
    """
    lost = {one.feature: one for one in box.lost}
    dtype, line = _activations(demand, figures, lost, own)
    lines = [line]
    packing, rate, more = _weights(demand, figures, lost, dtype)
    lines.append(more)
    kv, word, more = _kv(demand, figures, lost, dtype, own, advised)
    lines.append(more)
    return AgreedDtypes(
        dtype, packing, rate, kv, word, demand.weight_bytes(dtype, packing), tuple(lines)
    )


def _activations(
    demand: ModelDemand, figures: Figures, lost: Mapping[str, LostFeature], own: Mapping[str, str]
) -> tuple[str, PlanLine]:
    asked = own.get("dtype")
    wanted = asked or demand.dtype
    if wanted not in COMPUTED:
        raise InputError(
            f"a model is not computed in {wanted}", hint=f"--dtype is one of {', '.join(COMPUTED)}"
        )
    missing = _missing(figures, lost, wanted)
    if asked:
        if missing is not None and not figures.read(f"/compute_units/{wanted}/emulated"):
            raise InputError(
                f"--dtype {wanted}: {missing.reason}", hint=f"take --dtype {missing.to}"
            )
        return wanted, figures.line("dtype", wanted, "the operator's own flag", owner="operator")
    if demand.files.gguf:
        why = "a GGUF file is unpacked when it is loaded, to 16 bits"
        missing = _missing(figures, lost, "float16")
        wanted = "float16" if missing is None else _instead(missing, figures, lost)
    elif missing is not None and not _emulated(figures, wanted):
        wanted = _instead(missing, figures, lost)
        why = f"the model is {demand.dtype}: {missing.reason}"
    elif missing is not None:
        why = "the model's own; the chip stores it and computes in another, which is said below"
    elif wanted == "float32" and not demand.shape.family.encoder:
        why = "the model's own: it was published in float32, and nothing is rounded unasked"
    else:
        why = "the model's own"
    return wanted, figures.line("dtype", wanted, why, flags=("--dtype", wanted))


def _emulated(figures: Figures, dtype: str) -> bool:
    return bool(figures.read(f"/compute_units/{dtype}/emulated"))


def _instead(missing: LostFeature, figures: Figures, lost: Mapping[str, LostFeature]) -> str:
    """What replaces a lost dtype, and what replaces that if it is lost as well."""
    seen = {missing.feature}
    while missing.to not in seen:
        seen.add(missing.to)
        further = _missing(figures, lost, missing.to)
        if further is None or _emulated(figures, missing.to):
            return missing.to
        missing = further
    return "float32"


def _missing(
    figures: Figures, lost: Mapping[str, LostFeature], feature: str
) -> LostFeature | None:
    """What says that a dtype is not to be had: a verdict on the box, or the descriptor."""
    if feature in lost:
        return lost[feature]
    to, pointer, reason = lost_to_arch(figures.capability, feature)
    if pointer:
        figures.read(pointer)
    return LostFeature(feature, to, reason, pointer) if to else None


def _weights(
    demand: ModelDemand, figures: Figures, lost: Mapping[str, LostFeature], dtype: str
) -> tuple[WeightPacking | None, str, PlanLine]:
    packing = demand.packing
    if demand.files.gguf and demand.files.files is not None:
        held = demand.files.files
        kinds = ", ".join(sorted(held.bytes))
        why = (
            f"{held.total:,} bytes of {kinds} in the file become "
            f"{demand.weight_bytes(dtype, None):,} in {dtype}"
        )
        return None, dtype, figures.line("weights", dtype, why)
    if packing is None:
        size = demand.weight_bytes(dtype, None)
        why = f"{demand.parameters:,} parameters, {size:,} bytes"
        return None, dtype, figures.line("weights", dtype, why)
    whole, plain = demand.weight_bytes(dtype), demand.weight_bytes(dtype, None)
    name = f"{packing.method} ({packing.dtype})"
    if not packing.dtype.startswith("float8"):
        why = f"{whole:,} bytes packed; computed in {dtype}, since only the weights are packed"
        return packing, dtype, figures.line("weights", name, why)
    missing = _missing(figures, lost, "float8_e4m3fn")
    if missing is not None:
        why = (
            f"downgrade: {missing.reason}; unpacked to {dtype} the weights take {plain:,} bytes "
            f"instead of {whole:,}, which is what is counted below"
        )
        return None, dtype, figures.line("weights", dtype, why)
    flavour = figures.read("/numerics/fp8_flavour")
    if figures.read("/numerics/native_fp8") is None:
        figures.assume("nothing says whether eight-bit floats are multiplied: assumed they are")
    if flavour == "e4m3fnuz":
        why = (
            f"{whole:,} bytes; the checkpoint is e4m3fn and the chip has e4m3fnuz: the bytes "
            "stay, scales are doubled and the byte 0x80 is cleaned while loading"
        )
        return packing, "float8_e4m3fnuz", figures.line("weights", name, why)
    limit = figures.read("/numerics/fp8_max")
    more = f"; the chip's largest is {limit:g}, not 448" if limit and limit < 448 else ""
    why = f"{whole:,} bytes, as the checkpoint has them{more}"
    return packing, "float8_e4m3fn", figures.line("weights", name, why)


def _kv(
    demand: ModelDemand,
    figures: Figures,
    lost: Mapping[str, LostFeature],
    dtype: str,
    own: Mapping[str, str],
    advised: str | None,
) -> tuple[str, str, PlanLine]:
    asked = own.get("kv_dtype")
    if not demand.kv_layers:
        return dtype, "auto", figures.line("kv_dtype", None, "an encoder keeps no keys and values")
    if asked is None and advised is None:
        why = "that of the activations: nothing is lost"
        return dtype, "auto", figures.line("kv_dtype", dtype, why)
    wanted, owner = (asked, "operator") if asked else (advised, "adapter")
    assert wanted is not None
    if wanted not in ("fp8", *BITS):
        raise InputError(f"there is no KV dtype {wanted!r}", hint="take auto or fp8")
    if not wanted.startswith(("fp8", "float8")):
        flags = () if asked else ("--kv-cache-dtype", wanted)
        return (
            wanted,
            wanted,
            figures.line("kv_dtype", wanted, _said(owner), flags=flags, owner=owner),
        )
    kind = wanted
    if wanted in ("fp8", "float8_e4m3fn", "float8_e4m3fnuz"):
        kind = f"float8_{figures.read('/numerics/fp8_flavour') or 'e4m3fn'}"
    missing = _missing(figures, lost, "float8_e4m3fn")
    if missing is not None and asked:
        raise InputError(
            f"--kv-cache-dtype {asked}: {missing.reason}",
            hint=f"leave it out: the cache is then {dtype}",
        )
    if missing is not None:
        why = f"the adapter asks for {wanted}, and {missing.reason}"
        return dtype, "auto", figures.line("kv_dtype", dtype, why)
    flags = () if asked else ("--kv-cache-dtype", "fp8")
    return kind, "fp8", figures.line("kv_dtype", kind, _said(owner), flags=flags, owner=owner)


def _said(owner: str) -> str:
    return "the operator's own flag" if owner == "operator" else "advice of the adapter"


def half_kv(figures: Figures, box: PlanBox, kv: str) -> str | None:
    """An eight-bit float for the KV cache, if the chip has one and the cache is wider."""
    if BITS[kv] <= 8 or any(one.feature == "float8_e4m3fn" for one in box.lost):
        return None
    numerics = figures.capability.numerics
    if numerics.native_fp8 is not True or numerics.fp8_flavour is None:
        return None
    return f"float8_{numerics.fp8_flavour}"
