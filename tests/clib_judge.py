"""Rules of the conformance suite against C libraries, each library in a process of its own.

    echo '[["libfaulty.so", ["L1.stream.wait"]]]' | python tests/clib_judge.py

A library stands in for the simulated accelerator's, whose descriptor it has. The last line printed
is JSON: for each library, by rule, how many cases passed and what the first other one says.
Imports are done once: the processes are forks of this one, which opens no device.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "adapters/sim/src/vllm_adapter_sim"
LIMIT_S = 600.0
"""For one library: far more than it needs on a busy machine."""
Verdict = Mapping[str, tuple[int, str | None]]
"""By rule: cases that passed, and the first failure."""


def judge(jobs: Sequence[tuple[Path, Sequence[str]]], **variables: str) -> list[Verdict]:
    """Runs this file. A process that the library ends, or that hangs, fails all of its rules."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([[str(library), list(rules)] for library, rules in jobs]),
        env=os.environ | {"VA_FALLBACK": "warn"} | variables,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S * (len(jobs) + 1),
        check=True,
    )
    found: list[Verdict] = json.loads(done.stdout.splitlines()[-1])
    return found


def target() -> Any:
    """The simulated accelerator as a probe would find it; nothing has to be installed."""
    from vllm_adapter.contract.capability import load_capability
    from vllm_adapter.contract.manifest import read_manifest
    from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
    from vllm_adapter.hostfacts.facts import HostFacts
    from vllm_adapter_conformance.base.target import Target

    manifest = read_manifest(PACKAGE / "adapter.json")
    (file,) = manifest.capability_files()
    devices = tuple(
        DeviceRecord(i, f"sim:{i}", "Simulated accelerator", "sim48", file) for i in range(2)
    )
    record = AdapterRecord(
        "sim",
        "vllm-adapter-sim",
        "0",
        "vllm_adapter_sim",
        Status.OK,
        manifest=manifest,
        path=PACKAGE,
        devices=devices,
    )
    return Target(record, HostFacts(), load_capability(file), devices[0])


def run(rules: Sequence[str]) -> Verdict:
    """Runs the rules' cases on the library of VA_LIBRARY; a rule stops at its first failure."""
    from vllm_adapter_conformance.base.bench import Bench
    from vllm_adapter_conformance.base.rule import Case
    from vllm_adapter_conformance.plan.suite import SuiteItem
    from vllm_adapter_conformance.rules import registered
    from vllm_adapter_conformance.run.execution import run_item

    subject, found = target(), {}
    bench = Bench(subject)
    for id in rules:
        passed, failure = 0, None
        for case in registered()[id].cases(subject):
            if not isinstance(case, Case):
                continue
            result = run_item(bench, SuiteItem(registered()[id], case))
            if result.outcome != "pass":
                failure = f"{case.id}: {result.message}"
                break
            passed += 1
        found[id] = passed, failure
    return found


def in_fork(library: str, rules: Sequence[str]) -> Verdict:
    """`run` in a child, which a faulty library may take with it."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ["VA_LIBRARY"] = library
        with os.fdopen(theirs, "w", encoding="utf-8") as out:
            out.write(json.dumps(run(rules)))
        os._exit(0)  # a faulty library's threads may never end
    os.close(theirs)
    said, until = b"", time.monotonic() + LIMIT_S
    while select.select([ours], [], [], max(0, until - time.monotonic()))[0]:
        part = os.read(ours, 65536)
        if not part:
            break
        said += part
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said:
        found: Verdict = json.loads(said)
        return found
    return dict.fromkeys(rules, (0, f"the process ended, or hung: status {status}"))


def main() -> None:
    """Judges the jobs of standard input."""
    import torch  # noqa: F401 # once, for all children
    import transformers.models.llama.modeling_llama  # noqa: F401 # as above

    import vllm_adapter.engine.device  # noqa: F401 # as above
    from vllm_adapter_conformance.rules import registered

    registered()
    print(json.dumps([in_fork(library, rules) for library, rules in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
