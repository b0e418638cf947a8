"""`vllm-adapter certify`: runs the conformance suite and writes the certificate."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter_conformance.base.rule import LEVELS, SPEED
from vllm_adapter_conformance.base.target import BUDGET_S

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.target import Target
    from vllm_adapter_conformance.judge.journal import Event
    from vllm_adapter_conformance.judge.outcome import Result

HELP: Final = "certify an adapter: run the conformance suite, write a certificate"
EXAMPLE: Final = """\
example:
  vllm-adapter certify cpu
  vllm-adapter certify acme --level L1 --device 1
  vllm-adapter certify ascend --level L1 --emulate sim
  vllm-adapter certify acme --level L5 --baseline certificates/acme-of-march.json

L0 looks at the package, and needs neither torch nor the device; L1 at the runtime; L2 at the
operators; L3 at whole models of transformers; L4 at real vLLM; L5 at speed and endurance: the
device's own rates, operators' shares of them, half an hour of mixed load. A level needs all below
it. Exit code 0: the level is reached; 1: it is not; 2: the run cannot be judged.
"""
FOLDER: Final = Path("certificates")
MOST_MINUTES: Final = 10080.0
"""Of a load: a week."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("name", metavar="NAME", help="an installed adapter")
    parser.add_argument("--level", choices=LEVELS, default="L2", help="the level to reach (L2)")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="device index (0)")
    parser.add_argument(
        "--seed",
        type=int,
        metavar="S",
        help="of an earlier certificate, to repeat its cases; without it each run draws its own",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help=f"about how long the drawn cases of L2 may take on one core ({BUDGET_S:g})",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where the certificate goes (certificates/NAME-LEVEL.json)",
    )
    parser.add_argument(
        "--emulate",
        metavar="NAME[:DESCRIPTOR]",
        help="run L1 on the emulated device of that adapter, under this one's torch device type; "
        "the certificate says so",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="how long L5's load runs (30; on a CPU 10); with fewer L5 is not reached",
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="the certificate below whose speeds L5 must not fall (the one that is replaced)",
    )
    parser.add_argument("--verbose", action="store_true", help="one line a case")


def run(args: argparse.Namespace) -> int:
    """0 if the level is reached."""
    from vllm_adapter.cli.output import emit_json, warn
    from vllm_adapter_conformance.plan.find_target import find_target, fresh_seed
    from vllm_adapter_conformance.run.reproduce import write_all
    from vllm_adapter_conformance.run.runner import RunRequest, run_suite
    from vllm_adapter_doctor.serving.before_start import look_at

    # Asked first, so that what is missing is a sentence of ours and not of pytest.
    seed = fresh_seed() if args.seed is None else args.seed
    target = find_target(
        args.name,
        args.level,
        device=args.device,
        seed=seed,
        budget=args.budget,
        emulate=args.emulate,
    )
    kind = "" if args.emulate is None else "-emulated"
    file = args.output or FOLDER / f"{args.name}-{args.level}{kind}.json"
    target = _with_speed(args, target, file)
    if args.level != "L0" and args.emulate is None:  # which open no device of the machine
        look_at(args.name, args.device, warn)
    for sentence in _lacking(target, args.level):
        warn(sentence)
    order = RunRequest(
        args.name,
        args.level,
        args.device,
        seed,
        file,
        emulate=args.emulate,
        budget=args.budget,
        minutes=target.minutes,
        baseline=target.baseline,
    )
    with _Follower(f"{args.name} {args.level}", verbose=args.verbose) as follower:
        suite = run_suite(order, follower)
    certificate = json.loads(file.read_text(encoding="utf-8"))
    results = suite.results
    failures = [r for r in _in_order(certificate, results) if r.outcome in ("fail", "waived")]
    scripts = write_all(file.parent / "repro", order, failures)
    reached = certificate["level_reached"] == args.level
    if args.json:
        emit_json({"ok": reached, "file": str(file), "certificate": certificate})
    else:
        _report(certificate, failures, scripts, file)
    return 0 if reached else 1


def _lacking(target: Target, level: str) -> list[str]:
    """What a level up to the one that is asked for needs and the adapter has no case of."""
    from dataclasses import replace

    from vllm_adapter_conformance.certificate import mustpass
    from vllm_adapter_conformance.certificate.requirements import sentences, shortfall
    from vllm_adapter_conformance.plan.suite import make_plan
    from vllm_adapter_conformance.rules import registered

    # Which rules have a case does not depend on how many points are drawn.
    plan = make_plan(replace(target, budget=0.01), level, registered())
    short = shortfall(target, plan, level, mustpass.committed())
    return [] if short is None else list(sentences(short))


