"""`vllm-adapter verify`: checks a certificate, here or against what is installed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import InputError

HELP: Final = "check a certificate: whole, true to its own rules, and of what is installed"
EXAMPLE: Final = """\
example:
  vllm-adapter verify certificates/cpu-L2.json
  vllm-adapter verify certificates/cpu-L2.json --against-installed --replay 5

An edited file is caught: digest, levels, counts and headline are computed anew. A file that was
edited and given a new digest is caught only by a signature, or by --replay on such a device.
Exit code 0: sound; 1: a fault was found; 2: the file or the adapter cannot be read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a certificate")
    parser.add_argument(
        "--against-installed",
        action="store_true",
        help="compare the files that were tested with the adapter that is installed here",
    )
    parser.add_argument(
        "--replay",
        metavar="K",
        type=int,
        default=0,
        help="run K cases again, drawn by chance, with the certificate's seed; compare outcomes",
    )
    parser.add_argument(
        "--device", type=int, default=0, metavar="N", help="device index for --replay (0)"
    )


def run(args: argparse.Namespace) -> int:
    """0 if nothing is wrong with it."""
    from vllm_adapter.cli.output import clean, colour, emit_json
    from vllm_adapter_conformance.certificate import claims, verification

    if args.replay < 0:
        raise InputError("--replay takes a number from zero up", hint="try --replay 5")
    document = verification.load(args.file)
    faults = verification.faults(document)
    if args.against_installed and not faults:
        faults += verification.against_installed(document)
    replayed: dict[str, Any] = {}
    if args.replay and not faults:
        replayed = _replay(document, args.replay, args.device)
        faults += [
            f"{id} was {was!r} and is {now!r} now"
            for id, (was, now) in replayed.items()
            if was != now
        ]
    notes = [] if faults else verification.notes(document)
    if args.json:
        emit_json({"ok": not faults, "faults": faults, "notes": notes, "replayed": [*replayed]})
        return 1 if faults else 0
    print(f"{clean(args.file)}: {colour('not sound', 'red') if faults else 'sound'}")
    for fault in faults:
        print(f"  {clean(fault)}")
    for note in notes:
        print(f"  note: {clean(note)}")
    for id in replayed:
        print(f"  replayed {clean(id)}")
    if not faults:
        print(clean(claims.headline(document)))  # derived here: the file's own is prose
    return 1 if faults else 0


def _replay(
    document: Mapping[str, Any], count: int, device: int
) -> dict[str, tuple[str, str | None]]:
    """Items that were run again: the certificate's outcome, and the present one."""
    import secrets

    from vllm_adapter_conformance.base.target import BUDGET_S
    from vllm_adapter_conformance.plan.find_target import find_target
    from vllm_adapter_conformance.run.runner import RunRequest, run_suite

    level, name = document["level_asked"], document["adapter"]["name"]
    run_before = {
        f"{rule['rule']}[{case['case']}]": case["outcome"]
        for rule in document["rules"]
        for case in rule["cases"]
        if case["outcome"] != "blocked"
    }
    # Not the certificate's seed: its author must not know which cases will be drawn.
    drawn = secrets.SystemRandom().sample(sorted(run_before), min(count, len(run_before)))
    budget = document.get("sampling", {}).get("budget_s", BUDGET_S)
    find_target(name, level, device=device, seed=document["seed"], budget=budget)
    order = RunRequest(name, level, device, document["seed"], cases=drawn, budget=budget)
    results = run_suite(order, lambda event: None).results
    return {id: (run_before[id], results[id].outcome if id in results else None) for id in drawn}
