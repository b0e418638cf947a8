"""Collects the facts of the machine we run on: without root, and without writing anything.

`collect` takes a few milliseconds and starts no child process: everything comes from sysfs,
procfs and /dev. Where those are not there (another system, a locked-down container) the facts say
less, and `HostFacts.unknown` says what is missing. The doctor reads further files and asks the
vendors' tools.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vllm_adapter.hostfacts._cgroup import read_cgroup
from vllm_adapter.hostfacts._tree import Tree, key_values, parse_cpulist, parse_integer
from vllm_adapter.hostfacts.facts import (
    CpuFacts,
    CpuSet,
    DeviceNode,
    HostFacts,
    MemoryFacts,
    OsFacts,
    PciDevice,
    TorchBuild,
)
from vllm_adapter.hostfacts.known_vendors import node_globs as vendor_globs
from vllm_adapter.hostfacts.torch_build import installed_torch_build

_RENDER: Final = "/dev/dri/renderD*"
"""The kernel's own nodes, which several vendors' devices have."""

_PCI: Final = "/sys/bus/pci/devices"
_CPU: Final = "/sys/devices/system/cpu"
_BDF: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HEX: Final = re.compile(r"0x[0-9a-f]{4,6}")
_CPUINFO_BYTES: Final = 1 << 14
"""One processor's block. The whole file is slow to read: the kernel asks each core its clock."""


def collect(root: Path = Path("/"), *, node_globs: Sequence[str] = ()) -> HostFacts:
    """The facts of the machine whose files lie under `root`; never raises for an odd file.

    `os`, `python` and `torch` are those of the running process, whatever the root.
    `node_globs` adds device nodes to look for, such as the `device_node` of manifests.
    """
    tree = Tree(root)
    status = key_values(tree.text("/proc/self/status"))
    return HostFacts(
        os=_os(),
        pci=_pci(tree),
        nodes=_nodes(tree, [_RENDER, *vendor_globs(), *node_globs]),
        modules=_modules(tree),
        cpuset=CpuSet(
            _allowed(tree, "cpuset.cpus", status, "Cpus_allowed_list"),
            _allowed(tree, "cpuset.memory_nodes", status, "Mems_allowed_list"),
        ),
        cgroup=read_cgroup(tree),
        cpu=_cpu(tree),
        memory=_memory(tree),
        python=sys.version.split()[0],
        torch=_torch(tree),
        unknown=tuple(tree.unknown),
    )


def _os() -> OsFacts:
    if hasattr(os, "uname"):
        name = os.uname()
        return OsFacts(name.sysname, name.release, name.machine)
    import platform  # Windows only: elsewhere os.uname says the same without the import

    return OsFacts(platform.system(), platform.release(), platform.machine())


def _pci(tree: Tree) -> tuple[PciDevice, ...]:
    names = tree.names(_PCI)
    if names is None:
        tree.missing("pci", _PCI)
        return ()
    devices = []
    for bdf in filter(_BDF.fullmatch, names):
        folder = f"{_PCI}/{bdf}"
        vendor = _hexadecimal(tree, f"{folder}/vendor", 4)
        device = _hexadecimal(tree, f"{folder}/device", 4)
        code = _hexadecimal(tree, f"{folder}/class", 6)
        if vendor is None or device is None or code is None:
            tree.missing(f"pci.{bdf}", f"{folder}/{{vendor,device,class}}")
            continue
        node = parse_integer(tree.text(f"{folder}/numa_node"))
        if node is None:
            tree.missing(f"pci.{bdf}.numa_node", f"{folder}/numa_node")
        elif node < 0:
            node = None
        driver = tree.link_name(f"{folder}/driver")
        devices.append(PciDevice(bdf, vendor, device, f"0x{code}", node, driver))
    return tuple(devices)


