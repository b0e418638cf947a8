"""Prints the lowest releases that an extra of core declares, as pip's arguments."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

CORE = Path(__file__).parent.parent / "core" / "pyproject.toml"


def lowest(extra: str) -> list[str]:
    """Each requirement of the extra, pinned to its bound >=."""
    project = tomllib.loads(CORE.read_text(encoding="utf-8"))["project"]
    found = []
    for line in project["optional-dependencies"][extra]:
        requirement = Requirement(line)
        bound = next(s.version for s in requirement.specifier if s.operator == ">=")
        found.append(f"{requirement.name}=={bound}")
    return found


if __name__ == "__main__":
    print(*lowest(sys.argv[1]))
