"""Which adapter serves vLLM: one choice among all that were probed, with its reason.

The rules, in this order:

1. An adapter must be ok, have a device of its own, and be one that this build of vLLM can serve;
   with VA_REQUIRE_DEVICE its torch type must be that one. An emulated device must be named in
   VA_ADAPTERS.
2. An accelerator beats the CPU. The CPU is chosen where VA_ADAPTERS names it, where vLLM is a
   build for the CPU, or under VA_FALLBACK=allow.
3. A stand-in, such as a new adapter before its chip is there, comes after every adapter that is
   none, unless VA_ADAPTERS names it: `tested_on` names nothing, and it matches by the machine
   alone, or says that its device is the CPU.
4. Then more evidence wins, then the order of VA_ADAPTERS. What is still equal is a tie: nobody is
   chosen, and vLLM stays as it is. A PCI function of a vendor whose devices are of another torch
   type is no evidence.

A choice is then held against vLLM: where its native shape does not fit the installed release, or
another project's platform plug-in answers, nobody of ours serves. A name in VA_ADAPTERS that does
not come to serve is a refusal (`refusal`): a start that asked for it must not get another device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vllm_adapter.broker.foreign import ForeignPlatform, answering
from vllm_adapter.broker.vllm_fit import VllmFit, fit
from vllm_adapter.broker.vllm_install import VllmInstall, find_vllm
from vllm_adapter.contract.reading import plain, revived
from vllm_adapter.discovery.records import AdapterRecord, Status
from vllm_adapter.errors import DeviceRefused
from vllm_adapter.hostfacts.known_vendors import BY_PCI, matches_build
from vllm_adapter.settings import Fallback, Settings

PLATFORMS: Final = "vllm_adapter.engine.integrations.vllm.platforms"
_NATIVE: Final[Mapping[str, str]] = {
    "cpu": "NativeCpu",
    "cuda": "NativeCuda",
    "rocm": "NativeRocm",
    "xpu": "NativeXpu",
}
"""vLLM's own device families, and our class over each."""
GENERIC: Final = "Generic"
"""Our class for a device that vLLM has no platform for, or with VA_SHAPE=generic for any."""
_ANY_MACHINE: Final = frozenset({"machine", "os"})
"""Keys of a manifest's `match` that speak of no device."""
_PCI_LINE: Final = re.compile(r"PCI \S+ is ([0-9a-f]{4}):")
"""How evidence names a PCI function, with its vendor."""


