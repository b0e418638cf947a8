"""A class name means one thing in the whole repository."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("core/src", "doctor/src", "conformance/src")
ALLOWED: Final[frozenset[str]] = frozenset()
"""Names of several classes. One that comes in says here why both need it."""


def test_a_class_name_means_one_thing():
    places: dict[str, list[str]] = defaultdict(list)
    for source in SOURCES:
        for file in sorted((ROOT / source).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 200
    several = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in several.items() if name not in ALLOWED} == {}
    assert set(several) >= ALLOWED, "an allowed name that is one class only"
