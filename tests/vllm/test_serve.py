"""`vllm-adapter serve` with real vLLM: it says what it starts, and then it is the server."""

from __future__ import annotations

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

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

LIMIT_S = 300


@pytest.fixture
def temporary():
    """A temporary folder with a short name: vLLM puts sockets there."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_llama.tiny("qwen3").save_pretrained(folder)
    return folder


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_the_server_replaces_the_command_and_ends_by_sigterm(
    model, vllm_environ, temporary, tmp_path
):
    environ = vllm_environ | {
        "PYTHONPATH": "",  # so that the wheel's name is missing, and serve adds it
        "TMPDIR": str(temporary),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    port = free_port()
    flags = f"--host 127.0.0.1 --port {port} --dtype float32 --enforce-eager --max-model-len 64"
    words = ["serve", str(model), *flags.split(), "--skip-tokenizer-init"]
    ours = ["serve", "--grace", "0", "--plan", "off", *words[1:]]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm_adapter.cli", *ours],
            env=environ,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + LIMIT_S
        while server.poll() is None and not healthy(port) and time.monotonic() < until:
            time.sleep(0.5)
        text = (tmp_path / "log").read_text()
        assert server.poll() is None and healthy(port), text[-3000:]
        with open(f"/proc/{server.pid}/cmdline", encoding="utf-8") as file:
            assert file.read().split("\0")[1:4] == ["-m", "vllm.entrypoints.cli.main", "serve"]
        assert len(list(temporary.glob("vllm-adapter-selection-*.json"))) == 1
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
    first, *_ = text.splitlines()
    assert first.startswith("adapter: cpu on cpu: ")
    assert f"vllm serve: vllm {' '.join(words)}" in text
    assert text.count("vllm-adapter: adapter cpu serves cpu") == 1
    assert not list(temporary.glob("vllm-adapter-selection-*"))
