"""What system this is and where it runs: distribution, C library, container, WSL, cloud.

Hints are read from files and variables alone; nothing is asked of the network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter.hostfacts.facts import OsFacts

_DMI: Final = "/sys/class/dmi/id"
_AZURE_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
"""The chassis asset tag of every Azure machine, by Microsoft's documents."""
_MAKERS: Final = (
    (re.compile(r"(?i)\bvmware\b"), "VMware"),
    (re.compile(r"(?i)\bmicrosoft corporation\b.*\bvirtual machine\b"), "Microsoft"),
    (re.compile(r"(?i)\bvirtualbox\b|\binnotek\b"), "Oracle"),
    (re.compile(r"(?i)\bparallels\b"), "Parallels"),
    (re.compile(r"(?i)\bxen\b|\bhvm domu\b"), "Xen"),
    (re.compile(r"(?i)\bkvm\b|\bqemu\b|\bopenstack\b|\bgoogle compute engine\b"), "KVM"),
)
"""DMI vendor and product to the hypervisor, named as lscpu names it."""
_CONTAINERS: Final = (
    (re.compile(r"kubepods|/kubelet/"), "kubernetes"),
    (re.compile(r"docker[-/][0-9a-f]{12}|/docker/(?:overlay|containers)"), "docker"),
    (re.compile(r"libpod[-_/]|/containers/storage/"), "podman"),
    (re.compile(r"containerd|\blxc[./]|/crio-|/garden/"), "container"),
)


def describe_os(
    tree: Tree, seen: OsFacts, flags: Collection[str], environ: Mapping[str, str]
) -> OsFacts:
    """`seen`, with distribution, C library and hints; `flags` are the CPU's."""
    release = (tree.text("/proc/sys/kernel/osrelease") or "").strip() or seen.release or ""
    hints = {
        *_container(tree, environ),
        *_wsl(tree, release),
        *_virtual(tree, flags),
        *_android(tree, environ),
    }
    return replace(
        seen,
        distribution=_distribution(tree),
        libc=_libc(tree),
        environment=tuple(sorted(hints)),
    )


def _distribution(tree: Tree) -> str | None:
    text = tree.text("/etc/os-release") or tree.text("/usr/lib/os-release") or ""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    name = values.get("PRETTY_NAME") or values.get("NAME") or ""
    name = name.strip().strip("\"'").strip()
    if not name:
        tree.missing("os.distribution", "/etc/os-release: PRETTY_NAME")
    return name or None


def _libc(tree: Tree) -> str | None:
    """The C library that this process runs on."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):  # no confstr, or a C library without the name
        text = None
    if text:
        return text
    if tree.matching("/lib/ld-musl-*.so.1"):
        installed = tree.text("/lib/apk/db/installed", 1 << 22) or ""
        found = re.search(r"(?m)^P:musl\nV:([0-9][0-9.]*)", installed)
        return f"musl {found[1]}" if found else "musl"
    tree.missing("os.libc", "the C library's own version (confstr)")
    return None


def _container(tree: Tree, environ: Mapping[str, str]) -> Iterator[str]:
    if tree.text("/.dockerenv", 1) is not None:
        yield from ("container", "docker")
    if tree.text("/run/.containerenv", 1) is not None:
        yield from ("container", "podman")
    if environ.get("KUBERNETES_SERVICE_HOST"):
        yield from ("container", "kubernetes")
    text = (tree.text("/proc/self/cgroup") or "") + "\n" + _root_mount(tree)
    for pattern, name in _CONTAINERS:
        if pattern.search(text):
            yield from ("container", name)


def _root_mount(tree: Tree) -> str:
    """The line of the root's mount: version 2 of control groups names no container."""
    for line in (tree.text("/proc/self/mountinfo") or "").splitlines():
        words = line.split(" ")
        if len(words) > 4 and words[4] == "/" and " - overlay " in line:
            return line
    return ""


def _wsl(tree: Tree, release: str) -> Iterator[str]:
    version = tree.text("/proc/version") or ""
    if "microsoft" not in f"{release} {version}".lower():
        return
    # Version 1 has no kernel of its own: it says "4.4.0-19041-Microsoft". An Azure machine's
    # kernel says "azure", and one built by Microsoft for servers lacks the word WSL.
    if "WSL2" in release or "microsoft-standard" in release:
        yield "wsl2"
    elif release.endswith("-Microsoft"):
        yield "wsl1"


def _virtual(tree: Tree, flags: Collection[str]) -> Iterator[str]:
    vendor, product, tag = (
        (tree.text(f"{_DMI}/{name}") or "").strip()
        for name in ("sys_vendor", "product_name", "chassis_asset_tag")
    )
    makers = f"{vendor} {product}"
    hypervisor = next((name for pattern, name in _MAKERS if pattern.search(makers)), None)
    if hypervisor is None and (tree.text("/sys/hypervisor/type") or "").strip() == "xen":
        hypervisor = "Xen"
    cloud = ""
    if tag == _AZURE_TAG:
        cloud = "azure"
    elif "amazon ec2" in makers.lower():
        cloud = "aws"
    elif vendor.lower() == "google":
        cloud = "gcp"
    if cloud:
        yield cloud
    if hypervisor:
        yield f"hypervisor:{hypervisor}"
    if hypervisor or "hypervisor" in flags:
        yield "vm"


def _android(tree: Tree, environ: Mapping[str, str]) -> Iterator[str]:
    if environ.get("ANDROID_ROOT") or tree.text("/system/build.prop", 1) is not None:
        yield "android"
    if environ.get("TERMUX_VERSION") or "com.termux" in environ.get("PREFIX", ""):
        yield from ("android", "termux")
