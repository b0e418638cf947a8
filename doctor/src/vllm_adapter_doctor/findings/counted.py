"""The devices of a box, each once, for a reader who counts them."""

from __future__ import annotations

from typing import Final

from vllm_adapter.hostfacts.facts import Accelerator, HostFacts

_SHORT: Final = 8
"""Characters of a name that an old table cut short ("GeForce RTX 208...")."""


def counted(facts: HostFacts) -> tuple[Accelerator, ...]:
    """The accelerators, without those that only an error names and that a tool lists as well.

    A program numbers what it may see, and a tool all there is, so that the facts keep both.
    """
    listed = [one for one in facts.accelerators if not _only_named(one)]
    return tuple(
        one
        for one in facts.accelerators
        if not (_only_named(one) and any(_fits(one, known) for known in listed))
    )


def _only_named(one: Accelerator) -> bool:
    return one.source == "torch" and not (one.bdf or one.uuid)


def _fits(named: Accelerator, known: Accelerator) -> bool:
    if named.vendor != known.vendor:
        return False
    if not (named.name and known.name):
        return True
    mine, other = _plain(named.name), _plain(known.name)
    if other.endswith(f"[{mine}]"):  # a chip and its product, as lspci has them
        return True
    return mine == other or (len(other) >= _SHORT and mine.startswith(other))


def _plain(name: str) -> str:
    """A name without its maker, and without the dots of a cut."""
    return name.removeprefix("NVIDIA ").removesuffix("...").strip().lower()
