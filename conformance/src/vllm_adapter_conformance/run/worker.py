"""The judge's side of a run: checks cases one by one, and outlives the device's process.

A refusal or a wrong number leaves the process as it was, and it goes on. It is replaced where it
ended or was silent, where the device does not give back what it is given after a failure, and
where a case left allocations behind.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from vllm_adapter.discovery.entry_files import AUTOLOAD
from vllm_adapter.engine.device_process.errors import ProcessEnded
from vllm_adapter_conformance.base.rule import SERVING
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.judge import waivers
from vllm_adapter_conformance.judge.journal import Journal, JournalReader
from vllm_adapter_conformance.judge.outcome import BLOCKED, PASS, Result, blocker, ended, failed
from vllm_adapter_conformance.plan.suite import SuiteItem, make_plan
from vllm_adapter_conformance.rules import _inside, registered
from vllm_adapter_conformance.run.execution import open_bench, process_failure, run_item

OPEN: Final = "L1.device.open"
"""The rule whose limit holds for opening the device."""
NO_DEVICE: Final = "L0"
CARE_S: Final = 20.0
"""For what is asked between two cases."""
LEFT: Final = "(allocations were left behind; the next case gets a new process)"


def fault_file(journal: Path, pid: int) -> Path:
    """Where a worker's stacks go when it crashes, or when its parent asks before ending it."""
    return journal.with_name(f"{journal.name}.{pid}.stacks")


class Worker:
    """Judges the cases. The device is in a process of its own, for all cases while it is sound."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        os.environ["VA_FALLBACK"] = "error"  # the device's process gets it
        self.target = Target.from_json(order["target"])
        self.plan = make_plan(self.target, order["level"], registered(), only=order["only"])
        self.bench = open_bench(self.target, Path(order["scratch"]), apart=True)
        path = Path(order["journal"])
        self._journal, self._reader = Journal(path), JournalReader(path)
        self._waivers = waivers.shipped()
        self._stacks = fault_file(path, os.getpid()).open("w")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Sends stacks to our file: pytest's own plugin has sent them to stderr before."""
        faulthandler.enable(self._stacks)
        faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=True)

    def pytest_sessionfinish(self) -> None:
        """Ends the device's process."""
        self.bench.end()

    def run(self, item: SuiteItem) -> Result:
        """Checks a case, unless a rule that it needs has failed."""
        self._reader.new()
        why = blocker(item.rule, self.plan, ended(self._reader.events))
        if why is not None:
            result = Result(item.id, BLOCKED, blocked_by=why)
        else:
            self._open_first(item)
            self._begin(item, item.rule.seconds)
            result = self._checked(item)
        self._journal.write("end", **result.to_json())
        return result

    def _checked(self, item: SuiteItem) -> Result:
        """The result of a case; what it leaves behind decides who gets the next one."""
        try:
            before = self._live()
            self.bench.allow(item.rule.seconds)
            result = run_item(self.bench, item, self._waivers)
            self.bench.allow(CARE_S)
            if not self.bench.is_open:
                return result
            if self._live() > before and self._live(collect=True) > before:
                self.bench.end()
                if result.outcome == PASS:
                    result = replace(result, note=f"{result.note} {LEFT}".lstrip())
            elif result.outcome != PASS and not self.bench.is_sound():
                self.bench.end()
        except ProcessEnded as died:  # between two cases
            result = failed(item, process_failure(died, CARE_S), None, None)
        return result

    def _begin(self, item: SuiteItem, limit: float) -> None:
        self._journal.write(
            "begin", item=item.id, pid=os.getpid(), limit=limit, at=time.monotonic()
        )

    def _open_first(self, item: SuiteItem) -> None:
        """Opens the device in a new process, with its own limit: it is no part of the case."""
        level, opening = item.rule.level, registered()[OPEN]
        if level == NO_DEVICE:
            return
        if level not in _inside.LEVELS:
            self.bench.leave_the_suite()
        if level == SERVING:
            self.bench.end()  # vLLM's own processes need the memory
            return
        self.bench.start()
        import_torch()
        if item.rule.id == OPEN or self.bench.is_open:
            return
        self._begin(item, opening.seconds)
        self.bench.allow(opening.seconds)
        with suppress(Exception):  # the case itself meets the error again, and reports it
            self.bench.open()

    def _live(self, *, collect: bool = False) -> int:
        return self.bench.live_allocations(collect=collect)


def import_torch() -> None:
    """Imports torch without what installed packages, an adapter's among them, have it load."""
    if "torch" in sys.modules:
        return
    before = os.environ.get(AUTOLOAD)
    os.environ[AUTOLOAD] = "0"
    try:
        import torch  # noqa: F401 # for what is imported later
    finally:
        del os.environ[AUTOLOAD]
        if before is not None:
            os.environ[AUTOLOAD] = before
