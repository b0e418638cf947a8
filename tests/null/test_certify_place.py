"""Where a certificate goes is settled before the run, and a user's file is never replaced."""

from __future__ import annotations

import pytest

from vllm_adapter.cli.main import main

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError("the run was started")

    monkeypatch.setattr("vllm_adapter_conformance.run.runner.subprocess.Popen", fails)


@pytest.mark.parametrize("name", ["folder", "notes.txt", "other.json", "notes.txt/x.json"])
def test_a_place_that_cannot_be_used_is_refused_at_once(name, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("keep me")
    (tmp_path / "other.json").write_text('{"schema": "vllm-adapter/manifest/1.0"}')
    assert main(["certify", "cpu", "--level", "L0", "--output", str(tmp_path / name)]) == 2
    assert "cannot keep the certificate in" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "keep me"


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["--seed", "-1"], {}, "--seed is a number from zero up"),
        (["--budget", "0"], {}, "--budget is a number of seconds above 0"),
        (["--budget", "nan"], {}, "--budget is a number of seconds above 0"),
        (["--level", "L0", "--device", "7"], {}, "L0 opens no device"),
        ([], {"VA_OPS": "rms_norm:torch"}, "judges the adapter's own kernels"),
    ],
)
def test_what_would_be_ignored_is_refused(words, variables, said, capsys, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["certify", "cpu", *words]) == 2
    assert said in capsys.readouterr().err
