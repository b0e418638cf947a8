"""The committed list of rules that a level needs: what "pass" refers to, hashed.

`python -m vllm_adapter_conformance.certificate.mustpass` prints what the file should hold; a test
compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import resources

from vllm_adapter_conformance.base.rule import LEVELS
from vllm_adapter_conformance.rules import registered


def committed() -> Mapping[str, Sequence[str]]:
    """Rule ids by level."""
    found: dict[str, list[str]] = json.loads(_text())
    return found


def committed_sha256() -> str:
    """SHA-256 of the file."""
    return sha256(_text().encode()).hexdigest()


def render() -> str:
    """The file's content, from the registered rules that are no preview."""
    rules = [rule for rule in registered().values() if not rule.preview]
    listed = {level: sorted(r.id for r in rules if r.level == level) for level in LEVELS}
    return json.dumps(listed, indent=2) + "\n"


def _text() -> str:
    return resources.files(__package__).joinpath("mustpass.json").read_text(encoding="utf-8")


if __name__ == "__main__":
    print(render(), end="")
