"""What each chosen device allows: its driver, its torch build, dtypes that are wanted, advice.

From the descriptors of installed adapters. A device whose adapter is not installed, or that no
descriptor is for, has no terms: nothing is known of it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_adapter.errors import InputError, VllmAdapterError
from vllm_adapter_doctor.devices.driver_decision import (
    BITS,
    DriverDecision,
    Outcome,
    bytes_after,
    consequence,
)
from vllm_adapter_doctor.devices.driver_rules import negotiate
from vllm_adapter_doctor.devices.manager import Candidate, DeviceManager
from vllm_adapter_doctor.devices.recognition import recognise


@dataclass(frozen=True, slots=True)
class Terms:
    """Decisions for one device, without those that say nothing; `cost` is a downgrade's, in words.

    `decisions` pairs each decision with its cost; `arch` names the descriptor.
    """

    device: str
    arch: str
    decisions: tuple[tuple[DriverDecision, str], ...]
    advice: tuple[str, ...]

    def to_json(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """A JSON object; `sizes`: bytes of "weights" and "kv" that a downgrade changes."""
        return {
            "device": self.device,
            "arch": self.arch,
            "decisions": [
                {
                    "outcome": one.outcome.value,
                    "subject": one.subject,
                    "message": one.message,
                    "got": one.got,
                    "need": one.need,
                    "feature": one.feature,
                    "to": one.to,
                    "pointer": one.pointer,
                    "bytes_after": _after(one, sizes),
                }
                for one, _ in self.decisions
            ],
            "advice": list(self.advice),
        }


def terms(
    manager: DeviceManager,
    chosen: Sequence[Candidate],
    wanted: Iterable[str] = (),
    *,
    weight_bytes: int = 0,
    kv_bytes: int = 0,
) -> tuple[Terms, ...]:
    """The terms of each chosen device, in order.

    Raises:
        InputError: a wanted dtype that is none.
    """
    wanted = tuple(wanted)
    for dtype in wanted:
        if dtype not in BITS:
            raise InputError(
                f"there is no dtype {dtype!r}", hint=f"the dtypes are: {', '.join(BITS)}"
            )
    manifests = {r.name: r.manifest for r in manager.records if r.manifest is not None}
    found: dict[str, Terms] = {}
    for vendor in dict.fromkeys(one.device.vendor for one in chosen):
        manifest = manifests.get(vendor)
        if manifest is None:
            continue
        try:
            known = recognise(manifest, manager.facts, box=manager.inventory)
        except VllmAdapterError:  # broken descriptors: `validate` and `list` say so
            continue
        for one in known:
            if one.capability is None:
                continue
            decisions = tuple(
                (decision, consequence(decision, weight_bytes=weight_bytes, kv_bytes=kv_bytes))
                for decision in negotiate(one.capability, manager.facts, wanted)
                if decision.outcome not in (Outcome.OK, Outcome.UNKNOWN)
            )
            found[one.device.id] = Terms(
                one.device.id, one.capability.identity.arch, decisions, one.capability.advice
            )
    return tuple(found[c.device.id] for c in chosen if c.device.id in found)


def _after(decision: DriverDecision, sizes: Mapping[str, int]) -> dict[str, int] | None:
    feature, to = decision.feature, decision.to
    if feature is None or to is None:
        return None
    return {name: bytes_after(size, feature, to) for name, size in sizes.items()}
