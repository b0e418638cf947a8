"""Versions of drivers, firmware and toolkits by the files that they leave: no SDK is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from vllm_adapter.host._tree import Tree
from vllm_adapter.host.facts import Driver

_NUMBER: Final = re.compile(r"\d+(?:\.\d+)+(?:[.-]?(?:rc|alpha|beta|RC|SPC|T)\d*(?:\.\w+)*)?")
_NVIDIA: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_ASCEND: Final = re.compile(r"(?im)^\s*(?:package_)?version\s*=\s*\[?([^\s\]:]+)")
_CUDA_TXT: Final = re.compile(r"CUDA Version (\d+(?:\.\d+)+)")
_CAMBRICON: Final = re.compile(r"Driver Version\s*:\s*v?(\d+(?:\.\d+)+)")
_MODULES: Final = {
    "amdgpu": "amdgpu",
    "xe": "xe",
    "i915": "i915",
    "habanalabs": "habanalabs",
    "mtgpu": "mtgpu",
    "metax": "metax",
    "cambricon-drv": "cambricon",
}
"""Kernel module: the driver's name. The modules of the kernel itself carry no version."""
_ROCM: Final = (".info/version", ".info/version-dev")
_FIRMWARE: Final = "/usr/local/Ascend/firmware/version.info"
_CUDA_HOME: Final = ("CUDA_HOME", "CUDA_PATH")
_CUDA: Final = ("version.json", "version.txt")
_MACA: Final = ("Version.txt",)
_MLUS: Final = "/proc/driver/cambricon/mlus/*/information"
_CANN_HOME: Final = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
_CANN_FOLDERS: Final = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")

Reader = Callable[[str], str | None]


def read_drivers(
    tree: Tree, modules: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[Driver, ...]:
    """What the files of this machine say; `modules` are the loaded ones, by the kernel's name."""
    found = [
        _first(tree, "nvidia", ("/proc/driver/nvidia/version",), _by(_NVIDIA))
        or _first(tree, "nvidia", ("/sys/module/nvidia/version",), _number),
        *(_module(tree, module, modules) for module in _MODULES),
        _first(tree, "rocm", _homes(environ, ("ROCM_PATH",), "/opt/rocm", _ROCM), _number),
        _first(tree, "ascend", ("/usr/local/Ascend/driver/version.info",), _by(_ASCEND)),
        _first(tree, "ascend-firmware", (_FIRMWARE,), _by(_ASCEND)),
        _cann(tree, environ),
        _first(tree, "cuda-toolkit", _homes(environ, _CUDA_HOME, "/usr/local/cuda", _CUDA), _cuda),
        _first(tree, "maca", _homes(environ, ("MACA_PATH",), "/opt/maca", _MACA), _number),
        _first(tree, "cambricon", tree.matching(_MLUS)[:1], _by(_CAMBRICON)),
    ]
    return tuple(dict.fromkeys(driver for driver in found if driver is not None))


def _homes(
    environ: Mapping[str, str], names: tuple[str, ...], default: str, files: tuple[str, ...]
) -> list[str]:
    """The files in the folder that a variable names, then in the usual one."""
    named = [environ[name] for name in names if environ.get(name, "").startswith("/")]
    return [f"{home.rstrip('/')}/{file}" for home in (*named, default) for file in files]


def _first(
    tree: Tree, component: str, paths: tuple[str, ...] | list[str], read: Reader
) -> Driver | None:
    """The version in the first of the files that is there and says one."""
    for path in paths:
        text = tree.text(path, 1 << 16)
        if text is None:
            continue
        version = read(text)
        if version:
            return Driver(component, version, path)
        tree.missing(f"drivers.{component}", f"{path}: a version")
    return None


def _by(pattern: re.Pattern[str]) -> Reader:
    def read(text: str) -> str | None:
        found = pattern.search(text)
        return found[1] if found else None

    return read


def _number(text: str) -> str | None:
    """The first number with a dot in it; a build's number behind a dash is not of the version."""
    found = _NUMBER.search(text)
    return found[0] if found else None


def _module(tree: Tree, module: str, loaded: tuple[str, ...]) -> Driver | None:
    name = module.replace("-", "_")
    path = f"/sys/module/{name}/version"
    found = _first(tree, _MODULES[module], (path,), lambda text: text.strip() or None)
    if found is None and name in loaded:
        tree.missing(f"drivers.{_MODULES[module]}", f"{path}: the kernel's own module has none")
    return found


def _cuda(text: str) -> str | None:
    """Of version.json, which toolkits have from 11.1 on, or of the older version.txt."""
    if not text.lstrip().startswith("{"):
        found = _CUDA_TXT.search(text)
        return found[1] if found else None
    try:
        raw = json.loads(text)
    except ValueError:
        return None
    for name in ("cuda", "cuda_nvcc"):
        part = raw.get(name) if isinstance(raw, dict) else None
        version = part.get("version") if isinstance(part, dict) else None
        if isinstance(version, str) and _NUMBER.fullmatch(version):
            return version
    return None


def _cann(tree: Tree, environ: Mapping[str, str]) -> Driver | None:
    named = [environ[name] for name in _CANN_HOME if environ.get(name, "").startswith("/")]
    for home in (*named, *_CANN_FOLDERS):
        paths = sorted(tree.matching(f"{_literal(home)}/*-linux/ascend_toolkit_install.info"))
        found = _first(tree, "cann", [*paths, f"{home}/ascend_toolkit_install.info"], _by(_ASCEND))
        if found:
            return found
    return None


def _literal(path: str) -> str:
    """A path of a variable, for use inside a glob."""
    return re.sub(r"([*?[])", r"[\1]", path.rstrip("/"))
