"""The worker's side of a run: checks cases one by one, and leaves after one that failed."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.judge import waivers
from vllm_adapter_conformance.judge.journal import Journal, JournalReader
from vllm_adapter_conformance.judge.outcome import BLOCKED, PASS, Result, blocker, ended
from vllm_adapter_conformance.plan.suite import SuiteItem, make_plan
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run.execution import open_bench, run_item

OPEN: Final = "L1.device.open"
"""The rule whose limit holds for opening the device."""
LEFT: Final = "(allocations were left behind; the next case gets a new process)"


def fault_file(journal: Path, pid: int) -> Path:
    """Where a worker's stacks go when it crashes, or when its parent asks before ending it."""
    return journal.with_name(f"{journal.name}.{pid}.stacks")


class Worker:
    """Holds the device, which the first case that needs it opens, for all cases of the process."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        os.environ["VA_FALLBACK"] = "error"  # also for direct calls, which read the environment
        self.target = Target.from_json(order["target"])
        self.plan = make_plan(self.target, order["level"], registered(), only=order["only"])
        self.bench = open_bench(self.target, Path(order["scratch"]))
        path = Path(order["journal"])
        self._journal, self._reader = Journal(path), JournalReader(path)
        self._waivers = waivers.shipped()
        self._leave = False
        self._stacks = fault_file(path, os.getpid()).open("w")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Sends stacks to our file: pytest's own plugin has sent them to stderr before."""
        faulthandler.enable(self._stacks)
        faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """After a failure the device's state is not to be trusted: a new process goes on."""
        if self._leave:
            self._journal.write("leave", item=item.nodeid)
            os._exit(0)

    def run(self, item: SuiteItem) -> Result:
        """Checks a case, unless a rule that it needs has failed."""
        self._reader.new()
        why = blocker(item.rule, self.plan, ended(self._reader.events))
        if why is not None:
            result = Result(item.id, BLOCKED, blocked_by=why)
        else:
            self._open_first(item)
            self._begin(item, item.case.seconds or item.rule.seconds)
            self.bench.say = partial(self._progress, item)
            before = self._live()
            result = run_item(self.bench, item, self._waivers)
            if result.outcome == PASS and self._leaked(before):
                result = replace(result, note=f"{result.note} {LEFT}".lstrip())
                self._leave = True
            elif result.outcome != PASS:
                self._leave = self._is_open
        self._journal.write("end", **result.to_json())
        return result

    def _progress(self, item: SuiteItem, text: str) -> None:
        self._journal.write("progress", item=item.id, text=text)

    def _begin(self, item: SuiteItem, limit: float) -> None:
        self._journal.write(
            "begin", item=item.id, pid=os.getpid(), limit=limit, at=time.monotonic()
        )

    def _open_first(self, item: SuiteItem) -> None:
        """Opens the device in a new worker, with its own limit: it is no part of the case."""
        opening = registered()[OPEN]
        if item.rule.level == "L0" or item.rule.id == OPEN or self._is_open:
            return
        self._begin(item, opening.seconds)
        with suppress(Exception):  # the case itself meets the error again, and reports it
            _ = self.bench.opened

    @property
    def _is_open(self) -> bool:
        return "opened" in vars(self.bench)

    def _leaked(self, before: int) -> bool:
        """Whether allocations are left that were not there before; cycles are broken up first."""
        if self._live() <= before:
            return False
        gc.collect()  # slow where torch is loaded, hence not at every case
        return self._live() > before

    def _live(self) -> int:
        """Allocations that nobody has freed; where they cannot be counted, more than any.

        Tensors are not counted, also where the runtime does: a plan keeps its own for good.
        """
        if not self._is_open:
            return 0
        from vllm_adapter.engine.runtime import RuntimeAdapter

        try:
            opened = self.bench.opened
            stats = RuntimeAdapter.memory_stats(opened.runtime, opened.record.index)
            return stats.live_allocations
        except Exception:
            return 1 << 62
