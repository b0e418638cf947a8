"""Device nodes that are not there, or may not be opened: on this machine alone."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from vllm_adapter.doctor.box import Box
from vllm_adapter.doctor.finding import Evidence
from vllm_adapter.doctor.rule import Data, Hit
from vllm_adapter.known_vendors import adapters_for


def absent_nodes(box: Box, data: Data) -> Iterator[Hit]:
    """A device that the PCI bus shows, and whose node is not there.

    `data` has the nodes that a vendor's stack opens, each with other names that it had.
    """
    if not box.live:
        return
    for adapter, (vendor, device) in adapters_for(box.facts.pci).items():
        missing = [
            names[0]
            for names in data["nodes"].get(adapter, ())
            if not any(fnmatchcase(node.path, name) for node in box.facts.nodes for name in names)
        ]
        if missing:
            yield Hit(
                [Evidence(str(device), "PCI"), Evidence(f"no {', no '.join(missing)}", "/dev")],
                {"vendor": vendor},
            )


def closed_nodes(box: Box, data: Data) -> Iterator[Hit]:
    """A compute node that is there and may not be opened; display nodes do not count."""
    patterns = {names[0] for group in data["nodes"].values() for names in group}
    closed = [
        node
        for node in box.facts.nodes
        if node.kind == "char"
        and any(fnmatchcase(node.path, pattern) for pattern in patterns)
        and not (node.readable and node.writable)
    ]
    if closed and box.live:
        yield Hit([Evidence(f"{node.path} may not be opened", "/dev") for node in closed[:5]])
