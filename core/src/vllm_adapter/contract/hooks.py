"""Hooks that are specified and that no release of core calls yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

NOT_CALLED: Final[Mapping[str, str]] = {
    "communicator": "collective operations",
    "vllm_platform": "vLLM platforms of adapters' own",
}
"""What each of them waits for. A plug-in may have them beside others."""


def not_called(hooks: Iterable[str]) -> str | None:
    """A sentence on those of a plug-in's hooks that nothing calls yet; None if all are called."""
    waiting = [f"{hook} (waits for {NOT_CALLED[hook]})" for hook in hooks if hook in NOT_CALLED]
    return f"not called by this release: {', '.join(waiting)}" if waiting else None


def only_not_called(hooks: Iterable[str]) -> bool:
    """Whether a plug-in has hooks, and nothing calls any of them."""
    names = set(hooks)
    return bool(names) and names <= NOT_CALLED.keys()
