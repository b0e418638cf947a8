"""`vllm-adapter certify`: runs the conformance suite and writes the certificate."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter_conformance.base.rule import LEVELS, SPEED, level_to_open
from vllm_adapter_conformance.base.target import BUDGET_S
from vllm_adapter_conformance.judge.grouping import FailureGroup, grouped, operator_of

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.target import Target
    from vllm_adapter_conformance.judge.journal import Event
    from vllm_adapter_conformance.judge.outcome import Result
    from vllm_adapter_conformance.run.runner import RunRequest

HELP: Final = "certify an adapter: run the conformance suite, write a certificate"
EXAMPLE: Final = """\
example:
  vllm-adapter certify cpu
  vllm-adapter certify acme --level L1 --device 1
  vllm-adapter certify ascend --level L1 --emulate sim
  vllm-adapter certify acme --level L5 --baseline certificates/acme-of-march.json
  vllm-adapter certify acme --case rms_norm --fail-fast        while a kernel is mended
  vllm-adapter certify acme --case 'L2.rms_norm.correct[*]' --seed 7
  vllm-adapter certify acme --level L3 --case L3. --list       which items there are

L0 looks at the package, and needs neither torch nor the device; L1 at the runtime; L2 at the
operators; L3 at whole models of transformers; L4 at real vLLM; L5 at speed and endurance: the
device's own rates, operators' shares of them, half an hour of mixed load. A level needs all below
it.

PATTERN of --case is an item's id, a part of one, or has * and ?. A run of chosen items, and one
that --fail-fast ends, says nothing of a level: no certificate is written. Failures of one cause
are one block, with a script that runs the first of them again.

Exit code 0: the level is reached, or with --case all chosen items pass; 1: not so; 2: the run
cannot be judged.
"""
DEFAULT: Final = "L2"
FOLDER: Final = Path("certificates")
MOST_MINUTES: Final = 10080.0
"""Of a load: a week."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("name", metavar="NAME", help="an installed adapter")
    parser.add_argument(
        "--level",
        choices=LEVELS,
        help="the level to reach (L2, or the one that --case begins with)",
    )
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="PATTERN",
        help="run only items of that name; repeatable; no certificate is written",
    )
    parser.add_argument(
        "--fail-fast", action="store_true", help="end at the first failure, without a certificate"
    )
    parser.add_argument("--list", action="store_true", help="print the items and run none")
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
    parser.add_argument(
        "--sign",
        metavar="KEYFILE",
        type=Path,
        help="sign the certificate with this Ed25519 key: FILE.sig beside it",
    )
    parser.add_argument(
        "--sigstore",
        action="store_true",
        help="sign the certificate with your identity at Sigstore, online: FILE.sigstore.json",
    )
    parser.add_argument("--verbose", action="store_true", help="one line a case")


def run(args: argparse.Namespace) -> int:
    """0 if the level is reached, or all chosen items pass."""
    from vllm_adapter.cli.output import emit_json, warn
    from vllm_adapter.errors import InputError
    from vllm_adapter_conformance.cli.sign import signer
    from vllm_adapter_conformance.plan.choice import level_of
    from vllm_adapter_conformance.plan.find_target import find_target, fresh_seed
    from vllm_adapter_conformance.run.reproduce import clean_up, write_all
    from vllm_adapter_conformance.run.runner import RunRequest, run_suite
    from vllm_adapter_doctor.serving.before_start import look_at

    sign = signer(args)
    level = args.level or level_of(args.case) or DEFAULT
    if args.case and args.output:
        raise InputError(
            "a certificate is of all items, and --case chooses some: there is none to write",
            hint="leave out --output, or --case",
        )
    # Asked first, so that what is missing is a sentence of ours and not of pytest.
    seed = fresh_seed() if args.seed is None else args.seed
    target = find_target(
        args.name,
        level_to_open(level, args.case),
        device=args.device,
        seed=seed,
        budget=args.budget,
        emulate=args.emulate,
    )
    kind = "" if args.emulate is None else "-emulated"
    file = args.output or FOLDER / f"{args.name}-{level}{kind}.json"
    target = _with_speed(args, level, target, file)
    chosen = _chosen(target, level, args.case) if args.case or args.list else []
    if args.list:
        _print_items(chosen, as_json=args.json)
        return 0
    if level != "L0" and args.emulate is None:  # which open no device of the machine
        look_at(args.name, args.device, warn)
    if not args.case:  # a run of chosen items says nothing of a level
        for sentence in _lacking(target, level):
            warn(sentence)
    order = RunRequest(
        args.name,
        level,
        args.device,
        seed,
        None if args.case else file,
        cases=chosen,
        emulate=args.emulate,
        budget=args.budget,
        minutes=target.minutes,
        baseline=target.baseline,
        fail_fast=args.fail_fast,
    )
    with _Follower(f"{args.name} {level}", verbose=args.verbose) as follower:
        suite = run_suite(order, follower)
    certificate, signatures = None, []
    if not args.case and not suite.stopped:
        certificate = json.loads(file.read_text(encoding="utf-8"))
        signatures = sign(file, certificate)
    results = _in_order(certificate, suite.results)
    groups = grouped(r for r in results if r.outcome in ("fail", "waived"))
    scripts = write_all(file.parent / "repro", order, [group.first for group in groups])
    clean_up(file.parent / "repro", order, suite.results, scripts.values())
    good = (
        certificate["level_reached"] == level
        if certificate
        else all(r.outcome in ("pass", "waived") for r in results)
    )
    if args.json:
        emit_json(
            {
                "ok": good,
                "file": str(file) if certificate else None,
                "signatures": [str(path) for path in signatures],
                "certificate": certificate,
                "items": [_item_json(result) for result in results],
                "failures": [_group_json(group, scripts) for group in groups],
            }
        )
        return 0 if good else 1
    _report_failures(groups, scripts, order, certificate)
    if certificate:
        _report(certificate, file)
        for path in signatures:
            print(f"signature: {path}")
    else:
        _report_chosen(order, suite.results, chosen)
    return 0 if good else 1


