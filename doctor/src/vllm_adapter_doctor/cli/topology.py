"""`vllm-adapter topology`: how the devices of a machine are joined, and vLLM's NUMA flags."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from vllm_adapter.cli.output import clean, colour, emit_json, table
from vllm_adapter_doctor.cli.report_option import add_report, host_facts

if TYPE_CHECKING:
    from vllm_adapter_doctor.topology.numa_map import NumaMap
    from vllm_adapter_doctor.topology.types import Nic, Topology

HELP: Final = "show links between devices, their NUMA nodes, and the NUMA flags for vLLM"
EXAMPLE: Final = """\
example:
  vllm-adapter topology                          this machine
  vllm-adapter topology --report box.txt         what `nvidia-smi topo -m` and others printed there
  vllm-adapter topology --report - --svg box.svg < box.txt

exit code: 0; 1 if a link is degraded, asymmetric or missing, or no device is seen; 2 for bad input
"""
_LEVELS: Final = {
    "switch": "behind one PCIe switch",
    "bridge": "behind several PCIe switches",
    "host": "at one host bridge",
    "node": "at one NUMA node's bridges",
    "cpus": "with the same CPUs",
    "unknown": "NUMA node not known",
}
_CPUS_SHOWN: Final = 40
_PROBLEMS_SHOWN: Final = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_report(parser)
    parser.add_argument("--svg", metavar="FILE", help="also write a drawing")


def run(args: argparse.Namespace) -> int:
    """Prints the topology; 0, or 1 if a link is not as its siblings are."""
    from vllm_adapter_doctor.topology.read import build

    topology = build(host_facts(args))
    if not topology.devices:
        return _nothing(args)
    if args.svg is not None:
        from pathlib import Path

        from vllm_adapter.files import write_atomic
        from vllm_adapter_doctor.cli.drawing import draw

        write_atomic(Path(args.svg), draw(topology))
    if args.json:
        emit_json(topology.to_json())
    else:
        _print(topology)
    return 1 if topology.problems else 0


def _nothing(args: argparse.Namespace) -> int:
    """Says that there is no device; 1, as `devices` does."""
    from vllm_adapter_doctor.topology.types import Topology

    where = "this machine" if args.report is None else "the report"
    if args.json:
        emit_json(Topology().to_json())
        return 1
    print(f"no accelerator is seen in {where}")
    if args.report is None:
        print("next: `vllm-adapter list` says what was looked for; another machine: --report FILE")
    else:
        print(
            "next: add what the vendor's tool prints of links, such as `nvidia-smi topo -m`, "
            "`rocm-smi --showtopo` or `npu-smi info -t topo`"
        )
    return 1


def _print(topology: Topology) -> None:
    labels = [device.label for device in topology.devices]
    documents = topology.to_json()["devices"]
    counts = [len(device.cpus) for device in topology.devices]
    rows = [
        (
            device["label"],
            device["name"] or device["vendor"],
            device["bdf"],
            device["numa_node"],
            _short(device["cpus"], count) or None,
        )
        for device, count in zip(documents, counts, strict=True)
    ]
    print(table(rows, ("DEVICE", "NAME", "PCI", "NUMA", "CPUS")), end="")
    if any(pair.link.kind.word != "unknown" for pair in topology.pairs):
        print()
        print(table(_matrix(topology, labels), ("", *labels)), end="")
    _section("link domains", [domain.sentence for domain in topology.domains])
    _section("groups", _groups(topology))
    _section("network cards", _cards(topology.nics))
    if topology.problems:
        print()
    for one in topology.problems[:_PROBLEMS_SHOWN]:
        print(f"{colour(one.kind, 'red')}: {clean(one.sentence)}")
    if len(topology.problems) > _PROBLEMS_SHOWN:
        print(f"and {len(topology.problems) - _PROBLEMS_SHOWN} more; --json has them all")
    _section("notes", topology.notes)
    _section("advice", topology.advice)
    for numa in topology.maps:
        _numa(numa, several=len(topology.maps) > 1)


def _short(cpus: str, count: int) -> str:
    return cpus if len(cpus) <= _CPUS_SHOWN else f"{count} CPUs, {cpus[:8]}..."


def _matrix(topology: Topology, labels: list[str]) -> list[list[str]]:
    cells = {(label, label): "-" for label in labels}
    for pair in topology.pairs:
        shown = pair.link.shown + ("!" if pair.reverse else "")
        cells[pair.first, pair.second] = cells[pair.second, pair.first] = shown
    return [[first, *(cells[first, second] for second in labels)] for first in labels]


def _section(title: str, lines: tuple[str, ...] | list[str]) -> None:
    if lines:
        print(f"\n{colour(title, 'bold')}")
        for line in lines:
            print(f"  {clean(line)}")


def _groups(topology: Topology) -> list[str]:
    from vllm_adapter_doctor.topology.groups import short_groups

    found: dict[str, list[tuple[str, ...]]] = {}
    for island in topology.islands:
        words = f"NUMA node {island.node}" if island.by == "numa" else _LEVELS[island.by]
        found.setdefault(words, []).append(island.devices)
    return [f"{words}: {short_groups(groups)}" for words, groups in found.items()]


def _cards(nics: tuple[Nic, ...]) -> list[str]:
    """Cards with the same neighbours in one line: there can be a hundred."""
    from vllm_adapter_doctor.topology.numa_map import span

    found: dict[str, list[str]] = {}
    for nic in nics:
        place = f"{nic.by} to {span(nic.nearest)}" if nic.nearest else "near no device"
        found.setdefault(place, []).append(nic.label)
    return [f"{span(labels)}: {place}" for place, labels in found.items()]


def _numa(numa: NumaMap, *, several: bool) -> None:
    title = f"NUMA flags ({numa.vendor})" if several else "NUMA flags"
    print(f"\n{colour(title, 'bold')}\n  {clean(numa.sentence)}")
    if numa.flags:
        print(f"  {' '.join(numa.flags)}")
