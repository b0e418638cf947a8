"""Holds every distribution of this tree to the one version in VERSION, and their pins to it.

    python scripts/versions.py            writes
    python scripts/versions.py --check    writes nothing, and exits 1 where something differs

The house (core, doctor, conformance, schemas, vendors, template and the package that brings them)
moves as one: it has that version, and pins itself to exactly that. Adapters have versions of their
own, and take every release of core that is compatible.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOUSE = ("", "core", "doctor", "conformance", "schemas", "vendors", "template")
"""Folders of the distributions that move as one."""
MEMBERS = "|".join(name for name in HOUSE if name)
MODULE = "core/src/vllm_adapter/__init__.py"

_OWN = re.compile(r'^version = "[^"]*"', re.MULTILINE)
_EXACT = re.compile(rf"(vllm-adapter-(?:{MEMBERS})(?:\[[\w,]*\])?)==[\w.]+")
_RANGE = re.compile(r"(vllm-adapter-core(?:\[[\w,]*\])?)>=[\w.]+,<[\w.]+")
_MODULE = re.compile(r'^__version__ = "[^"]*"', re.MULTILINE)


def compatible(version: str) -> str:
    """The releases that keep what this one promises: `>=0.1,<0.2`."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return f">=0.{minor},<0.{minor + 1}" if major == 0 else f">={major}.{minor},<{major + 1}"


def files() -> list[Path]:
    """Every pyproject.toml that names a version, the template's own project included."""
    return [
        *sorted(ROOT.glob("pyproject.toml")),
        *sorted(ROOT.glob("*/pyproject.toml")),
        *sorted(ROOT.glob("adapters/*/pyproject.toml")),
        *sorted((ROOT / "template/src").rglob("pyproject.toml")),
    ]


def written(path: Path, version: str) -> str:
    """What a file should hold."""
    text = path.read_text(encoding="utf-8")
    if path == ROOT / MODULE:
        return _MODULE.sub(f'__version__ = "{version}"', text)
    if path.parent in {ROOT / name for name in HOUSE}:
        text = _OWN.sub(f'version = "{version}"', text, count=1)
    text = _EXACT.sub(rf"\g<1>=={version}", text)
    return _RANGE.sub(rf"\g<1>{compatible(version)}", text)


def stale(version: str) -> Iterator[tuple[Path, str]]:
    """The files that differ from what they should hold, with that."""
    for path in [*files(), ROOT / MODULE]:
        text = written(path, version)
        if text != path.read_text(encoding="utf-8"):
            yield path, text


def main() -> int:
    """Writes, or with --check only says what differs."""
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    found = list(stale(version))
    if "--check" in sys.argv[1:]:
        for path, _ in found:
            print(f"{path.relative_to(ROOT)} does not hold {version}: run scripts/versions.py")
        return 1 if found else 0
    for path, text in found:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