def _hexadecimal(tree: Tree, path: str, digits: int) -> str | None:
    """The digits after 0x of a sysfs file, or None if it does not hold that many."""
    text = (tree.text(path) or "").strip().lower()
    return text[2:] if _HEX.fullmatch(text) and len(text) == digits + 2 else None


def _nodes(tree: Tree, patterns: Sequence[str]) -> tuple[DeviceNode, ...]:
    nodes = []
    for path in sorted({path for pattern in patterns for path in tree.matching(pattern)}):
        on_disk = tree.on_disk(path)
        try:
            found = os.stat(on_disk)
        except OSError:
            continue
        if not stat.S_ISDIR(found.st_mode):
            readable, writable = os.access(on_disk, os.R_OK), os.access(on_disk, os.W_OK)
            kind = _kind(found.st_mode)
            nodes.append(DeviceNode(path, kind, readable, writable, found.st_gid))
    return tuple(nodes)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFCHR: "char", stat.S_IFBLK: "block", stat.S_IFREG: "file"}
    return kinds.get(stat.S_IFMT(mode), "other")


def _modules(tree: Tree) -> tuple[str, ...]:
    text = tree.text("/proc/modules")
    if text is None:
        tree.missing("modules", "/proc/modules")
    return tuple(sorted({line.split()[0] for line in (text or "").splitlines() if line.split()}))


def _allowed(tree: Tree, field: str, status: dict[str, str], key: str) -> tuple[int, ...]:
    numbers = parse_cpulist(status.get(key))
    if not numbers:
        tree.missing(field, f"/proc/self/status: {key}")
    return numbers or ()


def _cpu(tree: Tree) -> CpuFacts:
    text = tree.text("/proc/cpuinfo", _CPUINFO_BYTES) or ""
    info = key_values(text.split("\n\n", 1)[0])
    flags = info.get("flags", info.get("Features", "")).split()  # x86 and Arm
    if not flags:
        tree.missing("cpu.flags", "/proc/cpuinfo: flags or Features")
    model = info.get("model name") or None
    if model is None:
        tree.missing("cpu.model", "/proc/cpuinfo: model name")
    online = parse_cpulist(tree.text(f"{_CPU}/online")) or ()
    logical = len(online) or (os.cpu_count() if tree.live else None)
    if logical is None:
        tree.missing("cpu.logical", f"{_CPU}/online")
    return CpuFacts(
        model=model,
        flags=tuple(sorted(set(flags))),
        logical=logical,
        cores=_groups(tree, "cpu.cores", online, "thread_siblings_list"),
        sockets=_groups(tree, "cpu.sockets", online, "core_siblings_list"),
    )


def _groups(tree: Tree, field: str, online: Sequence[int], file: str) -> int | None:
    """How many groups the online CPUs form; reads one file a group, not one a CPU."""
    seen: set[int] = set()
    groups = 0
    for cpu in online:
        if cpu in seen:
            continue
        members = parse_cpulist(tree.text(f"{_CPU}/cpu{cpu}/topology/{file}"))
        if not members:
            tree.missing(field, f"{_CPU}/cpu{cpu}/topology/{file}")
            return None
        seen.update(members)
        groups += 1
    if not groups:
        tree.missing(field, f"{_CPU}/online")
    return groups or None


def _memory(tree: Tree) -> MemoryFacts:
    info = key_values(tree.text("/proc/meminfo"))

    def size(field: str, key: str) -> int | None:
        kibibytes = parse_integer(info.get(key, "").removesuffix("kB"))
        if kibibytes is None or kibibytes < 0:
            tree.missing(f"memory.{field}", f"/proc/meminfo: {key}")
            return None
        return kibibytes * 1024

    return MemoryFacts(size("total_bytes", "MemTotal"), size("available_bytes", "MemAvailable"))


def _torch(tree: Tree) -> TorchBuild | None:
    build = installed_torch_build()
    if build is not None and build.version is None:
        tree.missing("torch.version", "torch/version.py: __version__")
    return build
