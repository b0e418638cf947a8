"""The table of who runs what, and metrics beside vLLM's, in the process that serves."""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from vllm_adapter.engine.integrations.vllm import policy, who_runs

_log: Final = logging.getLogger("vllm_adapter.integrations")
_EVERY_S: Final = 5.0
"""Seconds between two looks at what the workers have written."""
_ATTENTION: Final = ("paged_attention", "attention")
_SERVES: Final = "ApiServer"
"""In the name of a child process that serves. # upstream: vllm@0.32 v1/utils.py"""
_MARK: Final = "_vllm_adapter"


def install() -> None:
    """Has vLLM's manager of statistics call us, too: when the engine is up, and at each step.

    Where a release has no such class, or no statistics are kept, there is neither. An engine's
    and a worker's process keep none, and are spared the import.
    """
    name = multiprocessing.current_process().name
    if multiprocessing.parent_process() is not None and _SERVES not in name:
        return
    from vllm.v1.metrics import loggers

    manager: Any = getattr(loggers, "StatLoggerManager", None)
    if manager is None or hasattr(manager, _MARK):
        return
    setattr(manager, _MARK, True)
    # upstream: vllm@0.32 v1/metrics/loggers.py:1421 and 1451
    ready, record = manager.log_engine_initialized, manager.record

    def log_engine_initialized(self: Any) -> None:
        ready(self)
        chosen = policy.in_use()
        if chosen is not None:
            with _harmless():
                self._adapter_metrics = _Metrics(chosen)
                self._adapter_metrics.announce()

    def recording(
        self: Any, scheduler_stats: Any, iteration_stats: Any, *more: Any, **named: Any
    ) -> None:
        record(self, scheduler_stats, iteration_stats, *more, **named)
        metrics = getattr(self, "_adapter_metrics", None)
        if metrics is not None:
            with _harmless():
                metrics.count(iteration_stats)

    manager.log_engine_initialized = log_engine_initialized
    manager.record = recording


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """A count that fails is said, and ends no server."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if text not in _said:
            _said.add(text)
            _log.warning("the metrics of who runs what fail: %s", text)


_said: Final[set[str]] = set()


class _Metrics:
    """Ours are named without vLLM's name: it unregisters every metric that has that in its own."""

    def __init__(self, chosen: policy.ActiveAdapter) -> None:
        self._chosen = chosen
        self._looked = 0.0
        self._provider = who_runs.VLLM
        common = ("adapter", "provider")
        self._operators = _metric(
            "Gauge", "va_operator", "Who runs an operator: 1", (*common, "operator", "why")
        )
        self._host = _metric(
            "Gauge",
            "va_host_operators",
            "Calls of torch's operators that ran on the host for want of a kernel",
            ("adapter", "operator"),
        )
        self._tokens = _metric(
            "Counter", "va_tokens", "Tokens, by who runs attention", (*common, "kind")
        )
        self._requests = _metric(
            "Counter", "va_requests", "Requests that have ended, by who runs attention", common
        )

    def announce(self) -> None:
        """Prints the table on stderr, where the adapter's choice was printed."""
        table = self._look()
        chosen = self._chosen
        head = f"who runs what on {chosen.device} ({chosen.shape} shape):"
        for line in (head, *(f"  {line}" for line in table.text().splitlines())):
            print(f"vllm-adapter: {line}", file=sys.stderr, flush=True)

    def count(self, stats: Any) -> None:
        """One step's tokens and ended requests, an IterationStats of vLLM's, or None."""
        if stats is None:
            return
        labels = self._chosen.record.name, self._provider
        # upstream: vllm@0.32 v1/metrics/stats.py:474
        for kind in ("prompt", "generation"):
            self._tokens.labels(*labels, kind).inc(getattr(stats, f"num_{kind}_tokens", 0))
        self._requests.labels(*labels).inc(len(getattr(stats, "finished_requests", ())))
        if time.monotonic() - self._looked > _EVERY_S:
            self._look()

    def _look(self) -> who_runs.WhoRuns:
        self._looked = time.monotonic()
        table, name = who_runs.read_all(who_runs.folder()), self._chosen.record.name
        for row in table.rows:
            self._operators.labels(name, row.provider, row.operator, row.why).set(1)
            if row.operator in _ATTENTION:
                self._provider = row.provider
        for operator, number in table.fallbacks.items():
            self._host.labels(name, operator).set(number)
        return table


def _metric(kind: str, name: str, text: str, labels: tuple[str, ...]) -> Any:
    """A metric of Prometheus's own registry; the one that is there, from an engine before."""
    prometheus: Any = importlib.import_module("prometheus_client")  # comes with vLLM
    known: Any = getattr(prometheus.REGISTRY, "_names_to_collectors", {})
    found = known.get(name)
    return found or getattr(prometheus, kind)(name, text, labels)
