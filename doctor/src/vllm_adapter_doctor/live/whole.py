"""Completes the quick facts of a machine with what further files and the vendors' tools say."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS, is_integrated, vendor_of
from vllm_adapter.hostfacts.live import collect
from vllm_adapter.hostfacts.vendor_files import sections
from vllm_adapter_doctor.live.devices import read_devices, with_pci
from vllm_adapter_doctor.live.drivers import read_drivers
from vllm_adapter_doctor.live.kfd import read_kfd
from vllm_adapter_doctor.live.numa import read_numa, read_offline
from vllm_adapter_doctor.live.os_facts import describe_os
from vllm_adapter_doctor.live.packages import read_environment, read_packages, read_vllm
from vllm_adapter_doctor.live.tools import ask_tools
from vllm_adapter_doctor.report.merge import join_accelerators, merge

TIMEOUT_S: Final = 5.0
"""What each tool has before it is ended; all run at once, so that together they have no more."""


def collect_all(
    root: Path = Path("/"),
    *,
    timeout_s: float = TIMEOUT_S,
    node_globs: Sequence[str] = (),
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> HostFacts:
    """Everything that this machine says of itself, its vendors' tools included; never raises.

    As `hostfacts.live.collect`; the tools are those of this process's PATH. They run side by side,
    each in a child process that is ended after `timeout_s` seconds. Files are believed over tools.
    `on_progress` is called at each tool's end with how many have ended, and of how many.
    """
    return complete(
        collect(root, node_globs=node_globs),
        Tree(root),
        timeout_s=timeout_s,
        on_progress=on_progress,
    )


def complete(
    quick: HostFacts,
    tree: Tree,
    *,
    timeout_s: float,
    on_progress: Callable[[int, int], None],
    environ: Mapping[str, str] = os.environ,
) -> HostFacts:
    """`quick`, as `live.collect` gave it for the same root, with all that can be added."""
    drivers = read_drivers(tree, quick.modules, environ)
    kfd, matrices = read_kfd(tree)
    devices = read_devices(tree, kfd, quick.pci)
    packages, plugins = read_packages()
    vllm = read_vllm(plugins)
    if vllm is not None:
        tree.missing("vllm.platform", "vLLM's own choice: vllm-adapter doctor --vllm")
    if quick.torch is not None:
        tree.missing("torch.archs", "torch.cuda.get_arch_list() of a process that imports torch")
    files = replace(
        quick,
        os=describe_os(tree, quick.os, quick.cpu.flags, environ),
        cpu=replace(quick.cpu, offline=read_offline(tree)),
        numa=read_numa(tree),
        drivers=drivers,
        links=matrices,
        vllm=vllm,
        packages=packages,
        environment=read_environment(environ),
    )
    seen = _seen(files, devices)
    tools = ask_tools(tree, seen, environ, timeout_s=timeout_s, on_progress=on_progress)
    accelerators = join_accelerators(tools.accelerators, devices)
    whole = merge((files, replace(tools, accelerators=())))
    return replace(
        whole,
        accelerators=with_pci(tree, accelerators, quick.pci),
        unknown=tuple(dict.fromkeys((*whole.unknown, *tree.unknown))),
    )


def _seen(facts: HostFacts, devices: Iterable[Accelerator]) -> set[str]:
    """The vendors whose device or driver is here."""
    found = {device.vendor for device in devices}
    on_bus = [vendor_of(device) for device in facts.pci if not is_integrated(device)]
    found |= {row.adapter for row in on_bus if row is not None}
    components = {one.component for one in facts.drivers}
    found |= {name for name, row in VENDORS.items() if components & set(row.drivers)}
    for vendor, patterns in sections("nodes", "proof"):
        for pattern in patterns:
            if any(fnmatch.fnmatchcase(node.path, pattern) for node in facts.nodes):
                found.add(vendor)
    return found
