"""`--report FILE|-`: the machine that a command speaks of is this one, or that of a report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_adapter.host.facts import HostFacts


def add_report(parser: argparse.ArgumentParser) -> None:
    """Adds `--report FILE` to a command; FILE is - for standard input."""
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="another machine's facts: a tool's pasted output, or what `facts` wrote; - for stdin",
    )


def host_facts(args: argparse.Namespace, *, node_globs: Sequence[str] = ()) -> HostFacts:
    """The facts of `args.report`, or where it is None those of this machine.

    `node_globs` adds device nodes to look for on this machine (see `host.live.collect`).

    Raises:
        InputError: the report cannot be read.
    """
    if args.report is not None:
        from vllm_adapter.host.report import read_report

        return read_report(args.report)
    from vllm_adapter.host.live import collect

    return collect(node_globs=node_globs)
