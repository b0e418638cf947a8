"""`vllm-adapter serve` on a device whose tool reports faults: a fake adapter, tool and vLLM."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from fake_dist import Site, environment
from fake_vllm import install_vllm

pytestmark = pytest.mark.null

LIMIT_S = 60
GPU = """
<gpu id="00000000:{bus}:00.0">
<product_name>NVIDIA H200</product_name>
<uuid>GPU-{bus}</uuid>
<serial>{state}</serial>
<fb_memory_usage>
<total>143771 MiB</total>
<used>4 MiB</used>
</fb_memory_usage>
<temperature>
<gpu_temp>{celsius} C</gpu_temp>
</temperature>
<clocks_event_reasons>
<clocks_event_reason_hw_thermal_slowdown>{hot}</clocks_event_reason_hw_thermal_slowdown>
</clocks_event_reasons>
</gpu>
"""


def box(first="", second=""):
    """What nvidia-smi prints of two devices, each in order, "hot" or "lost"."""
    gpus = "".join(
        GPU.format(
            bus=bus,
            celsius=93 if how == "hot" else 45,
            hot="Active" if how == "hot" else "Not Active",
            state="GPU is lost" if how == "lost" else "1650",
        )
        for bus, how in (("3b", first), ("5e", second))
    )
    return f"<nvidia_smi_log>\n<attached_gpus>2</attached_gpus>{gpus}</nvidia_smi_log>\n"


SERVER = """
import os, signal, sys, time
flag, _, file = sys.argv[-1].partition("=")
if flag == "--fails-when-there-is":
    while not os.path.exists(file):
        time.sleep(0.05)
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: (print("server got TERM", flush=True), os._exit(0)))
print("server sees", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
time.sleep(100)
"""


TORCH_MODULE = """
import types
import torch
torch.cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
"""


class Machine:
    """A site with a fake adapter named cuda, a fake vLLM, and a tool that says what it is told."""

    def __init__(self, folder):
        self.site = Site(folder / "site")
        self.site.path.mkdir()
        self.site.make("cuda", device={"torch_type": "cuda", "torch_module": "two_cards"})
        (self.site.path / "two_cards.py").write_text(TORCH_MODULE)
        main = install_vllm(self.site.path, version="0.32.0+cu130") / "entrypoints/cli/main.py"
        main.parent.mkdir(parents=True)
        for package in (main.parent, main.parent.parent):
            (package / "__init__.py").touch()
        main.write_text(SERVER)
        self.tools = folder / "bin"
        self.tools.mkdir()
        tool = self.tools / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n/bin/cat {self.tools}/now\n")
        tool.chmod(0o755)
        self.log = folder / "log"
        self.now(box())

    def now(self, text):
        (self.tools / "next").write_text(text)
        (self.tools / "next").rename(self.tools / "now")

    def serve(self, *words):
        environ = environment(
            self.site.path, VA_ADAPTERS="cuda", PATH=str(self.tools), CUDA_VISIBLE_DEVICES="0,1"
        )
        command = [sys.executable, "-m", "vllm_adapter.cli", "serve", *words]
        with self.log.open("w") as log:
            return subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)

    def until(self, text, process):
        end = time.monotonic() + LIMIT_S
        while text not in self.log.read_text():
            assert process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def started(machine):
    running = []

    def start(*words):
        running.append(machine.serve(*words))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_throttled_is_said_at_its_begin_and_end_and_lost_ends_the_server(machine, started):
    process = started("--watch", "1", "m")
    machine.until("server sees 0,1", process)
    machine.now(box("hot", "lost"))  # the second device is not the server's
    machine.until("held down by hw_thermal_slowdown", process)
    machine.now(box())
    machine.until("cuda:0 (0000:3b:00.0) is no longer throttled: 45 C [VA1702]", process)
    machine.now(box("lost"))
    assert process.wait(LIMIT_S) == 1
    log = machine.log.read_text()
    assert log.count("held down by") == 1
    assert "cuda device 0 (0000:3b:00.0): the kernel driver lost it" in log
    assert "[VA1701]: the server is ended" in log
    assert "server got TERM" in log
    assert "device 1" not in log


def test_sigterm_works_as_without_a_watch(machine, started):
    process = started("m")
    machine.until("server sees", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    assert machine.log.read_text().count("server got TERM") == 1


@pytest.mark.parametrize(("state", "code"), [("", 7), ("lost", 1)])
def test_a_server_that_fails_is_asked_why(machine, started, state, code, tmp_path):
    word = tmp_path / "fail"
    process = started("--watch", "30", "m", f"--fails-when-there-is={word}")
    if state:  # the device falls after the look before the start, and before the first one after
        machine.until("command:", process)
        machine.now(box(state))
    word.touch()
    assert process.wait(LIMIT_S) == code


NODES = """
from dataclasses import replace
from vllm_adapter.discovery import registry
from vllm_adapter.hostfacts.facts import DeviceNode
real, paths = registry.host_for, ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1")
nodes = tuple(DeviceNode(f"/dev/{name}", "char", True, True) for name in paths)
registry.host_for = lambda records: replace(real(records), nodes=nodes)
"""


def test_other_sets_the_visible_devices(machine, started):
    (machine.site.path / "sitecustomize.py").write_text(NODES)  # this box has no such nodes
    machine.now(box("lost"))
    process = started("--on-unhealthy", "other", "m")
    machine.until("server sees 1", process)
    log = machine.log.read_text()
    assert "cuda:1 of cuda's devices taken in place of it" in log
    assert "environment: CUDA_VISIBLE_DEVICES=1" in log


@pytest.mark.parametrize(
    ("state", "words", "code"),
    [
        ("lost", (), "VA1701"),
        ("hot", ("--on-unhealthy", "fail"), "VA1702"),
        ("hot", ("--on-unhealthy", "wait", "--wait-limit", "1"), "VA1702"),
    ],
)
def test_a_start_that_is_refused(machine, started, state, words, code):
    machine.now(box(state, state))
    assert started(*words, "m").wait(LIMIT_S) == 2
    log = machine.log.read_text()
    assert f"[{code}]\nhint: " in log
    assert log.count("error:") == 1
    assert "server sees" not in log


def test_a_tool_that_hangs_is_told_once_and_holds_nobody_up(machine, started):
    process = started("--watch", "1", "m")
    machine.until("server sees", process)
    (machine.tools / "nvidia-smi").write_text("#!/bin/sh\nexec /bin/sleep 100\n")
    machine.until("gave no answer within 5 s and was ended", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    assert machine.log.read_text().count("cannot be read") == 1


def test_the_doctor_says_the_same_of_this_box(machine):
    machine.now(box("lost", "hot"))
    environ = {"PATH": str(machine.tools)}
    done = machine.site.run("-m", "vllm_adapter.cli", "doctor", "--json", variables=environ)
    assert done.returncode == 1, done.stderr
    found = {one["code"]: one["cause"] for one in json.loads(done.stdout)["findings"]}
    assert found["VA1701"] == "cuda device 0 (0000:3b:00.0): the kernel driver lost it"
    assert found["VA1702"] == "cuda device 1 (0000:5e:00.0) is held down by hw_thermal_slowdown"


def test_without_a_watch_the_server_is_the_process_itself(machine, started):
    process = started("--watch", "0", "--grace", "0", "m")
    machine.until("server sees", process)
    with open(f"/proc/{process.pid}/cmdline", encoding="utf-8") as file:
        assert "vllm.entrypoints.cli.main" in file.read().split("\0")


@pytest.mark.parametrize("words", [("--watch", "0.5"), ("--watch", "x"), ("--wait-limit", "nan")])
def test_seconds_are_numbers(machine, started, words):
    assert started(*words, "m").wait(LIMIT_S) == 2
