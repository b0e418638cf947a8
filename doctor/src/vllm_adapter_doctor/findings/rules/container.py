"""Device nodes that are not there, or may not be opened."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter_doctor.devices.node_rules import (
    ABSENT,
    SHUT,
    node_verdicts,
    numbered_nodes,
    shut_nodes,
)
from vllm_adapter_doctor.findings.host import MAX_EVIDENCE, ExaminedHost
from vllm_adapter_doctor.findings.rule import Data, RuleHit


def nodes(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """What the nodes' verdicts say of a vendor's devices: of all, or that some may not be opened.

    A container that was given some of a box's devices is none that lacks the others. Of a text,
    the rules of its words say it.
    """
    if box.facts.report:
        return
    for vendor in dict.fromkeys(one.vendor for one in box.devices if not one.integrated):
        own = [one for one in box.devices if one.vendor == vendor and not one.integrated]
        said = [
            next((v for v in node_verdicts(one, own, box.facts, live=box.live) if v.stops), None)
            for one in own
        ]
        shut = [one for one in said if one is not None and one.code == SHUT]
        if said[0] is not None and all(one and one.code == ABSENT for one in said):
            yield RuleHit(said[0].evidence, {"vendor": own[0].vendor_name})
        elif shut:
            evidence = dict.fromkeys(seen for one in shut for seen in one.evidence)
            case = "shut" if len(shut) == len(own) else "some shut"
            yield RuleHit([*evidence][:MAX_EVIDENCE], {"node": shut[0].got or ""}, case)
    yield from _without_device(box)


def _without_device(box: ExaminedHost) -> Iterator[RuleHit]:
    """Nodes that no device of the list is behind, and that this user may not open."""
    known = {one.vendor for one in box.devices}
    for name, row in VENDORS.items():
        own = [
            node for node in box.facts.nodes if node.path in row.control and node.kind == "char"
        ]
        shut = shut_nodes([*own, *numbered_nodes(row, box.facts.nodes)])
        if name not in known and shut:
            evidence = [Evidence(f"{one.path} may not be opened", "/dev") for one in shut]
            yield RuleHit(evidence[:MAX_EVIDENCE], {"node": shut[0].path}, "shut")
            return
