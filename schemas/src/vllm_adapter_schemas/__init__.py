"""JSON Schemas (2020-12) of vllm-adapter's files. Their descriptions are the fields' reference.

Needs the standard library alone: a certificate can be checked where nothing else is installed.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

__all__ = ["KINDS", "load", "versions"]

KINDS: Final = ("manifest", "capability", "certificate", "facts", "vendor")
_VERSIONS: Final = dict.fromkeys(KINDS, ("1.0",)) | {"certificate": ("1.1",)}


def versions(kind: str) -> tuple[str, ...]:
    """The versions of a kind that `load` has, oldest first.

    Raises:
        ValueError: no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no schema of kind {kind!r}; kinds: {', '.join(KINDS)}")
    return _VERSIONS[kind]


def load(kind: str) -> dict[str, Any]:
    """The newest schema of a kind; a fresh object, which the caller may change.

    Raises:
        ValueError: no such kind.
    """
    name = f"{kind}-{versions(kind)[-1]}.json"
    schema: dict[str, Any] = json.loads(
        resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
    )
    return schema
