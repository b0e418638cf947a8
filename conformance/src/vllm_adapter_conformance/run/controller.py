"""The parent's side of a run: plans it, watches the worker, judges what the journal holds.

Neither it nor the worker, which judges, opens the device: that is in a process of its own. xdist
replaces a worker that has ended all the same; whether that was a crash or a hang is read from the
journal.
"""

from __future__ import annotations

import itertools
import signal
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from vllm_adapter.errors import VllmAdapterError
from vllm_adapter_conformance.base.rule import Failure, level_to_open
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.certificate.fingerprint import Census
from vllm_adapter_conformance.judge import waivers
from vllm_adapter_conformance.judge.journal import Journal, JournalReader, of, ran
from vllm_adapter_conformance.judge.outcome import FAIL, SKIPPED, Result, ended, failed, settle
from vllm_adapter_conformance.judge.outcome import waiver_of as waiver_for
from vllm_adapter_conformance.plan.find_target import find_target, fresh_seed
from vllm_adapter_conformance.plan.suite import SuiteItem, SuitePlan, make_plan
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run.watchdog import WorkerWatchdog
from vllm_adapter_conformance.run.worker import fault_file

INTERNAL_ERROR: Final = int(pytest.ExitCode.INTERNAL_ERROR)
_STACK_LINES: Final = 16
_RUNS: Final = f'{Path(__file__).with_name("execution.py")}"'
"""Marks the frame below which a stack is the suite's own and pytest's."""
_EXIT_S: Final = 5.0


def prepare(config: pytest.Config) -> tuple[Target, SuitePlan]:
    """The run's target and plan, from its options.

    Raises:
        VllmAdapterError: the adapter or its device cannot be used, or a --case is none.
    """
    option = config.option
    if option.case and option.certificate:
        raise VllmAdapterError(
            "a certificate is of all cases, and --case asks for some",
            hint="leave out --case, or --certificate",
        )
    target = find_target(
        option.adapter,
        level_to_open(option.level, option.case),
        device=option.device,
        seed=fresh_seed() if option.seed is None else option.seed,
        budget=option.budget,
        emulate=option.emulate,
    )
    target = replace(
        target,
        minutes=option.minutes,
        baseline=None if option.baseline is None else Path(option.baseline),
    )
    waivers.check(waivers.shipped(), registered().keys())
    plan = make_plan(target, option.level, registered(), only=option.case)
    known = {item.id for item in plan.items}
    for id in option.case:
        if id not in known:
            raise VllmAdapterError(
                f"{option.adapter} has no item {id} up to {option.level}",
                hint="`--collect-only -q` lists the items",
            )
    return target, plan


