"""What each chosen device allows: its driver, its torch build, dtypes that are wanted, advice.

From the descriptors of installed adapters. A device whose adapter is not installed, or that no
descriptor is for, has no terms: nothing is known of it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter.planning.dtypes import BITS
from vllm_adapter_doctor.devices.driver_rules import negotiate
from vllm_adapter_doctor.devices.manager import DeviceCandidate, DeviceManager
from vllm_adapter_doctor.devices.verdict import (
    DeviceVerdict,
    Outcome,
    bytes_after,
    consequence,
)

_TERMS: Final = frozenset({"driver", "ptx", "build"})
"""Subjects of what a driver and a build allow."""


@dataclass(frozen=True, slots=True)
class DeviceDecisions:
    """Decisions for one device, without those that say nothing; `cost` is a downgrade's, in words.

    `decisions` pairs each decision with its cost; `arch` names the descriptor.
    """

    device: str
    arch: str
    decisions: tuple[tuple[DeviceVerdict, str], ...]
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
                    "code": one.code or None,
                    "bytes_after": _after(one, sizes),
                }
                for one, _ in self.decisions
            ],
            "advice": list(self.advice),
        }


def decisions_of_devices(
    manager: DeviceManager,
    chosen: Sequence[DeviceCandidate],
    wanted: Iterable[str] = (),
    *,
    weight_bytes: int = 0,
    kv_bytes: int = 0,
) -> tuple[DeviceDecisions, ...]:
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
    found: dict[str, DeviceDecisions] = {}
    asked = {one.device.id: one for one in chosen}
    for one in manager.recognised():
        if one.capability is None or one.device.id not in asked:
            continue
        said = [*asked[one.device.id].verdicts, *negotiate(one.capability, manager.facts, wanted)]
        known = {each.message: each for each in said if each.subject in _TERMS or each.to}
        found[one.device.id] = DeviceDecisions(
            one.device.id,
            one.capability.identity.arch,
            tuple(
                (each, consequence(each, weight_bytes=weight_bytes, kv_bytes=kv_bytes))
                for each in known.values()
                if each.outcome not in (Outcome.OK, Outcome.UNKNOWN)
            ),
            one.capability.advice,
        )
    return tuple(found[c.device.id] for c in chosen if c.device.id in found)


def _after(decision: DeviceVerdict, sizes: Mapping[str, int]) -> dict[str, int] | None:
    feature, to = decision.feature, decision.to
    if feature is None or to is None:
        return None
    return {name: bytes_after(size, feature, to) for name, size in sizes.items()}
