"""Holds the signatures of vLLM's hooks that our bridge overrides or calls against a snapshot.

Signatures are read from vLLM's source: platforms of other devices cannot be imported here, and
reading them cannot hurt. Annotations are left out, since they change without changing a call.

    python -m vllm_adapter.broker.vllm_drift FILE

writes FILE anew, with the names that it has, for the vLLM that is installed.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter.broker.vllm_install import VllmInstall, find_vllm
from vllm_adapter.errors import InputError
from vllm_adapter.files import read_json, write_atomic

SNAPSHOTS: Final = Path(__file__).parents[1] / "engine/integrations/vllm"
_SNAPSHOT: Final = re.compile(r"signatures-(\d+)\.(\d+)\.json")
_KINDS: Final = ("classmethod", "staticmethod", "property")


@dataclass(frozen=True, slots=True)
class Drift:
    """One hook that differs from the snapshot. A signature is None where there is no such hook."""

    name: str
    was: str | None
    now: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ApiComparison:
    """The installed vLLM against the snapshot of a release; `exact` if it is of that release."""

    snapshot: Path
    release: str
    exact: bool
    checked: int
    drift: tuple[Drift, ...]


def compare(vllm: VllmInstall, folder: Path = SNAPSHOTS) -> ApiComparison:
    """Compares with the snapshot of the installed release, else with the nearest one.

    Raises:
        InputError: there is no snapshot, or it cannot be read.
    """
    file = _nearest(vllm.version, folder)
    snapshot = read_json(file, "the snapshot of signatures")
    drift: list[Drift] = []
    checked = 0
    for owner, methods in snapshot["signatures"].items():
        found = signatures_in(vllm.folder, owner)
        for method, was in methods.items():
            checked += 1
            now, line = found.get(method, (None, None))
            if now != was:
                place = vllm.folder / owner.partition(":")[0]
                source = f"{place}:{line}" if line else str(place)
                drift.append(Drift(f"{owner}.{method}", was, now, source))
    return ApiComparison(
        file,
        release=str(snapshot["vllm"]),
        exact=_minor(vllm.version) == _minor(snapshot["vllm"]),
        checked=checked,
        drift=tuple(drift),
    )


def update_snapshot(file: Path, vllm: VllmInstall) -> None:
    """Writes a snapshot anew: its names, and what the installed vLLM has for them.

    Raises:
        InputError: the file cannot be read or written.
    """
    old = read_json(file, "the snapshot of signatures")
    signatures: dict[str, dict[str, str | None]] = {}
    for owner, methods in sorted(old["signatures"].items()):
        found = signatures_in(vllm.folder, owner)
        signatures[owner] = {name: found.get(name, (None, 0))[0] for name in sorted(methods)}
    content: dict[str, Any] = {"vllm": vllm.version, "signatures": signatures}
    write_atomic(file, json.dumps(content, indent=2) + "\n")


def _nearest(version: str | None, folder: Path) -> Path:
    """The snapshot of this release, else of the newest before it, else of the oldest."""
    found = sorted(
        ((int(match[1]), int(match[2])), file)
        for file in folder.glob("signatures-*.json")
        if (match := _SNAPSHOT.fullmatch(file.name))
    )
    if not found:
        raise InputError(f"{folder} holds no signatures-*.json", hint="reinstall the package")
    minor = _minor(version)
    older = [file for number, file in found if minor is None or number <= minor]
    return older[-1] if older else found[0][1]


def _minor(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def signatures_in(folder: Path, owner: str) -> Mapping[str, tuple[str, int]]:
    """Name -> signature and line of a class's own functions, or of a module's: `file.py:Class`."""
    path, _, name = owner.partition(":")
    try:
        tree = ast.parse((folder / path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return {}
    body: list[ast.stmt] = tree.body
    if name:
        classes = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
        body = next((n.body for n in classes), [])
    return dict(_functions(body))


def _functions(body: list[ast.stmt]) -> Iterator[tuple[str, tuple[str, int]]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            words = [n.id for n in node.decorator_list if isinstance(n, ast.Name)]
            kind = next((f"{word} " for word in _KINDS if word in words), "")
            yield node.name, (f"{kind}({ast.unparse(node.args)})", node.lineno)


def main() -> None:
    """Renews the snapshot that the command line names."""
    vllm = find_vllm()
    if vllm is None or len(sys.argv) != 2:
        raise SystemExit("usage: python -m vllm_adapter.broker.vllm_drift FILE, beside vLLM")
    update_snapshot(Path(sys.argv[1]), vllm)


if __name__ == "__main__":
    main()