class Controller:
    """One run, seen from the parent."""

    def __init__(self, config: pytest.Config, target: Target, plan: SuitePlan) -> None:
        self.config, self.target, self.plan = config, target, plan
        self._folder = tempfile.TemporaryDirectory(prefix="vllm-adapter-")
        option = config.option
        path = Path(option.journal or Path(self._folder.name, "journal"))
        self._journal, self._reader = Journal(path), JournalReader(path)
        self._waivers = waivers.shipped()
        self._census = Census(target)
        self._watch = WorkerWatchdog(path, self._journal)
        self._collected: list[str] | None = None
        self._reported: set[str] = set()
        self._exits: dict[str, int | None] = {}

    def pytest_report_header(self) -> list[str]:
        """What is tested, and with what."""
        record, device = self.target.record, self.target.device
        where = f" on {device.torch} ({device.name})" if device else ""
        return [
            f"adapter: {record.name} ({record.distribution} {record.version}){where}",
            f"level: {self.config.option.level}, {len(self.plan.items)} items, "
            f"seed {self.target.seed}",
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Begins the journal and the watch over each case's limit."""
        self._journal.write("plan", items=len(self.plan.items))
        if self.config.option.certificate and not self.config.option.collectonly:
            self._census.start()
        self._watch.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Gives a new worker its order."""
        node.workerinput["vllm_adapter"] = {
            "target": self.target.to_json(),
            "level": self.config.option.level,
            "only": list(self.config.option.case),
            "journal": str(self._journal.path),
            "scratch": self._folder.name,
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Every worker must collect the same."""
        if self._collected is None:
            self._collected = list(ids)
        elif self._collected != list(ids):
            self._error("two workers collected different items")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Notes how a worker ended."""
        self._exits[node.gateway.id] = _exit_code(node) if error else 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(
        self, crashitem: str, report: pytest.TestReport, sched: Any
    ) -> None:
        """The worker ended while it had this item, or was ended for the one before."""
        self._reader.new()
        events = [e for e in self._reader.events if e.get("item") is not None]
        last = events[-1] if events else {"event": "", "item": ""}
        if last["event"] == "hang" and last["item"] != crashitem:
            # pytest types three outcomes; a plug-in may have more
            report.outcome = "requeued"  # type: ignore[assignment]
            sched.mark_test_pending(crashitem)
        else:
            result = self._post_mortem(self.plan.item(crashitem), report)
            self._journal.write("end", **result.to_json())
            report.when = "call"
            if result.outcome != FAIL:
                # as above
                report.outcome = result.outcome  # type: ignore[assignment]
            report.longrepr = result.message or ""
        # What the dead worker still had goes to the end; a rule must come after what it needs.
        sched.pending.sort()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts the items that were reported."""
        if report.when == "call":
            self._reported.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Settles all outcomes; writes the certificate; an incomplete run is an internal error."""
        self._watch.stop()
        if self.config.option.collectonly:
            return
        self._reader.new()
        results = settle(self.plan, self._reader.events)
        failed = any(result.outcome == FAIL for result in results.values())
        if self.config.option.maxfail and failed and not any(of(self._reader.events, "error")):
            # `-x` ends the run there: a verdict on what ran, and no certificate.
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        sentence = self._fault(results)
        if sentence is None and self.config.option.certificate:
            try:
                self._certify(results)
            except (VllmAdapterError, OSError) as error:
                sentence = str(error)
        if sentence is not None:
            self._error(sentence)
        if any(of(self._reader.events, "error")) or sentence is not None:
            session.exitstatus = INTERNAL_ERROR

    def pytest_unconfigure(self) -> None:
        """Removes what the run leaves behind."""
        self._watch.stop()
        self._journal.close()
        self._folder.cleanup()

    def _certify(self, results: dict[str, Result]) -> None:
        from vllm_adapter_conformance.certificate.document import build, write

        found = ran(self._reader.events)
        option, tested = self.config.option, self._census.settle(found)
        certificate = build(self.target, option.level, self.plan, results, tested, found.device)
        write(Path(option.certificate), certificate)

    def _fault(self, results: dict[str, Result]) -> str | None:
        """Why the run cannot be judged, or None."""
        planned = [item.id for item in self.plan.items]
        collected = self._collected or []
        silent = [id for id in collected if id not in results or id not in self._reported]
        skipped = [r.item for r in results.values() if r.outcome == SKIPPED]
        if silent:
            return f"{len(silent)} of {len(collected)} items were not reported: {silent[0]}"
        if skipped:
            return f"{skipped[0]} was skipped: {results[skipped[0]].seen}; a rule may not skip"
        if self.config.option.certificate and collected != planned:
            return f"{len(collected)} items were collected and {len(planned)} planned"
        return None

    def _post_mortem(self, item: SuiteItem, report: Any) -> Result:
        """The result of the case that ended its worker."""
        events = self._reader.events
        begun = [e for e in of(events, "begin") if e["item"] == item.id]
        hung = any(e["item"] == item.id for e in of(events, "hang"))
        how = _how(self._exits.get(report.node.gateway.id))
        stacks = _stacks(fault_file(self._journal.path, begun[-1]["pid"])) if begun else ""
        if hung:
            failure = Failure(f"an end within {begun[-1]['limit']:g} s", "none: it hangs")
        elif item.id in ended(events):
            failure = Failure("a worker that lives on after the case", f"the process {how}")
        elif begun:
            failure = Failure("the case to end", f"the process {how}")
        else:
            failure = Failure("the case to begin", f"the process {how} before it")
        failure.detail = stacks
        seconds = begun[-1]["limit"] if hung else None
        return failed(
            item, failure, seconds, waiver_for(self._waivers, self.target.record.name, item)
        )

    def _error(self, sentence: str) -> None:
        self._journal.write("error", sentence=sentence)
        self._reader.new()
        terminal = self.config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(f"INTERNAL ERROR: {sentence}", red=True)


def _exit_code(node: Any) -> int | None:
    """How the worker's process ended; None if execnet keeps that from us."""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is None:
        return None
    with suppress(Exception):
        return int(process.wait(timeout=_EXIT_S))
    return None


def _how(code: int | None) -> str:
    if code is None:
        return "ended without a word"
    if code >= 0:
        return f"left with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _stacks(file: Path) -> str:
    """The first lines of what the fault handler wrote: the guilty thread comes first."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    at = next((i for i, line in enumerate(lines) if line.startswith("Current thread")), 0)
    guilty = itertools.takewhile(lambda line: _RUNS not in line, lines[at : at + _STACK_LINES])
    return "\n".join(guilty)
