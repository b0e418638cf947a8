"""Work that a device does not do itself: each kind is seen by a rule of L2.path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sim_library
from clib_judge import judge

pytestmark = pytest.mark.sim

PATHS = ("L2.path.link", "L2.path.host", "L2.path.latency")
ON_HOST = "{{ va_status w = sim_stream_synchronize({0}, {1}); return w ? w : {2}; }}"
QUEUED = {
    "linear.c": (
        "return sim_enqueue(x->device, args->stream, run_linear, &l, sizeof l);",
        ON_HOST.format("x->device", "args->stream", "run_linear(&l)"),
    ),
    "norm.c": (
        "return sim_enqueue(x->device, stream, run, n, sizeof *n);",
        ON_HOST.format("x->device", "stream", "run(n)"),
    ),
    "attention.c": (
        "return sim_enqueue(device, stream, run, a, sizeof *a);",
        ON_HOST.format("device", "stream", "run(a)"),
    ),
}
SLEEP = (
    "return sim_enqueue(x->device, args->stream, run_linear, &l, sizeof l);",
    "extern int usleep(unsigned);\n  usleep(6000);\n"
    "  return sim_enqueue(x->device, args->stream, run_linear, &l, sizeof l);",
)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory, c_folder, sim_path):
    libraries = {None: sim_path}
    for file, change in QUEUED.items():
        folder = tmp_path_factory.mktemp("host")
        libraries[file] = sim_library.changed(folder, c_folder, file, *change)
    folder = tmp_path_factory.mktemp("sleeps")
    libraries["sleeps"] = sim_library.changed(folder, c_folder, "linear.c", *SLEEP)
    asked = {None: PATHS, "sleeps": ("L2.path.latency",)}
    jobs = [(path, asked.get(name, ("L2.path.host",))) for name, path in libraries.items()]
    return dict(zip(libraries, judge(jobs), strict=True))


def test_a_device_that_does_its_own_work_passes(verdicts):
    assert {rule: failure for rule, (_, failure) in verdicts[None].items() if failure} == {}
    assert all(passed for passed, _ in verdicts[None].values())


@pytest.mark.parametrize(
    ("file", "op"), [("linear.c", "linear"), ("norm.c", "rms_norm"), ("attention.c", "attention")]
)
def test_a_function_that_computes_in_the_caller_s_thread_is_seen(verdicts, file, op):
    _, failure = verdicts[file]["L2.path.host"]
    assert failure is not None and f"{op}" in failure and "of the CPU time" in failure, failure


def test_a_function_that_sleeps_is_seen(verdicts):
    _, failure = verdicts["sleeps"]["L2.path.latency"]
    assert failure is not None and "linear: a small call within" in failure, failure


KERNELS = """
import torch
from vllm_adapter import generic


def linear(x, weight, bias, out_features):
    bias = None if bias is None else bias.cpu()
    return generic.linear(x.cpu(), weight.cpu(), bias, out_features).to(x.device)


def rms_norm(x, weight, eps):
    host = torch.empty(x.shape, dtype=x.dtype)
    host.copy_(x)
    return generic.rms_norm(host, weight.cpu(), eps).to(x.device)


def attention(query, key, value, query_start_loc, *rest):
    moved = (one.cpu() for one in (query, key, value, query_start_loc))
    return generic.attention(*moved, *rest).to(query.device)
"""
CHILD = """
import json, sys
from dataclasses import replace
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from clib_judge import run, target
import clib_judge
from vllm_adapter.contract.capability import parse_capability

subject = target()
raw = json.loads(json.dumps(subject.capability.raw))
for op in ("linear", "rms_norm", "attention"):
    raw["operators"][op] = raw["operators"][op] | {"run": f"over_the_link:{op}"}
file = sys.argv[1] + "/over_the_link.json"
open(file, "w").write(json.dumps(raw))
device = replace(subject.record.devices[0], capability_file=Path(file))
record = replace(subject.record, devices=(device,))
capability = parse_capability(raw, file)
clib_judge.target = lambda: replace(subject, record=record, capability=capability, device=device)
found = {}
for op in ("linear", "rms_norm", "attention"):
    found[op] = run([f"L2.{op}.correct"])[f"L2.{op}.correct"]
found["link"] = run(["L2.path.link"])["L2.path.link"]
print(json.dumps(found))
"""


def test_a_kernel_in_python_that_copies_to_the_host_is_seen(tmp_path, sim_path):
    """It is right in every case of its operator, and refused for where it does the work."""
    (tmp_path / "over_the_link.py").write_text(KERNELS, encoding="utf-8")
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), tests],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"VA_LIBRARY": str(sim_path), "VA_FALLBACK": "warn"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for op in ("linear", "rms_norm", "attention"):
        passed, failure = found[op]
        assert passed and failure is None, failure
    _, failure = found["link"]
    assert failure is not None and "linear: at most" in failure and "to the host" in failure
