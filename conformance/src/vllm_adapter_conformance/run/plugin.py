"""The pytest plugin: `pytest --pyargs vllm_adapter_conformance --adapter NAME`.

It is loaded in every pytest run of an environment that has the suite, so it imports pytest alone
and does nothing unless --adapter is given; its other options exist only then, since their names
are short. The parent process plans and judges (`controller`), one worker runs the cases
(`worker`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from vllm_adapter_conformance.judge.outcome import Result
    from vllm_adapter_conformance.plan.suite import SuiteItem

OPTION: Final = "--adapter"
SUITE: Final = Path(__file__).parents[1]
"""The package's folder, which `--pyargs vllm_adapter_conformance` makes pytest collect."""
WORDS: Final = {
    "blocked": ("blocked", "b", "BLOCKED"),
    "waived": ("waived", "w", "WAIVED"),
    "requeued": ("", "", ""),
}
"""Outcomes beside pytest's own: category, letter and word. A re-queued item is not shown."""


class CaseNotPassed(Exception):
    """How pytest learns of a case that did not pass."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.message)
        self.result = result


class RuleItem(pytest.Item):
    """One case of one rule."""

    def __init__(self, *, planned: SuiteItem, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.planned = planned

    def runtest(self) -> None:
        worker = self.config.pluginmanager.getplugin("vllm_adapter_worker")
        if worker is None:
            raise pytest.UsageError("the cases of the suite run in its own worker only")
        result = worker.run(self.planned)
        if result.outcome != "pass":
            raise CaseNotPassed(result)

    # Ours is text alone, where pytest's may be a table of its own.
    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # type: ignore[override]
        if not isinstance(excinfo.value, CaseNotPassed):
            return str(excinfo.getrepr(style="short"))
        from vllm_adapter_conformance.judge.messages import failure_lines

        # Without the id, which pytest prints: its summary shows the first line.
        lines = failure_lines(excinfo.value.result)
        return "\n".join(line.removeprefix("  ") for line in lines[1:] or lines)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        # pytest rewrites a domain that is the end of the id, hence the summary behind it.
        return self.path, None, f"{self.name}: {self.planned.rule.summary}"


class RuleCollector(pytest.Directory):
    """The suite's package as a collector: its items come from the plan, not from files."""

    def collect(self) -> Iterator[pytest.Item]:
        for item in self.config.stash[PLAN].items:
            yield RuleItem.from_parent(self, name=item.id, nodeid=item.id, planned=item)


PLAN: Final = pytest.StashKey[Any]()
TARGET: Final = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("vllm-adapter conformance")
    group.addoption(
        OPTION,
        metavar="NAME",
        help="certify this adapter: pytest --pyargs vllm_adapter_conformance --adapter NAME "
        "[--level L0|L1|L2|L3|L4|L5] [--device N] [--seed S] [--budget SECONDS] "
        "[--emulate NAME] [--minutes N] [--baseline FILE] [--certificate FILE] [--case ID]",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    if not any(word == OPTION or word.startswith(f"{OPTION}=") for word in args):
        return
    from vllm_adapter_conformance.base.rule import LEVELS
    from vllm_adapter_conformance.base.target import BUDGET_S

    group = parser.getgroup("vllm-adapter conformance")
    group.addoption("--level", choices=LEVELS, default="L2", help="highest level")
    group.addoption("--device", type=int, default=0, metavar="N", help="the device's index")
    group.addoption("--seed", type=int, metavar="S", help="of an earlier run, to repeat its cases")
    group.addoption(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help="for the drawn cases",
    )
    group.addoption("--emulate", metavar="NAME", help="run L1 on this adapter's emulated device")
    group.addoption("--minutes", type=float, metavar="N", help="how long L5's load runs")
    group.addoption("--baseline", metavar="FILE", help="hold L5's speeds against this certificate")
    group.addoption("--certificate", metavar="FILE", help="write the certificate here")
    group.addoption("--journal", metavar="FILE", help="keep the run's journal here")
    group.addoption(
        "--case", action="append", default=[], metavar="ID", help="run this item only; repeatable"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if config.getoption("adapter", None) is None or hasattr(config, "workerinput"):
        return
    from vllm_adapter.errors import VllmAdapterError
    from vllm_adapter_conformance.run.controller import prepare

    try:
        config.stash[TARGET], config.stash[PLAN] = prepare(config)
    except VllmAdapterError as error:
        raise pytest.UsageError(str(error)) from None
    # One worker that xdist replaces after every end of it, each item being worth two of them.
    config.option.dist = "load"
    config.option.numprocesses = 1
    config.option.tx = ["popen"]
    config.option.maxworkerrestart = str(2 * len(config.stash[PLAN].items) + 2)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("adapter", None) is None:
        return
    if hasattr(config, "workerinput"):
        from vllm_adapter_conformance.run.worker import Worker

        worker = Worker(config.workerinput["vllm_adapter"])
        config.stash[TARGET], config.stash[PLAN] = worker.target, worker.plan
        config.pluginmanager.register(worker, "vllm_adapter_worker")
    else:
        from vllm_adapter_conformance.run.controller import Controller

        controller = Controller(config, config.stash[TARGET], config.stash[PLAN])
        config.pluginmanager.register(controller, "vllm_adapter_controller")


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if path != SUITE or PLAN not in parent.config.stash:
        return None
    return RuleCollector.from_parent(parent, path=path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    # pluggy sends the report into the generator, which its types do not say
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if call.excinfo is not None and isinstance(call.excinfo.value, CaseNotPassed):
        outcome = call.excinfo.value.result.outcome
        if outcome in WORDS:
            # pytest types three outcomes; a plug-in may have more
            report.outcome = outcome  # type: ignore[assignment]
    return report  # type: ignore[return-value]


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    return WORDS.get(report.outcome)