def _chosen(target: Target, level: str, patterns: Sequence[str]) -> list[str]:
    """The items that the patterns mean; all of them without a pattern."""
    from vllm_adapter_conformance.plan.choice import choose
    from vllm_adapter_conformance.plan.suite import make_plan
    from vllm_adapter_conformance.rules import registered

    ids = [item.id for item in make_plan(target, level, registered()).items]
    return choose(ids, patterns, level) if patterns else ids


def _print_items(ids: Sequence[str], *, as_json: bool) -> None:
    from vllm_adapter.cli.output import clean, emit_json

    if as_json:
        emit_json({"items": list(ids)})
        return
    print("\n".join(clean(id) for id in ids))


def _item_json(result: Result) -> dict[str, Any]:
    """An item of a run, as --json has it."""
    return {
        "item": result.item,
        "outcome": result.outcome,
        "seconds": result.seconds,
        "error": None if result.share is None or result.share == math.inf else result.share,
        "message": result.message,
        "cause": result.cause or None,
    }


def _group_json(group: FailureGroup, scripts: Mapping[str, Path]) -> dict[str, Any]:
    """Failures of one cause, as --json has them."""
    return {
        "operator": operator_of(group.first),
        "outcome": group.first.outcome,
        "cause": group.first.cause or None,
        "count": len(group.results),
        "first": group.first.item,
        "message": group.first.message,
        "items": [result.item for result in group.results],
        "repro": str(scripts[group.first.item]),
    }


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


def _with_speed(args: argparse.Namespace, level: str, target: Target, file: Path) -> Target:
    """The target with what L5 is given.

    Raises:
        InputError: the level is another one, or the minutes are none.
        CertificateError: the baseline cannot be used.
    """
    from dataclasses import replace

    from vllm_adapter.errors import InputError
    from vllm_adapter_conformance.performance.baseline import with_baseline

    if level < SPEED:
        for option, given in (("--minutes", args.minutes), ("--baseline", args.baseline)):
            if given is not None:
                raise InputError(
                    f"{option} is of {SPEED}, and {level} was asked for",
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


def _in_order(
    certificate: Mapping[str, Any] | None, results: Mapping[str, Result]
) -> list[Result]:
    """The journal's results; of a certificate's cases in its order, with the settled outcome."""
    from dataclasses import replace

    if certificate is None:
        return list(results.values())
    found = []
    for rule in certificate["rules"]:
        for case in rule["cases"]:
            result = results[f"{rule['rule']}[{case['case']}]"]
            found.append(replace(result, outcome=case["outcome"]))
    return found


def _report_failures(
    groups: Sequence[FailureGroup],
    scripts: Mapping[str, Path],
    order: RunRequest,
    certificate: Mapping[str, Any] | None,
) -> None:
    from vllm_adapter.cli.output import clean, colour
    from vllm_adapter_conformance.judge.messages import group_lines

    device = certificate["device"] if certificate else None
    where = f"seed {order.seed}"
    where += f", {device['torch']} ({device['name']})" if device else ""
    for group in groups:
        first, *rest = group_lines(group)
        waived = group.first.outcome == "waived"
        mark = colour("waived", "yellow") if waived else colour("FAILED", "red")
        print(f"{mark} {clean(first)}")
        print("\n".join(clean(line) for line in rest))
        print(f"  with      {clean(where)}")
        print(f"  again     python {clean(scripts[group.first.item])}\n")


def _report(certificate: Mapping[str, Any], file: Path) -> None:
    from vllm_adapter.cli.output import clean, colour

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


def _report_chosen(
    order: RunRequest, results: Mapping[str, Result], chosen: Sequence[str]
) -> None:
    """The last lines of a run that has no certificate."""
    from vllm_adapter.cli.output import clean, colour

    outcomes = Counter(result.outcome for result in results.values())
    passed, ran = outcomes["pass"], len(results)
    good = outcomes.keys() <= {"pass", "waived"}
    text = f"{order.adapter}: {passed} of {ran} items pass"
    if order.fail_fast and not good:
        text += "; --fail-fast ended the run there"
        text += f", {len(chosen) - ran} of {len(chosen)} did not run" if chosen else ""
    print(colour(clean(text), "green" if good else "red"))
    others = {kind: n for kind, n in outcomes.items() if kind != "pass"}
    print("  ".join(f"{kind} {n}" for kind, n in {"pass": passed, **others}.items()))
    why = "--case chose the items" if chosen else "--fail-fast ended the run"
    print(f"no certificate is written: {why}; seed {order.seed} repeats it")


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
