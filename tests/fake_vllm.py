"""A vLLM of a few files: the hooks of the snapshot, and a choice of platforms like vLLM's own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from vllm_adapter.broker.vllm_drift import SNAPSHOTS

SNAPSHOT = SNAPSHOTS / "signatures-0.32.json"

PLATFORMS = """
import importlib
from importlib.metadata import entry_points
from vllm import envs

class CpuPlatform:
    device_type = "cpu"

def cpu():
    return "vllm.platforms:CpuPlatform"

builtin_platform_plugins = {"cpu": cpu}

def _make(dotted):
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)()

def resolve_current_platform_cls_qualname():
    found = {}
    for point in entry_points(group="vllm.platform_plugins"):
        if envs.VLLM_PLUGINS is None or point.name in envs.VLLM_PLUGINS:
            try:
                found[point.name] = point.load()()
            except Exception:
                pass
    answers = {name: given for name, given in found.items() if given}
    if envs.VLLM_TARGET_DEVICE == "cpu":
        answers = {}
    if len(answers) > 1:
        raise RuntimeError(f"Only one platform plugin can be activated, but got: {list(answers)}")
    return next(iter(answers.values()), cpu())

def __getattr__(name):
    if name != "current_platform":
        raise AttributeError(name)
    return _make(resolve_current_platform_cls_qualname())
"""
ENVS = """
import os
VLLM_PLUGINS = os.environ["VLLM_PLUGINS"].split(",") if "VLLM_PLUGINS" in os.environ else None
VLLM_TARGET_DEVICE = os.environ.get("VLLM_TARGET_DEVICE", "cuda")
"""


def install_vllm(site: Path, *, distribution: str = "vllm", version: str = "0.32.0+cpu") -> Path:
    """Puts the fake and its metadata into a site folder; gives its package's folder."""
    folder = site / "vllm"
    for owner, methods in json.loads(SNAPSHOT.read_text("utf-8"))["signatures"].items():
        path, _, name = owner.partition(":")
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as source:
            source.write("\n".join([*_class(name, methods), ""]))
    for package in (folder, *(p for p in folder.rglob("*") if p.is_dir())):
        (package / "__init__.py").touch()
    with (folder / "platforms/__init__.py").open("a", encoding="utf-8") as source:
        source.write(PLATFORMS)
    (folder / "envs.py").write_text(ENVS, encoding="utf-8")
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    return folder


def _class(name: str, methods: dict[str, str | None]) -> Iterable[str]:
    """A class, or functions of a module, with these signatures."""
    margin = "    " if name else ""
    if name:
        yield f"class {name}:"
        yield "    there = True"
    for method, signature in methods.items():
        if signature is None:
            continue
        kind, _, arguments = signature.partition("(")
        if kind.strip():
            yield f"{margin}@{kind.strip()}"
        yield f"{margin}def {method}({arguments}: ..."
