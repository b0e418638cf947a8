"""The part of `serve` that plans: flags and environment of the plan, beside the operator's own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.errors import InputError

if TYPE_CHECKING:
    from vllm_adapter.planning.plan import ExecutionPlan

_CPU_SPACE: Final = "VLLM_CPU_KVCACHE_SPACE"
"""vLLM's own variable: GiB of KV cache on a CPU, which overrides the flag.

# upstream: vllm@v0.32.0 vllm/platforms/cpu.py:324
"""


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What is added to the operator's line. `plan` is None where there is none; `why` says so."""

    plan: ExecutionPlan | None = None
    why: str = ""
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "applied": self.plan is not None,
            "why": self.why,
            "flags": list(self.flags),
            "environment": dict(self.environment),
            "lines": [one.to_json() for one in self.plan.lines] if self.plan else [],
        }


def add_plan(parser: argparse.ArgumentParser) -> None:
    """The options about the plan."""
    parser.add_argument(
        "--plan",
        choices=("apply", "off"),
        default="apply",
        help="add the flags and environment that `vllm-adapter plan` gives for this machine "
        "(default), where MODEL is a folder here; your own flags win; off: add nothing",
    )
    parser.add_argument("--explain", action="store_true", help="print the reasons of the plan")
    parser.add_argument(
        "--objective",
        choices=("latency", "throughput"),
        default="throughput",
        help="what the plan is for (default: throughput)",
    )


def planned(args: argparse.Namespace, adapter: str | None) -> ServePlan:
    """The plan for this machine's devices, which `adapter` will serve.

    Raises:
        InputError: the model does not fit; the hint says how to see what would make it fit.
    """
    why = _why_not(args)
    if why:
        return ServePlan(why=why, notes=(f"not planned: {why}",))
    from vllm_adapter.planning.advice import ask_adapter
    from vllm_adapter.planning.demand import demand_of
    from vllm_adapter.planning.operator_flags import own_values
    from vllm_adapter.planning.plan import make_plan
    from vllm_adapter.planning.workload import Workload
    from vllm_adapter_doctor.cli.plan_box import box_for

    own = own_values(args.flags)
    space = os.environ.get(_CPU_SPACE, "")
    if space.isdigit() and int(space) and adapter == "cpu":
        own["kv_bytes"] = str(int(space) << 30)
    try:
        demand, box = demand_of(args.model), box_for(None)
    except InputError as error:
        return ServePlan(why=error.message, notes=(f"not planned: {error.message}",))
    if adapter != box.adapter:
        serving = adapter or "no adapter of ours"
        why = f"the devices chosen here are {box.adapter}'s, and {serving} serves"
        return ServePlan(why=why, notes=(f"not planned: {why}",))
    plan = make_plan(
        demand, box, Workload(None, None, args.objective, own), ask_adapter(demand, box)
    )
    if not plan.fits:
        from vllm_adapter.planning.render import head

        raise InputError(
            f"{args.model}: {' '.join(list(head(plan))[-1].split())}",
            hint=f"`vllm-adapter plan {args.model}` says what would make it fit; --plan off "
            "starts without a plan",
        )
    return _added(plan)


def _why_not(args: argparse.Namespace) -> str:
    if args.plan == "off":
        return "--plan off"
    if any(word == "--config" or word.startswith("--config=") for word in args.flags):
        return "--config holds flags of yours, which flags of a plan would override"
    if not Path(args.model).exists():
        return f"{args.model} is no folder here, and nothing is downloaded: vLLM's defaults stand"
    return ""


def _added(plan: ExecutionPlan) -> ServePlan:
    """The plan's flags and variables, without what the operator has set; that is said."""
    notes = [
        f"your own value of {line.key} is kept: {line.value}"
        for line in plan.lines
        if line.owner == "operator"
    ]
    environment = {}
    for name, value in plan.environment().items():
        if name in os.environ:
            notes.append(f"your own {name}={os.environ[name]} is kept, not {value} of the plan")
        else:
            environment[name] = value
    return ServePlan(plan, "", plan.flags(), environment, (*notes, *plan.notes))
