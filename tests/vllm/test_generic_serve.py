"""`vllm-adapter serve` on the simulated device: an answer, the table of who runs what, metrics."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import tiny_llama
import torch
from plain_vllm import drawn, saved, with_tokenizer

pytest.importorskip("vllm_adapter_sim", reason="adapters/sim is built with a C compiler")
pytestmark = [pytest.mark.vllm, pytest.mark.slow]

LIMIT_S = 900
NEW = 8


@torch.no_grad()
def greedy(model, prompt):
    kept = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(torch.tensor([prompt]), **kept)[0, len(prompt) :].tolist()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ask(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode()


def is_healthy(port):
    try:
        ask(port, "/health")
    except (urllib.error.URLError, OSError):
        return False
    return True


def test_it_answers_says_who_runs_what_and_leaves_nothing(vllm_environ, tmp_path):
    model = tiny_llama.tiny("qwen3").eval()
    folder = with_tokenizer(saved(model, tmp_path / "model"))
    port = free_port()
    flags = f"--host 127.0.0.1 --port {port} --served-model-name tiny --dtype float32"
    flags += " --enforce-eager --max-model-len 256 --gpu-memory-utilization 0.05"
    with tempfile.TemporaryDirectory() as short, (tmp_path / "log").open("w") as log:
        environ = vllm_environ | {"VA_ADAPTERS": "sim", "TMPDIR": short}
        environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm_adapter.cli", "serve", str(folder), *flags.split()],
            env=environ,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + LIMIT_S
            while server.poll() is None and not is_healthy(port) and time.monotonic() < until:
                time.sleep(0.5)
            assert is_healthy(port), (tmp_path / "log").read_text()[-3000:]
            (prompt,) = drawn(5)
            asked = {"model": "tiny", "prompt": prompt, "max_tokens": NEW, "temperature": 0}
            answer = json.loads(ask(port, "/v1/completions", asked | {"ignore_eos": True}))
            text = answer["choices"][0]["text"]
            assert [int(word) for word in text.split()] == greedy(model, prompt)
            metrics = ask(port, "/metrics").splitlines()
            server.send_signal(signal.SIGTERM)
            assert server.wait(120) in (0, 143)
            assert not list(Path(short).glob("vllm-adapter-selection-*"))
        finally:
            server.kill()
            server.wait()
            left = processes_of(server.pid)
            if left:
                os.killpg(server.pid, signal.SIGKILL)
    ours = [line for line in metrics if line.startswith("va_")]
    assert any('operator="linear"' in one and 'provider="sim"' in one for one in ours)
    (made,) = [one for one in ours if 'kind="generation"' in one and "va_tokens_total" in one]
    assert 'provider="sim"' in made and float(made.rpartition(" ")[2]) == NEW
    said = (tmp_path / "log").read_text()
    assert said.count("who runs what on sim:0 (generic shape):") == 1
    with socket.socket() as again:
        # As servers do: a connection that was closed a moment ago does not hold the port.
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
    assert not left


def processes_of(group):
    """The processes of a group that are left."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            line = stat.read_text()
        except OSError:
            continue
        fields = line.rpartition(")")[2].split()
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(line)
    return found
