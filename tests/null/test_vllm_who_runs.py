"""The table of who runs what: written by each process, read by the one that serves."""

from __future__ import annotations

import json

import pytest

from vllm_adapter.broker.selection_file import operators_folder
from vllm_adapter.engine.integrations.vllm import who_runs
from vllm_adapter.engine.integrations.vllm.who_runs import CORE, VLLM, OperatorRow

pytestmark = pytest.mark.null


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """The folder of a tree of processes, of which this is one."""
    monkeypatch.setenv("VA_SELECTION", str(tmp_path / "s.json"))
    who_runs.forget()
    yield operators_folder(tmp_path / "s.json")
    who_runs.forget()


def test_what_is_noted_is_read_by_another_process(shared):
    who_runs.note("rms_norm", "sim", "the device's own adapter")
    who_runs.note("linear", VLLM, "no adapter in use declares linear")
    who_runs.note("linear", VLLM, "a second reason, of another layer")
    (shared / "1.json").write_text(
        json.dumps({"rows": [vars_of("linear", "sim", "x")], "host": {"aten::sort": 2}})
    )
    table = who_runs.read_all(who_runs.folder())
    assert [(r.operator, r.provider) for r in table.rows] == [
        ("linear", "sim"),
        ("linear", VLLM),
        ("rms_norm", "sim"),
    ]
    assert table.rows[1].why == "no adapter in use declares linear"
    assert table.fallbacks == {"aten::sort": 2}
    lines = table.text().splitlines()
    assert len(lines) == 4 and lines[0].split("  ")[0].strip() == "operator"


def vars_of(operator, provider, why):
    return {"operator": operator, "provider": provider, "why": why}


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"rows": []})])
def test_a_torn_or_foreign_file_counts_as_none(shared, content):
    shared.mkdir()
    (shared / "2.json").write_text(content)
    who_runs.note("linear", "sim", "x")
    assert who_runs.read_all(shared).rows == (OperatorRow("linear", "sim", "x"),)


def test_counts_of_the_host_are_written_at_most_once_a_second(shared, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(who_runs.time, "monotonic", lambda: now[0])
    who_runs.note_fallbacks({"aten::sort": 1})
    who_runs.note_fallbacks({"aten::sort": 2})
    assert who_runs.read_all(shared).fallbacks == {"aten::sort": 1}
    now[0] += 2
    who_runs.note_fallbacks({"aten::sort": 3})
    assert who_runs.read_all(shared).fallbacks == {"aten::sort": 3}


@pytest.mark.parametrize("provider", [VLLM, CORE])
def test_that_nothing_is_gained_is_said(shared, provider):
    who_runs.note("linear", provider, "x")
    assert who_runs.read_all(shared).text().endswith("this is plain vLLM")
    who_runs.note("rms_norm", "sim", "y")
    assert "plain vLLM" not in who_runs.read_all(shared).text()


def test_without_a_shared_selection_nothing_is_kept(monkeypatch):
    monkeypatch.delenv("VA_SELECTION", raising=False)
    who_runs.forget()
    who_runs.note("linear", "sim", "x")
    assert who_runs.read_all(who_runs.folder()).rows == ()
    assert "this is plain vLLM" in who_runs.read_all(None).text()


def test_a_folder_that_cannot_be_written_is_said_once(shared, caplog):
    shared.write_text("a file in its place")
    who_runs.note("linear", "sim", "x")
    who_runs.note("rms_norm", "sim", "x")
    assert caplog.text.count("cannot be kept") == 1
