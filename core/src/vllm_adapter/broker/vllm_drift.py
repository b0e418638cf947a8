"""Holds the signatures of vLLM's hooks that our bridge overrides or calls against a snapshot.

Signatures are read from vLLM's source: platforms of other devices cannot be imported here, and
reading them cannot hurt. Annotations are left out, since they change without changing a call.
There is one snapshot for each release that was tried: what differs between those, an era of the
bridge handles. `must` are the methods that a class of vLLM's leaves to those who derive from it.

    python -m vllm_adapter.broker.vllm_drift FILE [FOLDER]

writes FILE anew, with the names that it has, for the vLLM that is installed, or for one whose
wheel was unpacked into FOLDER.
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
        known: list[str] | None = snapshot["must"].get(owner)
        left = () if known is None else left_open(vllm.folder, owner) - set(known)
        for method, was in {**dict.fromkeys(sorted(left)), **methods}.items():
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


def snapshots(folder: Path = SNAPSHOTS) -> list[tuple[tuple[int, int], Path]]:
    """The minor releases that there is a snapshot of, and its file, oldest first.

    Raises:
        InputError: there is none.
    """
    found = sorted(
        ((int(match[1]), int(match[2])), file)
        for file in folder.glob("signatures-*.json")
        if (match := _SNAPSHOT.fullmatch(file.name))
    )
    if not found:
        raise InputError(f"{folder} holds no signatures-*.json", hint="reinstall the package")
    return found


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
    must = {owner: sorted(left_open(vllm.folder, owner)) for owner in sorted(old["must"])}
    content: dict[str, Any] = {"vllm": vllm.version, "must": must, "signatures": signatures}
    write_atomic(file, json.dumps(content, indent=2) + "\n")


def _nearest(version: str | None, folder: Path) -> Path:
    """The snapshot of this release, else of the newest before it, else of the oldest."""
    found, minor = snapshots(folder), _minor(version)
    older = [file for number, file in found if minor is None or number <= minor]
    return older[-1] if older else found[0][1]


def _minor(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def signatures_in(folder: Path, owner: str) -> Mapping[str, tuple[str, int]]:
    """Name -> signature and line of a class's own functions, or of a module's: `file.py:Class`."""
    return dict(_functions(_body(folder, owner)))


def left_open(folder: Path, owner: str) -> set[str]:
    """Names of a class's functions that are abstract, or raise NotImplementedError and no more."""
    return {
        node.name
        for node in _body(folder, owner)
        if isinstance(node, ast.FunctionDef)
        and (
            any(isinstance(n, ast.Name) and n.id == "abstractmethod" for n in node.decorator_list)
            or (isinstance(node.body[-1], ast.Raise) and _is_not_implemented(node.body))
        )
    }


def _is_not_implemented(body: list[ast.stmt]) -> bool:
    code = [stmt for stmt in body if not isinstance(stmt, ast.Expr)]
    return len(code) == 1 and "NotImplementedError" in ast.unparse(code[0])


def _body(folder: Path, owner: str) -> list[ast.stmt]:
    path, _, name = owner.partition(":")
    try:
        tree = ast.parse((folder / path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return []
    if not name:
        return tree.body
    classes = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return next((n.body for n in classes), [])


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
    match sys.argv[1:]:
        case [file]:
            vllm = find_vllm()
        case [file, folder]:
            vllm = VllmInstall(Path(folder, "vllm"), None, _unpacked_version(Path(folder)))
        case _:
            vllm = None
    if vllm is None or vllm.version is None:
        raise SystemExit("usage: python -m vllm_adapter.broker.vllm_drift FILE [FOLDER]")
    update_snapshot(Path(file), vllm)


def _unpacked_version(folder: Path) -> str | None:
    """The version of a wheel that was unpacked into a folder."""
    found = next(iter(sorted(folder.glob("vllm*.dist-info/METADATA"))), None)
    line = found and re.search(r"^Version: (\S+)", found.read_text("utf-8"), re.MULTILINE)
    return line[1] if line else None


if __name__ == "__main__":
    main()
