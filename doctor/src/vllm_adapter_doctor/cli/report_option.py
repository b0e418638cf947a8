"""`--report FILE|-`: the machine that a command speaks of is this one, or that of a report."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_adapter.hostfacts.facts import HostFacts


def add_report(parser: argparse.ArgumentParser) -> None:
    """Adds `--report FILE` to a command; FILE is - for standard input."""
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="another machine's facts: a tool's pasted output, or what `facts` wrote; - for stdin",
    )


def host_facts(args: argparse.Namespace) -> HostFacts:
    """The facts of `args.report`, or where it is None those of this machine, its tools asked.

    Raises:
        InputError: the report cannot be read.
    """
    if args.report is not None:
        from vllm_adapter_doctor.report.read import read_report

        return read_report(args.report)
    return live_facts()


def live_facts() -> HostFacts:
    """The facts of this machine, with the device nodes that installed adapters look for.

    A terminal sees on stderr how many tools have answered.
    """
    from vllm_adapter.discovery import registry
    from vllm_adapter.settings import Settings
    from vllm_adapter_doctor.live.whole import collect_all

    globs = registry.node_globs(registry.scan(Settings.from_environ()))
    if not sys.stderr.isatty():
        return collect_all(node_globs=globs)
    try:
        return collect_all(node_globs=globs, on_progress=_tell)
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _tell(done: int, total: int) -> None:
    sys.stderr.write(f"\r\x1b[Kasking this machine's tools: {done} of {total} have answered")
    sys.stderr.flush()
