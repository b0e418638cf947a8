"""Roles: which devices serve what, one process and one environment each.

`main=cuda:0 light=xpu:0` puts the main model on one device and light work on another, of two
vendors that could not share a process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter_doctor.devices.manager import DeviceCandidate, DeviceManager, torch_type_of
from vllm_adapter_doctor.devices.verdict import Outcome
from vllm_adapter_doctor.devices.visible import Environment, environment_for

SYNTAX: Final = "write NAME=ADAPTER:N[,N...] or NAME=cpu, such as --role main=cuda:0,1"
_FORM: Final = re.compile(r"([A-Za-z][\w-]*)=(?:(cpu)(?::0)?|([a-z][a-z0-9_]*):(\d+(?:,\d+)*))")


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """One `--role`: the adapter's name (or torch's type) and the numbers of its devices.

    The CPU is adapter "cpu" without numbers.
    """

    name: str
    adapter: str
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """Devices of one vendor for one process, and what that process needs in its environment."""

    name: str
    adapter: str
    candidates: tuple[DeviceCandidate, ...]
    environment: Environment

    @property
    def faults(self) -> tuple[str, ...]:
        """Why a device of this role cannot be used even though it was asked for."""
        return tuple(
            f"{one.device.id}: {verdict.reason}"
            for one in self.candidates
            for verdict in one.verdicts
            if verdict.outcome is Outcome.REFUSE
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "role": self.name,
            "adapter": self.adapter,
            "devices": [one.device.id for one in self.candidates] or ["cpu"],
            "environment": dict(self.environment.variables),
            "unset": list(self.environment.unset),
            "notes": list(self.environment.notes),
            "faults": list(self.faults),
        }


def parse_role(text: str) -> RoleRequest:
    """One `NAME=ADAPTER:N,...`.

    Raises:
        InputError: another form, or a number twice.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise InputError(f"the role {text!r} cannot be read", hint=SYNTAX)
    name, cpu, adapter, numbers = found.groups()
    if cpu:
        return RoleRequest(name, "cpu")
    indices = tuple(int(number) for number in numbers.split(","))
    if len(set(indices)) != len(indices):
        raise InputError(f"the role {text!r} names a device twice", hint=SYNTAX)
    return RoleRequest(name, adapter, indices)


def assign(manager: DeviceManager, requests: Sequence[RoleRequest]) -> tuple[Role, ...]:
    """The devices and environments of the roles, in their order.

    Raises:
        InputError: an unknown device, a role twice, a device in two roles.
    """
    candidates = manager.candidates()
    taken: dict[str, str] = {}
    roles: list[Role] = []
    for request in requests:
        if any(role.name == request.name for role in roles):
            raise InputError(
                f"the role {request.name} is given twice", hint="name several devices in one role"
            )
        role = _role(request, candidates, manager)
        for device in [one.device.id for one in role.candidates] or ["cpu"]:
            if device in taken:
                raise InputError(
                    f"{device} is in two roles, {taken[device]} and {request.name}",
                    hint="give each role devices of its own",
                )
            taken[device] = request.name
        roles.append(role)
    return tuple(roles)


def _role(
    request: RoleRequest, candidates: Sequence[DeviceCandidate], manager: DeviceManager
) -> Role:
    adapters = ("VA_ADAPTERS", request.adapter)
    if request.adapter == "cpu":
        return Role(request.name, "cpu", (), Environment((adapters,)))
    vendor = _vendor(request.adapter, candidates)
    here = {one.device.index: one for one in candidates if one.device.vendor == vendor}
    unknown = [index for index in request.indices if index not in here]
    if unknown:
        known = ", ".join(one.device.id for one in candidates) or "none"
        raise InputError(
            f"the role {request.name} names {request.adapter}:{unknown[0]}, which is not "
            "among the devices",
            hint=f"the devices are: {known}",
        )
    chosen = tuple(here[index] for index in request.indices)
    found = environment_for([one.device for one in chosen], manager.inventory.of(vendor))
    variables = (("VA_ADAPTERS", vendor), *found.variables)
    return Role(request.name, vendor, chosen, Environment(variables, found.unset, found.notes))


def _vendor(word: str, candidates: Sequence[DeviceCandidate]) -> str:
    """The adapter's name; torch's own word for a device is taken where it fits one vendor here."""
    vendors = dict.fromkeys(one.device.vendor for one in candidates)
    if word in vendors:
        return word
    by_torch = [vendor for vendor in vendors if torch_type_of(vendor) == word]
    return by_torch[0] if len(by_torch) == 1 else word
