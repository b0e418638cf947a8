"""NUMA nodes and CPUs that are there but switched off, from /sys/devices/system."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts._tree import Tree, parse_cpulist, parse_integer
from vllm_adapter.hostfacts.facts import NumaNode

_NODES: Final = "/sys/devices/system/node"
_CPUS: Final = "/sys/devices/system/cpu"
_NODE: Final = re.compile(r"node([0-9]{1,5})")
_TOTAL: Final = re.compile(r"MemTotal:\s*([0-9]{1,18}) kB")


def read_numa(tree: Tree) -> tuple[NumaNode, ...]:
    """The machine's nodes by id. A kernel that names none gives none, and that is unknown."""
    found = [_NODE.fullmatch(name) for name in tree.names(_NODES) or ()]
    ids = sorted(int(match[1]) for match in found if match)
    if not ids:
        tree.missing("numa", f"{_NODES}/node*")
    return tuple(_node(tree, number) for number in ids)


def _node(tree: Tree, number: int) -> NumaNode:
    folder = f"{_NODES}/node{number}"
    cpus = parse_cpulist(tree.text(f"{folder}/cpulist"))
    if cpus is None:
        tree.missing(f"numa.{number}.cpus", f"{folder}/cpulist")
    total = _TOTAL.search(tree.text(f"{folder}/meminfo") or "")
    if total is None:
        tree.missing(f"numa.{number}.memory_bytes", f"{folder}/meminfo: MemTotal")
    distances = [parse_integer(word) for word in (tree.text(f"{folder}/distance") or "").split()]
    whole = tuple(number for number in distances if number is not None)
    if not whole or len(whole) != len(distances):
        tree.missing(f"numa.{number}.distances", f"{folder}/distance")
        whole = ()
    return NumaNode(number, cpus or (), int(total[1]) * 1024 if total else None, whole)


def read_offline(tree: Tree) -> tuple[int, ...]:
    """CPUs that are present and not online.

    The kernel's own list `offline` also counts sockets that are empty: what is possible there.
    """
    present = parse_cpulist(tree.text(f"{_CPUS}/present"))
    online = parse_cpulist(tree.text(f"{_CPUS}/online"))
    if not present or not online:
        missing = "present" if not present else "online"
        tree.missing("cpu.offline", f"{_CPUS}/{missing}")
        return ()
    return tuple(sorted(set(present) - set(online)))
