"""Installs a source folder as a distribution, in a folder of one test, without pip.

An adapter's folder holds one package. `install` copies it into a site folder and writes the
dist-info that makes its entry point known; a process with `environment(site)` then finds it
beside everything that is really installed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PLUGINS = Path(__file__).parent / "plugins"


def write_adapter(
    folder: Path, name: str, *, plugin: str | None = None, **manifest: object
) -> Path:
    """Writes an adapter's source folder, for `install`; it matches any machine by default.

    `plugin` is the source of its plugin.py, which must define `Plugin`; `manifest` adds to the
    adapter.json, or replaces its keys.
    """
    package = folder / f"vllm_adapter_{name}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    raw: dict[str, object] = {
        "schema": "vllm-adapter/manifest/1.0",
        "name": name,
        "vendor": "Test",
        "api": ">=1.0,<2",
        "match": [{"machine": ["x86_64", "aarch64"]}],
    }
    if plugin is not None:
        (package / "plugin.py").write_text(plugin, encoding="utf-8")
        raw["plugin"] = f"{package.name}.plugin:Plugin"
    (package / "adapter.json").write_text(json.dumps(raw | manifest), encoding="utf-8")
    return folder


def install(
    folder: Path,
    site: Path,
    *,
    name: str,
    version: str = "1.0",
    entry_name: str,
    entry_value: str | None = None,
    group: str = "vllm_adapter.adapters",
    requires: Iterable[str] = (),
    requires_python: str | None = None,
) -> Path:
    """Installs `folder`'s package as distribution `name`; gives the installed package's folder.

    `entry_value` is the package by default. `requires` are Requires-Dist lines.
    """
    packages = [p for p in folder.iterdir() if p.is_dir() and (p / "__init__.py").is_file()]
    if len(packages) != 1:
        raise ValueError(f"{folder} must hold one package, and holds {len(packages)}")
    package = site / packages[0].name
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(packages[0], package, ignore=ignored, dirs_exist_ok=True)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    headers = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if requires_python:
        headers.append(f"Requires-Python: {requires_python}")
    headers += [f"Requires-Dist: {line}" for line in requires]
    (info / "METADATA").write_text("\n".join([*headers, "", ""]), encoding="utf-8")
    value = entry_value or package.name
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry_name} = {value}\n", "utf-8")
    _write_record(site, [package, info], info / "RECORD")
    return package


def install_all(site: Path) -> None:
    """Installs every folder of `tests/plugins` under its own name; `twin` says it is cpu."""
    for folder in sorted(p for p in PLUGINS.iterdir() if p.is_dir()):
        kind = folder.name
        install(
            folder,
            site,
            name=f"vllm-adapter-{kind.replace('_', '-')}",
            entry_name="cpu" if kind == "twin" else kind,
            entry_value="vllm_adapter_dotted.plugin" if kind == "dotted" else None,
        )


def environment(site: Path, **variables: str) -> dict[str, str]:
    """This process's environment with `site` on the path, a cache of its own, and `variables`.

    VA_* variables of the caller are left out.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("VA_")}
    path = [str(site), *filter(None, [kept.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(path), "XDG_CACHE_HOME": str(site / ".cache")}
    return kept | own | variables


@dataclass(frozen=True)
class Site:
    """A site folder, and processes that see it."""

    path: Path

    def add(self, kind: str, **options: object) -> Path:
        """Installs one folder of `tests/plugins`; options as of `install`."""
        given = {"name": f"vllm-adapter-{kind.replace('_', '-')}", "entry_name": kind} | options
        return install(PLUGINS / kind, self.path, **given)

    def make(self, name: str, *, plugin: str | None = None, **manifest: object) -> Path:
        """Writes and installs an adapter, as of `write_adapter`; gives its package's folder."""
        folder = write_adapter(self.path.parent / "src" / name, name, plugin=plugin, **manifest)
        return install(folder, self.path, name=f"vllm-adapter-{name}", entry_name=name)

    def run(
        self, *words: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs `python *words`."""
        return subprocess.run(
            [sys.executable, *words],
            env=environment(self.path, **(variables or {})),
            capture_output=True,
            text=True,
            timeout=300,
        )


def _write_record(site: Path, folders: Iterable[Path], record: Path) -> None:
    lines = []
    for file in sorted(f for folder in folders for f in folder.rglob("*") if f.is_file()):
        if file == record:
            continue
        content = file.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{file.relative_to(site).as_posix()},sha256={digest},{len(content)}")
    lines.append(f"{record.relative_to(site).as_posix()},,")
    record.write_text("\n".join([*lines, ""]), encoding="utf-8")
