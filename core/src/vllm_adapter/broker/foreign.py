"""Platform plug-ins of other projects: vLLM refuses to start when one of them and ours answer.

    python -m vllm_adapter.broker.foreign

prints what they answer here, as JSON on the last line: in a process of its own, since a vendor's
plug-in may import its SDK, or die.

# upstream: vllm@0.32 platforms/__init__.py:255
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Final

from vllm_adapter.discovery.distributions import EntryPoint, entry_points

GROUP: Final = "vllm.platform_plugins"
NAME: Final = "vllm_adapter"
"""The name of our own entry point, in every group of vLLM's."""
LIMIT_S: Final = 60.0
"""Seconds for the import of a vendor's plug-in, which may import torch and vLLM."""


@dataclass(frozen=True, slots=True)
class ForeignPlatform:
    """A plug-in of another project that answers on this machine."""

    name: str
    distribution: str
    platform: str

    @property
    def sentence(self) -> str:
        """Why ours steps aside for it."""
        return (
            f"the platform plug-in {self.name} of {self.distribution} answers ({self.platform}), "
            f"and vLLM allows one: it serves; VLLM_PLUGINS={NAME} takes ours"
        )


def named_by_filter(name: str) -> bool:
    """Whether VLLM_PLUGINS lets vLLM load the entry points of a name."""
    allowed = os.environ.get("VLLM_PLUGINS")
    return allowed is None or name in allowed.split(",")


def installed() -> list[EntryPoint]:
    """The entry points of other projects that vLLM will load."""
    return [p for p in entry_points(GROUP) if p.name != NAME and named_by_filter(p.name)]


def answering() -> list[ForeignPlatform]:
    """Asks them in this process, as vLLM is about to; one that raises does not answer."""
    found = []
    for point in installed():
        try:
            platform = point.load()()
        except Exception:  # vLLM goes on without it, too
            continue
        if platform:
            found.append(ForeignPlatform(point.name, point.distribution, str(platform)))
    return found


def answering_in_a_child(limit_s: float = LIMIT_S) -> list[ForeignPlatform]:
    """Asks them in a child, if there are any; one that dies or hangs does not answer."""
    if not installed():
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vllm_adapter.broker.foreign"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
        )
        return [ForeignPlatform(**one) for one in json.loads(done.stdout.splitlines()[-1])]
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError):
        return []


if __name__ == "__main__":
    print("\n" + json.dumps([asdict(one) for one in answering()]))
