"""The table and the metrics of the process that serves, over a manager and metrics of our own."""

from __future__ import annotations

import sys
import types
from collections import Counter
from typing import ClassVar

import pytest

from vllm_adapter.engine.integrations.vllm import metrics, policy, who_runs
from vllm_adapter.settings import Settings

pytestmark = pytest.mark.null


class FakeMetric:
    """A Gauge or Counter: values by name and labels, in `kept`."""

    kept: ClassVar = Counter()

    def __init__(self, name, text, labels):
        self.name, self.count = name, len(labels)

    def labels(self, *values):
        assert len(values) == self.count
        self.at = (self.name, *values)
        return self

    def set(self, value):
        self.kept[self.at] = value

    def inc(self, value):
        self.kept[self.at] += value


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """vLLM's manager of statistics, with ours in it, in a process with an adapter in use."""

    class StatLoggerManager:
        def log_engine_initialized(self):
            self.is_ready = True

        def record(self, scheduler_stats, iteration_stats, **named):
            self.last = iteration_stats

    made = {
        "vllm.v1.metrics": {"loggers": None},
        "vllm.v1.metrics.loggers": {"StatLoggerManager": StatLoggerManager},
        "prometheus_client": {
            "Gauge": FakeMetric,
            "Counter": FakeMetric,
            "REGISTRY": types.SimpleNamespace(_names_to_collectors={}),
        },
    }
    for name in ("vllm", "vllm.v1", *made):
        module = types.ModuleType(name)
        vars(module).update(made.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["vllm.v1.metrics"].loggers = sys.modules["vllm.v1.metrics.loggers"]
    monkeypatch.setattr(FakeMetric, "kept", Counter())
    monkeypatch.setenv("VA_SELECTION", str(tmp_path / "s.json"))
    who_runs.forget()
    record = types.SimpleNamespace(name="sim")
    policy.use(policy.ActiveAdapter(record, "sim:0", None, Settings(), None, "generic"))
    metrics.install()
    metrics.install()  # as in a second engine of the process
    yield StatLoggerManager()
    policy.use(None)
    who_runs.forget()


def step(prompt, generation, finished):
    return types.SimpleNamespace(
        num_prompt_tokens=prompt,
        num_generation_tokens=generation,
        finished_requests=[object()] * finished,
    )


def test_the_table_ends_the_start_and_steps_are_counted_by_provider(manager, capsys):
    who_runs.note_fallbacks({"aten::sort": 3})
    who_runs.note("paged_attention", "sim", "the device's own adapter")
    who_runs.note("linear", who_runs.VLLM, "no adapter in use declares linear")
    manager.log_engine_initialized()
    said = capsys.readouterr().err.splitlines()
    assert manager.is_ready and len(said) == 4
    assert said[0] == "vllm-adapter: who runs what on sim:0 (generic shape):"
    manager.record(None, step(5, 1, 0), engine_idx=0)
    manager.record(None, step(0, 2, 1))
    manager.record(None, None)
    kept = FakeMetric.kept
    assert kept["va_operator", "sim", "sim", "paged_attention", "the device's own adapter"] == 1
    assert kept["va_tokens", "sim", "sim", "prompt"] == 5
    assert kept["va_tokens", "sim", "sim", "generation"] == 3
    assert kept["va_requests", "sim", "sim"] == 1
    assert kept["va_host_operators", "sim", "aten::sort"] == 3
    assert manager.last is None


def test_without_an_adapter_in_use_nothing_is_said_or_counted(manager, capsys):
    policy.use(None)
    manager.log_engine_initialized()
    manager.record(None, step(5, 1, 0))
    assert capsys.readouterr().err == "" and not FakeMetric.kept


def test_a_metric_that_fails_is_said_once_and_ends_nothing(manager, monkeypatch, caplog):
    def fails(self, value):
        raise RuntimeError("no room")

    manager.log_engine_initialized()
    monkeypatch.setattr(FakeMetric, "inc", fails)
    monkeypatch.setattr(metrics, "_said", set())
    for _ in range(3):
        manager.record(None, step(5, 1, 0))
    assert caplog.text.count("RuntimeError: no room") == 1
    assert manager.last is not None
