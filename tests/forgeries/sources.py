"""Source folders of packages that tests build wheels of."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPU = ROOT / "adapters/cpu/src/vllm_adapter_cpu"
_PROJECT = """\
[build-system]
requires = ["flit_core>=3.11,<4"]
build-backend = "flit_core.buildapi"

[project]
name = "{dist}"
version = "1.0"
description = "of a test"

{points}
[tool.flit.module]
name = "{module}"
"""
_POINTS = """\
[project.entry-points."vllm_adapter.adapters"]
{name} = "vllm_adapter_{name}"
"""
_PLUGIN = """\
import ctypes
from pathlib import Path
from vllm_adapter import AdapterSpec, hookimpl


class Plugin(AdapterSpec):
    @hookimpl
    def open_runtime(self, device, capability):
        ctypes.CDLL(str(Path(__file__).with_name("libextra.so")))
        return None
"""
_KERNELS = """\
import torch


def rms_norm(x, weight, eps):
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (x.float() * scale).to(x.dtype) * weight
"""


def project(folder: Path, dist: str, module: str, name: str | None = None) -> Path:
    """A source folder with an empty package; `name` is the adapter's that it brings."""
    package = folder / module
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'"""{dist}."""\n')
    points = _POINTS.format(name=name) if name else ""
    (folder / "pyproject.toml").write_text(
        _PROJECT.format(dist=dist, module=module, points=points)
    )
    return package


def adapter(folder: Path, name: str, plugin: str) -> Path:
    """The source folder of an adapter of the CPU, without any descriptor yet."""
    package = project(folder, f"vllm-adapter-{name}", f"vllm_adapter_{name}", name)
    manifest = {
        "schema": "vllm-adapter/manifest/1.0",
        "name": name,
        "vendor": "Test",
        "api": ">=1.0,<2",
        "device": {"torch_type": "cpu"},
        "match": [{"machine": ["x86_64", "aarch64"]}],
        "plugin": f"vllm_adapter_{name}.plugin:Plugin",
    }
    (package / "adapter.json").write_text(json.dumps(manifest))
    (package / "plugin.py").write_text(plugin)
    return package


def acme(folder: Path) -> Path:
    """An adapter that loads a shared library, and whose rms_norm is another package's."""
    package = adapter(folder, "acme", _PLUGIN)
    spec = importlib.util.find_spec("_opcode")  # any library that a process of Python can load
    library = Path(spec.origin)
    shutil.copyfile(library, package / "libextra.so")
    (package / "capabilities").mkdir()
    for file in (CPU / "capabilities").glob("*.json"):
        raw = json.loads(file.read_text())
        raw["operators"]["rms_norm"]["run"] = "other_kernels.norms:rms_norm"
        (package / "capabilities" / file.name).write_text(json.dumps(raw))
    return folder


def other_kernels(folder: Path) -> Path:
    """The package of that kernel."""
    package = project(folder, "other-kernels", "other_kernels")
    (package / "norms.py").write_text(_KERNELS)
    return folder


def sloppy(folder: Path) -> Path:
    """An adapter that fails at L0: its plug-in imports torch."""
    package = adapter(
        folder, "sloppy", "import torch\n" + _PLUGIN.replace("import ctypes\n", "import ctypes\n")
    )
    (package / "capabilities").mkdir()
    for file in (CPU / "capabilities").glob("*.json"):
        shutil.copyfile(file, package / "capabilities" / file.name)
    return folder
