"""A server as a child process: signals and exit codes pass through, and a loss ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_adapter_doctor.serving.supervised import SupervisedServer

pytestmark = pytest.mark.null

LIMIT_S = 60
SERVER = """
trap 'echo got TERM >> {log}; exit 0' TERM INT
echo up >> {log}
while :; do sleep 0.1; done
"""


@pytest.fixture
def supervise():
    """Starts a process that supervises a shell script, as `serve` does; ended with the test."""
    started = []

    def start(server, *more):
        program = f"""
import sys, threading
from vllm_adapter_doctor.serving.supervised import SupervisedServer
server = SupervisedServer(["/bin/sh", "-c", {server!r}], {{"PATH": "/usr/bin:/bin"}}, grace_s=1)
server.start()
print(server.pid, flush=True)
{"".join(more)}
sys.exit(server.wait())
"""
        command = [sys.executable, "-c", program]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def until(condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(("server", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_server_s_end_is_ours(supervise, server, code):
    process = supervise(server)
    assert process.wait(LIMIT_S) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_go_on_to_the_server(tmp_path, supervise, number):
    log = tmp_path / "log"
    process = supervise(SERVER.format(log=log))
    until(log.exists)
    process.send_signal(number)
    assert process.wait(LIMIT_S) == 0
    assert log.read_text().count("got") == 1


END = "threading.Thread(target=server.end, args=('lost',)).start()"


def test_a_loss_ends_the_server_with_exit_code_1(tmp_path, supervise):
    log = tmp_path / "log"
    wait = f"import os, time\nwhile not os.path.exists({str(log)!r}): time.sleep(0.02)\n"
    process = supervise(SERVER.format(log=log), wait, END)
    assert process.wait(LIMIT_S) == 1
    assert "got TERM" in log.read_text()


def test_a_server_that_does_not_end_is_killed(supervise):
    process = supervise("trap '' TERM; while :; do sleep 0.1; done", END)
    pid = int(process.stdout.readline())
    assert process.wait(LIMIT_S) == 1
    until(lambda: not alive(pid))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_a_killed_supervisor_leaves_no_server(tmp_path, supervise):
    log = tmp_path / "log"
    process = supervise(SERVER.format(log=log))
    pid = int(process.stdout.readline())
    until(log.exists)
    process.kill()
    process.wait(LIMIT_S)
    until(lambda: not alive(pid))
    assert "got TERM" in log.read_text()


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_an_unstartable_server_is_an_error():
    with pytest.raises(OSError):
        SupervisedServer(["/no/such/program"], {}).start()


WAITS = """
trap 'echo got TERM >> {log}' TERM
echo up >> {log}
while :; do sleep 0.1; done
"""


def test_a_server_that_waits_for_a_client_is_killed_after_the_grace(tmp_path):
    log = tmp_path / "log"
    program = f"""
import sys
from vllm_adapter_doctor.serving.supervised import SupervisedServer
server = SupervisedServer(
    ["/bin/sh", "-c", {WAITS.format(log=log)!r}], {{"PATH": "/usr/bin:/bin"}}, after_signal_s=0.3
)
server.start()
sys.exit(server.wait())
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    until(lambda: log.exists() and "up" in log.read_text())
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert said == "the server had not ended 0.3 s after SIGTERM: it is killed\n"
    assert log.read_text() == "up\ngot TERM\n"
