"""Kernels that somebody registers with torch past core, for another's or core's operators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_dist import environment

pytestmark = pytest.mark.device

TESTS = Path(__file__).parents[1]
IMPL = 'Library("vllm_adapter", "IMPL")'
TAKES = {
    "core's default": ("rms_norm", '{lib}.impl("rms_norm", stolen, "CPU")'),
    "core's own key": (
        "rms_norm",
        '{lib}.impl("rms_norm", stolen, "CompositeExplicitAutograd", allow_override=True)',
    ),
    "by name": ("rms_norm", 'torch.library.impl("vllm_adapter::rms_norm", "cpu")(stolen)'),
    "its fake": ("rms_norm", 'torch.library.register_fake("vllm_adapter::rms_norm", stolen)'),
    "its derivative": (
        "rms_norm",
        'torch.library.register_autograd("vllm_adapter::rms_norm", stolen)',
    ),
}
THIEF = """
import torch

def stolen(*args):
    return args[0] + 1

lib = torch.library.{impl}
def steal():
    {line}
"""
SCRIPT = """
import sys, torch
from vllm_adapter.engine.device import open_device
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.errors import AdapterError
open_device("cpu")
def bound(hidden):
    return bind(OpCase.of("{op}", "cpu", {facts})).run
bound(64)
import vllm_adapter_thief
vllm_adapter_thief.steal()
for attempt in (lambda: bound(32), lambda: open_device("cpu")):
    try:
        attempt()
    except AdapterError as error:
        print(error)
"""


def steal(site, name, line, script=SCRIPT, **words):
    package = site.make("thief")
    text = THIEF.format(impl=IMPL, line=line.format(lib="lib"))
    (package / "__init__.py").write_text(text, encoding="utf-8")
    facts = '{"dtype": "float32", "hidden": hidden}'
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script.format(op="rms_norm", facts=facts, **words)],
        env=environment(site.path),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("how", TAKES)
def test_a_foreign_registration_is_refused_with_who_made_it(site, how):
    name, line = TAKES[how]
    done = steal(site, name, line)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    errors = [line for line in said if "hint:" not in line]
    assert len(errors) == 2, done.stdout + done.stderr
    for sentence in errors:
        assert f"vllm_adapter::{name} was given a kernel for" in sentence
        assert "by adapter thief (vllm-adapter-thief), " in sentence
        assert "vllm_adapter_thief/__init__.py" in sentence


OVERLOAD = """
import sys, torch
from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.errors import AdapterError
sys.path.insert(0, "{tests}")
import vllm_adapter_thief
entry = {{"support": "full", "dtypes": ["float32"], "form": "kernel", "run": "op_kernels:norm"}}
raw = {{"schema": "vllm-adapter/capability/1.0", "operators": {{"rms_norm": entry}},
        "identity": {{"vendor": "Acme", "arch": "a1", "torch_type": "cpu"}}}}
PROVIDERS.use("acme", parse_capability(raw, "acme"), "cpu")
def run(hidden):
    case = OpCase.of("rms_norm", "cpu", {{"dtype": "float32", "hidden": hidden}})
    return bind(case).run(torch.ones(1, hidden), torch.ones(hidden), 0.0)
if {after}:
    assert run(64).eq(1).all()
vllm_adapter_thief.steal()
try:
    run(32)
except AdapterError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ('{lib}.impl("rms_norm.acme", stolen, "CPU", allow_override=True)', True),
        ('{lib}.impl("rms_norm.acme", stolen, "AutogradCPU")', True),
        (
            'f = torch.library.Library("vllm_adapter", "FRAGMENT"); globals()["f"] = f; '
            'f.define("rms_norm.acme(Tensor x, Tensor weight, float eps) -> Tensor"); '
            'f.impl("rms_norm.acme", stolen, "CPU")',
            False,
        ),
    ],
    ids=["after", "another key", "before"],
)
def test_an_adapter_s_overload_that_another_takes_is_refused(site, line, after):
    done = steal(site, "rms_norm.acme", line, OVERLOAD, tests=TESTS, after=after)
    assert done.returncode == 0, done.stderr
    assert "vllm_adapter::rms_norm.acme was " in done.stdout, done.stdout + done.stderr
    assert "by adapter thief (vllm-adapter-thief), " in done.stdout


RULE = """
import sys
sys.path.insert(0, "{tests}")
from pathlib import Path
from zoo import descriptor, first_failure, target_of
import vllm_adapter.engine.ops.bind
import vllm_adapter_thief
vllm_adapter_thief.steal()
print(first_failure(target_of("robbed", descriptor({{}}), Path("{folder}")), "L2.registrations"))
"""


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ('{lib}.impl("rms_norm", stolen, "CPU")', "vllm_adapter::rms_norm was given a kernel"),
        (
            'f = torch.library.Library("vllm_adapter", "FRAGMENT"); globals()["f"] = f; '
            'f.define("own_thing(Tensor x) -> Tensor")',
            "vllm_adapter::own_thing was defined",
        ),
        ("pass", None),
    ],
)
def test_the_rule_of_l2_names_it(site, line, seen, tmp_path):
    done = steal(site, "rms_norm", line, RULE, tests=TESTS, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    if seen is None:
        assert done.stdout.strip() == "None"
    else:
        assert "L2.registrations" in done.stdout and "outcome='fail'" in done.stdout
        assert seen in done.stdout


FIRST = """
global lib
lib = torch.library.Library("vllm_adapter", "FRAGMENT")
lib.define("rms_norm.{name}(Tensor x, Tensor weight, float eps) -> Tensor")
lib.impl("rms_norm.{name}", stolen, "CPU")
"""


@pytest.mark.parametrize("name", ["cpu", "acme"])
def test_an_overload_that_somebody_defined_first_is_refused(site, name):
    line = FIRST.format(name=name).strip().replace("\n", "\n    ")
    done = steal(site, "rms_norm", line)
    assert done.returncode == 0, done.stderr
    errors = [one for one in done.stdout.splitlines() if "hint:" not in one]
    assert len(errors) == 2, done.stdout + done.stderr
    for error in errors:
        assert f"vllm_adapter::rms_norm.{name} was defined by adapter thief" in error