@dataclass(frozen=True, slots=True)
class ConsideredAdapter:
    """One installed adapter: what it is here, and why it was not chosen (empty if it was)."""

    name: str
    distribution: str
    version: str
    status: str
    why_not: str = ""
    torch_type: str | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice. `adapter`, `device`, `torch_type` and `shape` are None where nobody is chosen.

    `tied` are the names of those that are equally good, where that is why; `warnings` what is to
    be said beside the reason.

    `shape` is "native" where vLLM has a platform of its own for the device, else "generic";
    `platform` is the dotted class that vLLM shall use, or None: vLLM stays as it is. `record` is
    the chosen adapter as it was probed, so that nobody has to probe it again.
    """

    adapter: str | None
    reason: str
    device: str | None = None
    torch_type: str | None = None
    shape: str | None = None
    platform: str | None = None
    record: AdapterRecord | None = None
    considered: tuple[ConsideredAdapter, ...] = ()
    settings: Mapping[str, str | None] = field(default_factory=dict)
    tied: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        raw: dict[str, Any] = plain(replace(self, record=None))
        return raw | {"record": self.record.to_json() if self.record else None}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Selection:
        """Builds it; a raw object of another shape raises KeyError, TypeError or ValueError.

        The adapter's manifest is read again: ManifestError if that changed.
        """
        record = AdapterRecord.from_json(raw["record"]) if raw["record"] else None
        return replace(revived({**raw, "record": None}, cls), record=record)


AskForeign = Callable[[], Sequence[ForeignPlatform]]


def select(settings: Settings, ask_foreign: AskForeign = answering) -> Selection:
    """Probes the installed adapters (kept answers are used) and chooses.

    `ask_foreign` gives the platform plug-ins of other projects that answer on this machine: vLLM's
    own process asks them as vLLM does, any other one in a child.

    Raises:
        InputError: as `registry.probe`, or the snapshots of vLLM's hooks cannot be read.
    """
    from vllm_adapter.discovery import registry

    records = registry.scan(settings)
    host = registry.host_for(records)
    records = registry.probe(registry.located(records, host), host)
    vllm = find_vllm()
    chosen = choose(records, settings, vllm)
    if chosen.record is None or chosen.platform is None or vllm is None:
        return chosen
    family = _family(chosen.record) if chosen.shape == "native" else None
    fits = fit(vllm, family or "")
    return held_against(chosen, fits, ask_foreign())


def held_against(
    chosen: Selection, fits: VllmFit, foreign: Sequence[ForeignPlatform]
) -> Selection:
    """A choice, or the same without a platform where vLLM is better left as it is; pure.

    The generic shape goes on with a warning: without it such a device has nothing at all.
    """
    warnings = [fits.note] if fits.note else []
    if foreign:
        return replace(chosen, platform=None, reason=foreign[0].sentence)
    if fits.misfit and chosen.shape == "native":
        return replace(chosen, platform=None, reason=fits.misfit)
    if fits.misfit:
        warnings.append(fits.misfit)
    return replace(chosen, warnings=tuple(warnings))


def refusal(selection: Selection, settings: Settings) -> DeviceRefused | None:
    """What a start must end with that named adapters in VA_ADAPTERS of which none serves."""
    named = settings.adapters.order
    if not named or selection.platform is not None:
        return None
    ours = [one for one in selection.considered if one.name in named and one.why_not]
    why = "; ".join(f"{one.name}: {one.why_not}" for one in ours) or selection.reason
    return DeviceRefused(
        f"VA_ADAPTERS names {' and '.join(named)}, and vLLM would run without: {why}",
        hint="see `vllm-adapter doctor --vllm`; unset VA_ADAPTERS to start vLLM as it is",
    )


def selection_settings(settings: Settings, vllm: VllmInstall | None) -> dict[str, str | None]:
    """What a choice was made under: another value of any of these asks for another choice."""
    names = [*settings.adapters.order, *(f"-{name}" for name in sorted(settings.adapters.denied))]
    return {
        "VA_ADAPTERS": ",".join(names) or None,
        "VA_FALLBACK": settings.fallback.value,
        "VA_LIBRARY": str(settings.library) if settings.library else None,
        "VA_REQUIRE_DEVICE": settings.require_device,
        "VA_SHAPE": settings.shape,
        "VLLM_PLUGINS": os.environ.get("VLLM_PLUGINS"),
        "vllm": f"{vllm.version} ({vllm.build})" if vllm else None,
    }


def choose(
    records: Sequence[AdapterRecord], settings: Settings, vllm: VllmInstall | None
) -> Selection:
    """The choice among probed adapters; pure."""
    build = vllm.build if vllm else None
    why_not = {_key(record): _why_excluded(record, settings, build) for record in records}
    remaining = [record for record in records if not why_not[_key(record)]]
    won: AdapterRecord | None = None
    tied: tuple[str, ...] = ()
    reason = "no installed adapter can serve vLLM here"
    if remaining:
        won, reason, beaten, tied = _best(remaining, settings, build)
        why_not |= beaten
    elif settings.require_device:
        reason = f"VA_REQUIRE_DEVICE is {settings.require_device}, and no adapter here serves it"
    elif not records:
        reason = "no adapter is installed"
    shape, platform = _shape(won, settings, build) if won else (None, None)
    return Selection(
        adapter=won.name if won else None,
        reason=reason,
        device=won.devices[0].torch if won else None,
        torch_type=_torch_type(won) if won else None,
        shape=shape,
        platform=platform,
        record=won,
        considered=tuple(
            ConsideredAdapter(
                record.name,
                record.distribution,
                record.version,
                record.status_text,
                why_not[_key(record)],
                _torch_type(record),
                record.evidence,
            )
            for record in records
        ),
        settings=selection_settings(settings, vllm),
        tied=tied,
    )


_Key = tuple[str, str]


def _key(record: AdapterRecord) -> _Key:
    """Two distributions may have one name, and one distribution several adapters."""
    return record.name, record.distribution


def _torch_type(record: AdapterRecord) -> str | None:
    device = record.manifest and record.manifest.device
    return device.torch_type if device else None


def _family(record: AdapterRecord) -> str | None:
    """vLLM's word for the device. AMD's builds of torch call their devices cuda, too."""
    kind = _torch_type(record)
    amd = matches_build(record.manifest.match if record.manifest else (), "hip")
    return "rocm" if kind == "cuda" and amd else kind


def _shape(record: AdapterRecord, settings: Settings, build: str | None) -> tuple[str, str]:
    family = _family(record)
    name = _NATIVE.get(family or "")
    # vLLM's own CPU platform calls kernels that only a build for the CPU has.
    is_foreign_build = family == "cpu" and build not in (None, "cpu")
    if name is None or is_foreign_build or settings.shape == "generic":
        return "generic", f"{PLATFORMS}.{GENERIC}"
    return "native", f"{PLATFORMS}.{name}"


def _why_excluded(record: AdapterRecord, settings: Settings, build: str | None) -> str:
    """Why an adapter is no candidate; empty if it is one."""
    if record.status is not Status.OK:
        return record.reason or "it was not probed"
    if not record.devices:
        return "it has kernels only, and no device"
    kind, family, required = _torch_type(record), _family(record), settings.require_device
    if required and kind != required:
        return f"VA_REQUIRE_DEVICE is {required}, and its device is {kind or 'no torch device'}"
    if family in _NATIVE and family != "cpu" and build not in (None, family):
        return f"its device is {family}, and this vLLM is a build for {build}"
    named = record.name in settings.adapters.allowed
    if record.manifest is not None and record.manifest.emulated and not named:
        return f"its device is emulated, so that only VA_ADAPTERS={record.name} chooses it"
    allowed = build in (None, "cpu") or named or settings.fallback is Fallback.ALLOW
    if family == "cpu" and not allowed:
        return (
            f"it serves the CPU, and this vLLM is a build for {build}; VA_ADAPTERS={record.name} "
            "or VA_FALLBACK=allow would choose it"
        )
    return ""


def _best(
    left: Sequence[AdapterRecord], settings: Settings, build: str | None
) -> tuple[AdapterRecord | None, str, dict[_Key, str], tuple[str, ...]]:
    """The winner, the reason, why each other was not chosen, and who is equally good as the best.

    The winner is None where that is anybody.
    """
    if len(left) == 1:
        return left[0], _alone(left[0], settings, build), {}, ()
    order = settings.adapters.order
    keys = {
        r.name: (_family(r) != "cpu", not stands_in(r, order), _weight(r), -_place(r.name, order))
        for r in left
    }
    first, second = sorted(left, key=lambda r: keys[r.name], reverse=True)[:2]
    if keys[first.name] == keys[second.name]:
        equal = [r.name for r in left if keys[r.name] == keys[first.name]]
        tie = f"{' and '.join(equal)} are equally good"
        ways = " or ".join(f"`export VA_ADAPTERS={name}`" for name in equal)
        reason = f"{tie}, and no setting names one; decide with {ways}"
        return None, reason, {_key(r): tie for r in left}, tuple(equal)
    words = (
        "it is an accelerator",
        "the other stands in for a chip that it was not tested on",
        "there is more evidence for it",
        "VA_ADAPTERS names it first",
    )

    def over(other: AdapterRecord) -> str:
        pairs = zip(words, keys[first.name], keys[other.name], strict=True)
        return next(word for word, ours, theirs in pairs if ours != theirs)

    beaten = {_key(r): f"{first.name} was chosen: {over(r)}" for r in left if r is not first}
    return first, f"{first.name} was chosen before {second.name}: {over(second)}", beaten, ()


def _alone(record: AdapterRecord, settings: Settings, build: str | None) -> str:
    reason = f"{record.name} is the only adapter that can serve vLLM here"
    if _family(record) == "cpu" and build not in (None, "cpu"):
        named = record.name in settings.adapters.allowed
        by = "VA_ADAPTERS" if named else "VA_FALLBACK=allow"
        return f"{reason}, by {by}; in the generic shape, since this vLLM is a build for {build}"
    return reason


def stands_in(record: AdapterRecord, named: Sequence[str] = ()) -> bool:
    """Whether an adapter was never on its hardware, and matched nothing but the machine.

    One in `named` is wanted as it is.
    """
    manifest = record.manifest
    if manifest is None or manifest.tested_on or record.name in named:
        return False
    by_machine = all(_ANY_MACHINE.issuperset(entry) for entry in manifest.match)
    return by_machine or _torch_type(record) == "cpu"


def _weight(record: AdapterRecord) -> int:
    """How much speaks for a device: the distinct things seen, without what its SDK printed."""
    kind = _torch_type(record)
    return len({line for line in record.evidence if _is_evidence_of_type(line, kind)})


def _is_evidence_of_type(line: str, kind: str | None) -> bool:
    """Whether a line of evidence can be of a device of that torch type, which answers."""
    pci = _PCI_LINE.match(line)
    if pci is None:
        return not line.startswith("stderr: ")
    row = BY_PCI.get(pci[1])
    if row is not None and row.torch_type is not None:
        return row.torch_type == kind
    return kind != "cpu" and all(kind != row.torch_type for row in BY_PCI.values())


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)
