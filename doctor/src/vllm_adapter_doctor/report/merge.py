"""Joins what several parsers, or a machine and a report, say of one host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from vllm_adapter.hostfacts.facts import Accelerator, HostFacts

T = TypeVar("T")


def merge(parts: Iterable[HostFacts]) -> HostFacts:
    """One snapshot; where two parts name a value, the earlier part's is kept.

    Accelerators are joined where bus address, UUID, or vendor and index agree. Other tuples are
    united in order, without repetition; tuples of plain values are taken whole from one part.
    """
    whole = HostFacts()
    for part in parts:
        whole = _join_facts(whole, part)
    return whole


def _join_facts(first: HostFacts, second: HostFacts) -> HostFacts:
    values: dict[str, Any] = {}
    for field in fields(HostFacts):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.name == "accelerators":
            values[field.name] = join_accelerators(one, other)
        elif field.name == "numa":
            values[field.name] = _keyed(one, other, "id")
        elif field.name == "pci":
            values[field.name] = _keyed(one, other, "bdf")
        elif field.name == "drivers":
            values[field.name] = _union(one, other)
        elif field.name in ("packages", "environment", "unknown"):
            known = {item[0] for item in one}
            values[field.name] = one + tuple(item for item in other if item[0] not in known)
        elif field.name in ("modules",):
            values[field.name] = tuple(sorted({*one, *other}))
        elif field.name in ("nodes", "links"):
            values[field.name] = _union(one, other)
        else:
            values[field.name] = _joined(one, other)
    return HostFacts(**values)


def _joined(one: Any, other: Any) -> Any:
    """The earlier value, with what it does not know taken from the later."""
    if one is None or one == ():
        return other
    if is_dataclass(one) and type(one) is type(other):
        changes = {
            field.name: _joined(getattr(one, field.name), getattr(other, field.name))
            for field in fields(one)
        }
        # mypy knows no "any dataclass"
        return replace(one, **changes)  # type: ignore[type-var]
    return one


def _keyed(one: tuple[T, ...], other: tuple[T, ...], key: str) -> tuple[T, ...]:
    found = {getattr(item, key): item for item in one}
    for item in other:
        name = getattr(item, key)
        found[name] = _joined(found[name], item) if name in found else item
    return tuple(found[name] for name in sorted(found))


def _union(one: tuple[T, ...], other: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*one, *other)))


_LISTING: Final = ("lspci", "inxi", "kernel")
"""Sources that number nothing: their index is a place in a list."""
_FEWEST: Final = 4
"""Different digits of a real id: of 32 random ones there are never fewer."""
_RUNTIMES: Final = ("torch", "sglang", "rocminfo", "sycl-ls")
"""Sources that number what a program may see."""


def join_accelerators(
    one: Sequence[Accelerator], other: Sequence[Accelerator]
) -> tuple[Accelerator, ...]:
    """Each device once, with what all sources say of it.

    A list of hardware adds no device of a vendor whose devices another source has counted without
    saying where they are: it would be the same ones again.
    """
    found = list(one)
    unplaced = {
        known.vendor for known in one if not (known.bdf or _listing(known) or _instance(known))
    }
    for device in other:
        at = next((i for i, known in enumerate(found) if same_device(known, device)), None)
        if at is not None:
            joined = _joined(found[at], device)
            if (joined.partition or "").startswith("GI ") and device.partition:
                joined = replace(joined, partition=device.partition)  # a profile says more
            found[at] = joined
        elif not (_listing(device) and device.vendor in unplaced):
            found.append(device)
    return tuple(found)


def same_device(one: Accelerator, other: Accelerator) -> bool:
    """Whether two sources speak of one device.

    Numbers alone do not say so across unlike numberings: a runtime counts visible devices, a
    driver's tool all of them; an NPU's number is its card's. A MIG instance is not its GPU.
    """
    if one.vendor != other.vendor or _instance(one) != _instance(other):
        return False
    for key in ("uuid", "bdf"):
        mine, theirs = getattr(one, key), getattr(other, key)
        if mine and theirs and not (key == "uuid" and _masked(mine)):
            if one.source == other.source and one.index != other.index and one.die != other.die:
                return False  # partitions of one device
            return bool(mine == theirs) and (
                one.die is None or other.die is None or one.die == other.die
            )
    if _listing(one) or _listing(other) or _counts_visible(one) != _counts_visible(other):
        return False
    return (one.index, one.die or 0) == (other.index, other.die or 0)


def _masked(uuid: str) -> bool:
    """Whether it is no id: ROCm's "GPU-XX" of a card without one, or what a person wrote over."""
    return len(set(uuid.lower().removeprefix("gpu-").removeprefix("mig-")) - {"-"}) < _FEWEST


def _counts_visible(device: Accelerator) -> bool:
    return device.source.startswith(_RUNTIMES)


def _listing(device: Accelerator) -> bool:
    return device.source.startswith(_LISTING)


def _instance(device: Accelerator) -> bool:
    return (device.partition or "").startswith(("GI ", *"1234567"))
