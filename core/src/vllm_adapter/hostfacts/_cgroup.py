"""Limits of this process's control group, versions 1 and 2, also where both are mounted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.hostfacts._tree import Tree, parse_integer
from vllm_adapter.hostfacts.facts import CgroupLimits

_GROUPS: Final = "/proc/self/cgroup"
_MOUNT: Final = "/sys/fs/cgroup"
_V1_NO_LIMIT: Final = 1 << 62
"""Version 1 writes "no limit" as the largest multiple of the page size in a signed 64-bit word."""


def read_cgroup(tree: Tree) -> CgroupLimits:
    """The tightest memory and CPU limit on the way from this process's group to the mount.

    The whole way is walked because a limit of a parent holds too, and because a container may
    see the host's path in /proc/self/cgroup while its own group is the mount itself.
    """
    text = tree.text(_GROUPS)
    if text is None:
        tree.missing("cgroup.memory_limit_bytes", _GROUPS)
        tree.missing("cgroup.cpu_quota_cores", _GROUPS)
        return CgroupLimits()
    memory: list[int] = []
    quota: list[float] = []
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        names = controllers.split(",")
        if not colon:
            continue
        if not controllers:
            for mount in (_MOUNT, f"{_MOUNT}/unified"):
                for folder in _upwards(mount, path):
                    memory += _memory_limit(tree, f"{folder}/memory.max")
                    quota += _quota_v2(tree, f"{folder}/cpu.max")
        if "memory" in names:
            for folder in _upwards(f"{_MOUNT}/memory", path):
                memory += _memory_limit(tree, f"{folder}/memory.limit_in_bytes")
        if "cpu" in names:
            # distributions mount cpu and cpuacct together under either name
            for mount in dict.fromkeys((f"{_MOUNT}/cpu", f"{_MOUNT}/{controllers}")):
                for folder in _upwards(mount, path):
                    quota += _quota_v1(tree, folder)
    return CgroupLimits(min(memory, default=None), min(quota, default=None))


def _upwards(mount: str, path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for depth in range(len(parts), -1, -1):
        yield "/".join([mount, *parts[:depth]])


def _memory_limit(tree: Tree, path: str) -> list[int]:
    text = tree.text(path)
    if text is None or text.strip() == "max":
        return []
    limit = parse_integer(text)
    if limit is None or limit < 0:
        tree.missing("cgroup.memory_limit_bytes", path)
        return []
    return [limit] if limit < _V1_NO_LIMIT else []


def _quota_v2(tree: Tree, path: str) -> list[float]:
    text = tree.text(path)
    if text is None:
        return []
    quota, _, period = text.strip().partition(" ")
    return [] if quota == "max" else _cores(tree, path, quota, period)


def _quota_v1(tree: Tree, folder: str) -> list[float]:
    path = f"{folder}/cpu.cfs_quota_us"
    quota = tree.text(path)
    if quota is None or quota.strip() == "-1":
        return []
    return _cores(tree, path, quota, tree.text(f"{folder}/cpu.cfs_period_us"))


def _cores(tree: Tree, path: str, quota: str | None, period: str | None) -> list[float]:
    used, of = parse_integer(quota), parse_integer(period)
    if used is None or used <= 0 or of is None or of <= 0:
        tree.missing("cgroup.cpu_quota_cores", path)
        return []
    return [used / of]
