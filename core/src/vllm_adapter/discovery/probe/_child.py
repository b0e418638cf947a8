"""The child that `isolation` starts: probes adapters in turn, answers over a pipe of its own.

    python -m vllm_adapter.discovery.probe._child FD < order.json

The order is a JSON object: `names`, `records` and `host` (as their `to_json` writes them), `path`
(the parent's sys.path) and `limit_s` (of all names together, as `TimeGiven` counts). FD receives
one JSON list a line: ["begin", name] before anything of that adapter is imported, then ["end",
name, answer].

    python -m vllm_adapter.discovery.probe._child NAME

probes one adapter without any guard, to see a crash or a hang with one's own eyes.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from typing import Any

from vllm_adapter.discovery.adapter import probe_command
from vllm_adapter.discovery.entry_files import let_torch_be_imported
from vllm_adapter.discovery.probe._guard import signalled, stand_guard
from vllm_adapter.discovery.probe.probing import examine
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.time_given import TimeGiven


def main() -> None:
    """Serves one order and leaves at once: a vendor's exit handlers are not our risk to take."""
    word = sys.argv[1]
    if not word.isdecimal():
        return _by_hand(word)
    stand_guard()
    given = TimeGiven(os.getpid())
    channel = int(word)
    os.set_inheritable(channel, False)
    os.dup2(2, 1)
    order = json.load(sys.stdin.buffer)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[:] = order["path"]
    let_torch_be_imported()
    host = HostFacts.from_json(order["host"])
    for name in order["names"]:
        _send(channel, "begin", name)
        # Just before the parent gives up, stderr gets the line that hangs: by the clock, which is
        # never behind, and again as long as the parent waits.
        remaining = max(order["limit_s"] - given.look(), 0.5)
        faulthandler.dump_traceback_later(remaining * 0.9, repeat=True)
        answer = examine(AdapterRecord.from_json(order["records"][name]), host, limit_s=remaining)
        faulthandler.cancel_dump_traceback_later()
        trespass = signalled()
        if trespass:
            broken = {"status": "broken", "reason": f"its probe {trespass}", "devices": []}
            answer |= broken | {"next_step": probe_command(name)}
        sys.stdout.flush()
        sys.stderr.flush()
        _send(channel, "end", name, answer)
    os._exit(0)


def _by_hand(name: str) -> None:
    from vllm_adapter.discovery.registry import host_for, located, scan
    from vllm_adapter.settings import Settings

    records = scan(Settings.from_environ())
    let_torch_be_imported()
    host = host_for(records)
    for record in located(records, host):
        if record.name == name and record.status is None:
            print(json.dumps(examine(record, host), indent=2))


def _send(channel: int, *message: Any) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(channel, data) :]


if __name__ == "__main__":
    main()
