"""State of planned operators, behind the `int plan` that their calls carry.

A handle never changes for one binding and KV cache, so that a compiled graph keeps it as a
constant; what is behind it changes once a step. Handle 0 means: no plan.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_adapter.engine.ops.spec import Fn
from vllm_adapter.engine.process_objects import process_object
from vllm_adapter.engine.registries import on_reset


@dataclass(slots=True)
class KernelPlan:
    """What one handle stands for now: the state for a kernel, and the kernel if it varies.

    `kept` holds each winner's state between its steps.
    """

    state: Any = None
    pick: Fn | None = None
    kept: dict[object, Any] = field(default_factory=dict)


PLANS: Final[list[KernelPlan]] = process_object("plans", lambda: [KernelPlan()])
"""By handle. A second import of this package goes on counting: older models keep theirs."""


@on_reset
def _forget() -> None:
    """No handle has a step; their numbers stay taken, for graphs hold them as constants."""
    for handle in range(len(PLANS)):
        PLANS[handle] = KernelPlan()


def new_handle(owner: object = None) -> int:
    """A handle of its own; what is behind it goes when its owner does."""
    PLANS.append(KernelPlan())
    handle = len(PLANS) - 1
    if owner is not None:
        weakref.finalize(owner, PLANS.__setitem__, handle, KernelPlan()).atexit = False
    return handle


def planned(run: Fn) -> Fn:
    """The operator's kernel for an implementation that takes its state in place of the handle."""

    def kernel(*args: Any) -> Any:
        return run(*args[:-1], PLANS[args[-1]].state)

    return kernel


def picked(*args: Any) -> Any:
    """The kernel of `<op>.selected`: whatever the last plan(step) chose."""
    pick = PLANS[args[-1]].pick
    if pick is None:
        raise RuntimeError("an operator that varies by phase was called before plan(step)")
    return pick(*args)
