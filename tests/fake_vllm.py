"""A vLLM of a few files: the hooks of the snapshot, and a choice of platforms like vLLM's own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fake_dist import install

from vllm_adapter.broker.vllm_drift import SNAPSHOTS

CLI = ("-m", "vllm_adapter.cli")
ADAPTERS = Path(__file__).parents[1] / "adapters"
NOBODY = {"VA_ADAPTERS": ",".join(f"-{folder.name}" for folder in sorted(ADAPTERS.iterdir()))}
"""Every adapter of this tree is denied, so that none is probed; none is named."""
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
    snapshot = json.loads(SNAPSHOT.read_text("utf-8"))
    for owner, methods in snapshot["signatures"].items():
        path, _, name = owner.partition(":")
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as source:
            left = snapshot["must"].get(owner, ())
            source.write("\n".join([*_class(name, methods, left), ""]))
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


def _class(name: str, methods: dict[str, str | None], left: Iterable[str]) -> Iterable[str]:
    """A class, or functions of a module, with these signatures; `left` have no body of theirs."""
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
        body = "raise NotImplementedError" if method in left else "..."
        yield f"{margin}def {method}({arguments}: {body}"
    for method in left:
        if methods.get(method) is None:
            yield f"{margin}def {method}(self): raise NotImplementedError"


def doctor(site, **variables):
    """The report of `doctor --vllm --json`, and its exit code, without probing any adapter."""
    done = site.run(*CLI, "doctor", "--vllm", "--json", variables=NOBODY | variables)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), done.returncode


def codes(report):
    return [finding["code"] for finding in report["findings"]]


def add_plugin(site, name, source, group="vllm.platform_plugins"):
    """Installs another project's plug-in of vLLM."""
    folder = site.path.parent / "src" / name
    package = folder / f"plugin_{name}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source, encoding="utf-8")
    value = f"{package.name}:answer"
    return install(folder, site.path, name=name, entry_name=name, entry_value=value, group=group)
