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
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from vllm_adapter.discovery.entry_files import AUTOLOAD
from vllm_adapter.engine.device_process.errors import ProcessEnded
from vllm_adapter_conformance.base.bench import LastWord
from vllm_adapter_conformance.base.rule import SERVING, Failure
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side.loaded import loaded_files
from vllm_adapter_conformance.judge import waivers
from vllm_adapter_conformance.judge.journal import Journal, JournalReader
from vllm_adapter_conformance.judge.outcome import (
    BLOCKED,
    PASS,
    Result,
    blocker,
    ended,
    failed,
    waiver_of,
)
from vllm_adapter_conformance.plan.suite import SuiteItem, make_plan
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run.execution import open_bench, run_item
from vllm_adapter_conformance.run.limits import limit_of, may_try_again, usual_of

NO_DEVICE: Final = "L0"
CARE_S: Final = 20.0
"""For what is asked between two cases."""
COMPILED: Final = "(beyond the case's usual limit: its kernel compiles at the first call)"
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
        self.bench = open_bench(self.target, Path(order["scratch"]), apart=True, hear=self._hear)
        path = Path(order["journal"])
        self._journal, self._reader = Journal(path), JournalReader(path)
        self._waivers = waivers.shipped()
        self._stacks = fault_file(path, os.getpid()).open("w")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Sends stacks to our file: pytest's own plugin has sent them to stderr before."""
        faulthandler.enable(self._stacks)
        faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Ends the device's process; then all that ran the cases, and judged them, is known."""
        self.bench.end()
        self._journal.write("judged", files=loaded_files())

    def run(self, item: SuiteItem) -> Result:
        """Checks a case, unless a rule that it needs has failed."""
        self._reader.new()
        why = blocker(item.rule, self.plan, ended(self._reader.events))
        if why is not None:
            result = Result(item.id, BLOCKED, blocked_by=why)
        else:
            self._start(item.rule.level)
            self.bench.say = partial(self._progress, item)
            result = self._tried(item)
            if may_try_again(item, self._reader.events):
                result = self._tried(item)
        self._journal.write("end", **result.to_json())
        return result

    def _tried(self, item: SuiteItem) -> Result:
        """The result of a case within the limit that it has now."""
        limit = limit_of(item, self._reader.events)
        self._begin(item, limit)
        result = self._checked(item, limit)
        self._reader.new()
        return result

    def _checked(self, item: SuiteItem, limit: float) -> Result:
        """The result of a case; what it leaves behind decides who gets the next one."""
        bench = self.bench
        try:
            before = bench.live_allocations()
        except ProcessEnded as died:
            return self._ended_between(item, "the case before", died)
        bench.begin(limit)
        result = run_item(bench, item, self._waivers)
        if result.outcome != PASS and bench.overdue:
            self._journal.write("overdue", item=item.id, limit=limit)
        elif result.outcome == PASS and bench.used > usual_of(item):
            result = replace(result, note=f"{result.note} {COMPILED}".lstrip())
        bench.allow(CARE_S)
        try:
            left = bench.live_allocations() > before
            if left and bench.live_allocations(collect=True) > before:
                bench.end()
                if result.outcome == PASS:
                    result = replace(result, note=f"{result.note} {LEFT}".lstrip())
            elif result.outcome != PASS and not bench.is_sound():
                bench.end()
        except ProcessEnded as died:
            if result.outcome == PASS:
                return self._ended_between(item, "the case", died)
        return result

    def _ended_between(self, item: SuiteItem, what: str, died: ProcessEnded) -> Result:
        failure = Failure(f"a process that lives on after {what}", str(died), detail=died.words)
        waiver = waiver_of(self._waivers, self.target.record.name, item)
        return failed(item, failure, None, waiver)

    def _progress(self, item: SuiteItem, text: str) -> None:
        self._journal.write("progress", item=item.id, text=text)

    def _hear(self, word: LastWord) -> None:
        """Keeps what a process of the device said of itself, before it ends."""
        self._journal.write(
            "loaded", files=list(word.files), device=dict(word.facts), silent=word.silent
        )

    def _begin(self, item: SuiteItem, limit: float) -> None:
        self._journal.write("begin", item=item.id, pid=os.getpid(), limit=limit)

    def _start(self, level: str) -> None:
        """Starts the device's process, if the level has one, while torch is imported here."""
        if level == SERVING:
            self.bench.end()  # vLLM's own processes need the memory
        elif level != NO_DEVICE:
            self.bench.start()
            import_torch()


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