def _with_speed(args: argparse.Namespace, target: Target, file: Path) -> Target:
    """The target with what L5 is given.

    Raises:
        InputError: the level is another one, or the minutes are none.
        CertificateError: the baseline cannot be used.
    """
    from dataclasses import replace

    from vllm_adapter.errors import InputError
    from vllm_adapter_conformance.performance.baseline import with_baseline

    if args.level < SPEED:
        for option, given in (("--minutes", args.minutes), ("--baseline", args.baseline)):
            if given is not None:
                raise InputError(
                    f"{option} is of {SPEED}, and {args.level} was asked for",
                    hint=f"--level {SPEED}, or leave out {option}",
                )
        return target
    if args.minutes is not None and not 0 < args.minutes <= MOST_MINUTES:
        raise InputError(
            f"--minutes is a number above 0 and up to {MOST_MINUTES:g}", hint="try --minutes 1"
        )
    return with_baseline(replace(target, minutes=args.minutes), args.baseline, file)


class _Follower:
    """Shows the run's events: a bar, or one line a case."""

    def __init__(self, label: str, *, verbose: bool) -> None:
        self._label, self._verbose = label, verbose
        self._progress: Any = None

    def __enter__(self) -> _Follower:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def __call__(self, event: Event) -> None:
        from vllm_adapter.cli.output import Progress, clean

        if event["event"] == "plan" and not self._verbose:
            self._progress = Progress(event["items"], self._label)
        elif event["event"] == "progress" and self._progress is not None:
            self._progress.note(f"{event['item']}: {event['text']}")
        elif event["event"] == "progress":
            print(clean(f"{'':<17}  {event['item']}: {event['text']}"), flush=True)
        elif event["event"] == "end" and self._progress is not None:
            self._progress.step(event["item"])
        elif event["event"] == "end":
            seconds = "-" if event["seconds"] is None else f"{event['seconds']:.2f} s"
            note = f"  {event['note']}" if event["note"] else ""
            print(clean(f"{event['outcome']:<8}{seconds:>9}  {event['item']}{note}"), flush=True)


def _in_order(certificate: Mapping[str, Any], results: Mapping[str, Result]) -> list[Result]:
    """The journal's results of the certificate's cases, whose outcome is the settled one."""
    from dataclasses import replace

    found = []
    for rule in certificate["rules"]:
        for case in rule["cases"]:
            result = results[f"{rule['rule']}[{case['case']}]"]
            found.append(replace(result, outcome=case["outcome"]))
    return found


def _report(
    certificate: Mapping[str, Any],
    failures: Sequence[Result],
    scripts: Mapping[str, Path],
    file: Path,
) -> None:
    from vllm_adapter.cli.output import clean, colour
    from vllm_adapter_conformance.judge.messages import failure_lines

    device = certificate["device"]
    where = f"seed {certificate['seed']}"
    where += f", {device['torch']} ({device['name']})" if device else ""
    for result in failures:
        first, *rest = failure_lines(result)
        mark = "waived" if result.outcome == "waived" else "FAILED"
        print(f"{colour(mark, 'yellow' if result.outcome == 'waived' else 'red')} {clean(first)}")
        print("\n".join(clean(line) for line in rest))
        print(f"  with      {clean(where)}\n  again     python {clean(scripts[result.item])}\n")
    for rule in certificate["rules"]:
        blocked = [case for case in rule["cases"] if case["outcome"] == "blocked"]
        if blocked:
            print(f"blocked {rule['rule']}: {len(blocked)} case(s), by {blocked[0]['blocked_by']}")
    reached = certificate["level_reached"] == certificate["level_asked"]
    print(colour(clean(certificate["headline"]), "green" if reached else "red"))
    counts = certificate["counts"]
    _report_sampling(certificate)
    _report_performance(certificate)
    print("  ".join(f"{kind.replace('_', ' ')} {n}" for kind, n in counts.items()))
    print(f"certificate: {clean(file)}")


def _report_sampling(certificate: Mapping[str, Any]) -> None:
    """How many cases were drawn, with what, and which boundaries nobody has been to."""
    found = certificate.get("sampling")
    if found is None:
        return
    operators = found["operators"].values()
    draws = sum(one["draws"] for one in operators)
    missed = sum(len(one["not_visited"]) for one in operators)
    print(
        f"drawn: {draws} points of the operators' spaces (seed {certificate['seed']}); "
        f"{missed} boundary values not visited within {found['budget_s']:g} s"
    )


def _report_performance(certificate: Mapping[str, Any]) -> None:
    """The device's own rates, and the ends of what operators reach of them."""
    found = certificate.get("performance")
    if found is None:
        return
    from vllm_adapter_conformance.performance.summary import summary

    for line in summary(found):
        print(line)
