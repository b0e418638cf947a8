"""`vllm-adapter plan`: how a model will run on devices, each line with its reason."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_adapter.cli.output import clean, emit_json
from vllm_adapter.errors import InputError

if TYPE_CHECKING:
    from vllm_adapter.planning.box import PlanBox
    from vllm_adapter.planning.demand import ModelDemand
    from vllm_adapter.planning.plan import ExecutionPlan
    from vllm_adapter.planning.workload import Workload

HELP: Final = "plan how a model runs on this machine, a report's, or a chip that is not here"
EXAMPLE: Final = """\
example:
  vllm-adapter plan ./Llama-3-8B                                  this machine
  vllm-adapter plan config.json --device-profile mi300x:8 --concurrency 64
  nvidia-smi | vllm-adapter plan ./Llama-3-8B --report -          another machine
  vllm-adapter plan config.json --report links.txt --device-profile h200
                                                    links and NUMA nodes of a report, of H200
  vllm-adapter plan config.json --device-profile h200 --vllm-args
  vllm-adapter plan config.json --device-profile h200 -- --max-num-seqs 32 --dtype float16
  vllm-adapter plan config.json --diff old.json new.json          two descriptors
  vllm-adapter plan config.json --diff ./adapter-1.0 ./adapter-1.1 --device-profile h200

MODEL is a folder with config.json, that file alone, a .gguf file, or package:NAME; no weights are
read and nothing is downloaded. What follows -- are your own flags for vLLM: they win.

exit code: 0 if it fits, 1 if not (then with what would make it fit) or if a --diff shows a change,
2 for bad input
"""


PASSES_ON: Final = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("model", metavar="MODEL", help="folder, config.json, .gguf, package:NAME")
    where = parser.add_mutually_exclusive_group()
    for option in ("--report", "--facts"):
        where.add_argument(
            option,
            dest="report",
            metavar="FILE",
            help="another machine: a tool's pasted output, or what `facts` wrote; - is stdin",
        )
    parser.add_argument(
        "--device-profile",
        metavar="NAME[:N]",
        help="N devices of a descriptor: mi300x, h200:8, or the path of one; with --report, which "
        "chip the devices are that it shows",
    )
    parser.add_argument("--context", type=int, metavar="N", help="tokens of a sequence")
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="sequences of that length at once"
    )
    parser.add_argument(
        "--objective",
        choices=("latency", "throughput"),
        default="throughput",
        help="default: throughput",
    )
    parser.add_argument("--vllm-args", action="store_true", help="print vLLM's flags alone")
    parser.add_argument("--html", metavar="FILE", help="also write a page with pictures")
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="what changes from A to B: descriptors, reports, profiles, or folders of an adapter",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the plan; see EXAMPLE for the exit code."""
    from vllm_adapter.planning.advice import ask_adapter
    from vllm_adapter.planning.demand import demand_of
    from vllm_adapter.planning.plan import make_plan

    own: tuple[str, ...] = args.passed_on
    _check(args)
    demand = demand_of(args.model)
    asked = workload(args.context, args.concurrency, args.objective, own)
    if args.diff is not None:
        return _diff(args, demand, asked)
    box = _box(args)
    plan = make_plan(demand, box, asked, ask_adapter(demand, box))
    if args.html is not None:
        from vllm_adapter.files import write_atomic
        from vllm_adapter.planning.page import page

        write_atomic(Path(args.html), page(plan, own))
    if args.json:
        emit_json({**plan.to_json(), "vllm_serve": plan.command(own)})
    elif args.vllm_args and not plan.fits:
        from vllm_adapter.planning.render import head, what_would_fit

        for line in (*list(head(plan))[-1:], *what_would_fit(plan)):
            print(clean(line), file=sys.stderr)
    elif args.vllm_args:
        print(shlex.join([*plan.flags(), *own]))
    else:
        from vllm_adapter.planning.render import plan_text

        for line in plan_text(plan, own):
            print(clean(line))
    return 0 if plan.fits else 1


def workload(
    context: int | None, concurrency: int | None, objective: str, own: tuple[str, ...]
) -> Workload:
    """What is asked for, with the operator's own flags for vLLM."""
    from vllm_adapter.planning.operator_flags import own_values
    from vllm_adapter.planning.workload import Objective, Workload

    kind: Objective = "latency" if objective == "latency" else "throughput"
    return Workload(context, concurrency, kind, own_values(own))


def _check(args: argparse.Namespace) -> None:
    if args.json and args.vllm_args:
        raise InputError("--json and --vllm-args exclude each other", hint="take one of them")
    if args.diff is not None and (args.html or args.vllm_args or args.report):
        raise InputError(
            "--diff takes no --html, --vllm-args and --report", hint="its two sides say all"
        )


def _box(args: argparse.Namespace) -> PlanBox:
    from vllm_adapter.planning.profiles import box_of_profile
    from vllm_adapter.planning.sources import box_of_machine

    if args.report is None and args.device_profile is not None:
        return box_of_profile(args.device_profile)
    return box_of_machine(args.report, args.device_profile)


def _diff(args: argparse.Namespace, demand: ModelDemand, asked: Workload) -> int:
    from vllm_adapter.planning.advice import ask_adapter
    from vllm_adapter.planning.diff import differences
    from vllm_adapter.planning.plan import make_plan
    from vllm_adapter.planning.render import diff_text
    from vllm_adapter.planning.sources import box_named

    plans: list[ExecutionPlan] = []
    for text in args.diff:
        box = box_named(text, args.device_profile)
        plans.append(make_plan(demand, box, asked, ask_adapter(demand, box)))
    changes = differences(*plans)
    if args.json:
        emit_json(
            {
                "before": plans[0].box.to_json(),
                "after": plans[1].box.to_json(),
                "changes": [one.to_json() for one in changes],
            }
        )
    else:
        for word, plan in zip(("before", "after"), plans, strict=True):
            print(clean(f"{word}: {plan.box.origin} ({plan.box.capability.origin})"))
        for line in diff_text(changes):
            print(clean(line))
    return 1 if changes else 0
