"""Findings that keep devices from being used, as verdicts, and verdicts as findings.

Rules over facts are the devices' own, and the doctor reads them there. What a program said, the
doctor alone has read; a code's page says whose devices such an error stops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vllm_adapter.contract.codes import CODES
from vllm_adapter.contract.finding import Evidence, Finding, Severity
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.settings import Settings
from vllm_adapter_doctor.devices.box_device import Device, Inventory
from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.devices.manager import DeviceManager
from vllm_adapter_doctor.devices.verdict import DeviceVerdict, Outcome
from vllm_adapter_doctor.findings.diagnose import diagnose
from vllm_adapter_doctor.findings.host import ExaminedHost

_OF_DEVICES: Final = frozenset({"driver", "build", "MIG", "health"})
_SUBJECTS: Final = {"VA11": "driver", "VA12": "build", "VA14": "container", "VA17": "health"}


def device_manager(
    facts: HostFacts,
    settings: Settings,
    records: Sequence[AdapterRecord] = (),
    live: bool = False,
) -> DeviceManager:
    """The manager of a box's devices, with what the doctor says of them."""
    said = stops(diagnose(ExaminedHost(facts, live=live)), inventory(facts))
    return DeviceManager(facts, settings, records, live, said=said)


def stops(findings: Iterable[Finding], box: Inventory) -> Mapping[str, Sequence[DeviceVerdict]]:
    """By the ids of the devices: what the doctor's errors on them are as verdicts."""
    found: dict[str, list[DeviceVerdict]] = {}
    for one in findings:
        if one.severity is Severity.ERROR:
            for device in _affected_devices(one, box.devices):
                found.setdefault(device.id, []).append(_verdict(one))
    return found


def stops_without_finding(
    manager: DeviceManager, findings: Iterable[Finding]
) -> tuple[Finding, ...]:
    """What stops a device and no rule of the doctor has said: descriptors, MIG without instances.

    A device that is used only by name, as a display's, is nobody's fault.
    """
    known = {one.code for one in findings}
    found: dict[tuple[str, str], Finding] = {}
    for one in manager.candidates():
        if any(verdict.outcome is Outcome.BY_NAME for verdict in one.verdicts):
            continue
        for verdict in one.refusals:
            if verdict.subject in _OF_DEVICES and verdict.code not in {"", *known}:
                device = one.device
                source = device.reported.source if device.reported else "host facts"
                evidence = verdict.evidence or (Evidence(f"{device.id}: {device.title}", source),)
                found.setdefault(
                    (verdict.code, verdict.reason),
                    Finding(
                        verdict.code,
                        Severity.ERROR,
                        evidence,
                        f"{device.title}: {verdict.reason}",
                        verdict.next_step,
                    ),
                )
    return tuple(found.values())


def _verdict(one: Finding) -> DeviceVerdict:
    subject = _SUBJECTS.get(one.code[:4], "report")
    return DeviceVerdict(
        Outcome.REFUSE, subject, one.code, one.cause, next_step=one.action, evidence=one.evidence
    )


def _affected_devices(one: Finding, devices: Sequence[Device]) -> Sequence[Device]:
    """The devices that a finding stops."""
    own = [device for device in devices if not device.integrated]
    for word in CODES[one.code].stops:
        if word == "device":
            named = [device for device in devices if _is_named(device, one)]
            return named or (own if len(own) == 1 else ())
        if word == "product":
            named = [device for device in own if _of_product(device, one)]
            return named or (own if len({each.title for each in own}) == 1 else ())
        if word == "*":
            return own if len({each.vendor for each in own}) == 1 else ()
        if found := [device for device in own if device.vendor == word]:
            return found
    return ()


def _words(one: Finding) -> str:
    return "\n".join((one.cause, *(f"{each.text} {each.source}" for each in one.evidence)))


def _is_named(device: Device, one: Finding) -> bool:
    said = _words(one).lower()
    if device.bdf and device.bdf.rpartition(".")[0].lower() in said:
        return True
    number = device.reported.index if device.reported else device.index
    return f"{device.vendor} device {number}," in f"{one.cause},".replace(":", ",")


def _of_product(device: Device, one: Finding) -> bool:
    return bool(device.name and re.search(rf"{re.escape(device.name)}(?!\w)", _words(one)))
