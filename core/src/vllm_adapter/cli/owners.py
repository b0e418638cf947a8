"""Which distribution each of the project's own commands belongs to: the one place that says so.

Commands are entry points, which any installed package may add. A name that stands here is its
owner's alone, so that no package can put its own `verify` in the place of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from vllm_adapter.discovery.distributions import EntryPoint

_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm-adapter-core": ("list", "validate", "explain", "new", "run", "plan", "versions", "tune"),
    "vllm-adapter-doctor": ("doctor", "devices", "topology", "container", "facts", "serve"),
    "vllm-adapter-conformance": ("certify", "verify", "bisect"),
}
OWNERS: Final[Mapping[str, str]] = {
    name: distribution for distribution, names in _COMMANDS.items() for name in names
}
"""The distribution that each reserved name belongs to, installed or not."""


def commands(points: Iterable[EntryPoint]) -> tuple[dict[str, EntryPoint], list[str]]:
    """(the commands by name, sorted; a sentence for each entry point that is left out)."""
    found: dict[str, EntryPoint] = {}
    left_out: list[str] = []
    for point in sorted(points, key=lambda point: (point.name, not is_ours(point), _key(point))):
        owner = OWNERS.get(point.name)
        if owner is not None and not is_ours(point):
            left_out.append(
                f"the package {point.distribution} brings a command named {point.name}, which is "
                f"reserved to {owner}: it is ignored; `pip uninstall {point.distribution}` if you "
                "did not expect it"
            )
        elif point.name in found:
            first = found[point.name].distribution
            left_out.append(
                f"the packages {first} and {point.distribution} both bring a command named "
                f"{point.name}: that of {first} is used"
            )
        else:
            found[point.name] = point
    return found, left_out


def is_ours(point: EntryPoint) -> bool:
    """Whether it is a command of the project, and of the distribution that owns it."""
    return OWNERS.get(point.name) == _key(point)


def mark(point: EntryPoint) -> str:
    """What stands beside a command that is not the project's own; empty for ours."""
    return "" if is_ours(point) else f"[of the package {point.distribution}]"


def _key(point: EntryPoint) -> str:
    """A distribution's name, as all ways to write it have in common."""
    return re.sub(r"[-_.]+", "-", point.distribution).lower()
