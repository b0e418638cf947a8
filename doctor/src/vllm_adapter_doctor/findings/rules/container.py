"""Device nodes that are not there, or may not be opened: on this machine alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from vllm_adapter.hostfacts.known_vendors import adapters_for
from vllm_adapter_doctor.findings.finding import Evidence
from vllm_adapter_doctor.findings.host import MAX_EVIDENCE, ExaminedHost
from vllm_adapter_doctor.findings.rule import Data, RuleHit

Nodes: TypeAlias = Mapping[str, Sequence[Sequence[str]]]


def nodes(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A device that the PCI bus shows without its node, and a node that may not be opened.

    `data` has the nodes that a vendor's stack opens, each with other names that it had. Nodes of
    displays do not count.
    """
    if box.live:
        yield from _absent(box, data["nodes"])
        yield from _closed(box, data["nodes"])


def _absent(box: ExaminedHost, known: Nodes) -> Iterator[RuleHit]:
    for adapter, (vendor, device) in adapters_for(box.facts.pci).items():
        missing = [
            names[0]
            for names in known.get(adapter, ())
            if not any(fnmatchcase(node.path, name) for node in box.facts.nodes for name in names)
        ]
        if missing:
            yield RuleHit(
                [Evidence(str(device), "PCI"), Evidence(f"no {', no '.join(missing)}", "/dev")],
                {"vendor": vendor},
            )


def _closed(box: ExaminedHost, known: Nodes) -> Iterator[RuleHit]:
    patterns = {names[0] for group in known.values() for names in group}
    closed = [
        node.path
        for node in box.facts.nodes
        if node.kind == "char"
        and any(fnmatchcase(node.path, pattern) for pattern in patterns)
        and not (node.readable and node.writable)
    ]
    if closed:
        evidence = [Evidence(f"{path} may not be opened", "/dev") for path in closed]
        yield RuleHit(evidence[:MAX_EVIDENCE], {"node": closed[0]})
