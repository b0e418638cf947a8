"""`vllm-adapter facts`: everything known of a machine, as one JSON document to keep or mail."""

from __future__ import annotations

import argparse
from typing import Final

from vllm_adapter.cli.output import emit_json
from vllm_adapter_doctor.cli.report_option import add_report, host_facts

HELP: Final = "print all facts of this machine, or of a pasted report, as JSON"
EXAMPLE: Final = """\
example:
  vllm-adapter facts > box.json              this machine: files, drivers, the vendors' tools
  vllm-adapter facts --report paste.txt      what a pasted report says
  vllm-adapter topology --report box.json    such a file on another machine

Secrets, host and user names, home folders, serial numbers and network addresses are left out.
Nothing needs root and nothing is written. What could not be read is listed under "unknown".
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_report(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the facts; always JSON, with or without `--json`; 0."""
    from vllm_adapter_doctor.report.document import to_document
    from vllm_adapter_doctor.report.private import public

    emit_json(to_document(public(host_facts(args))))
    return 0
