"""A kernel may compile at its first call: a case over its limit is tried once more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_dist import environment
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter_conformance.base.rule import Case, Rule
from vllm_adapter_conformance.plan.suite import SuiteItem
from vllm_adapter_conformance.run import limits

pytestmark = pytest.mark.null

PLUGINS = Path(__file__).parents[1] / "suite_plugins"
KERNELS = """
import time

import torch

compiled = False


def rms_norm(x, weight, eps):
    global compiled
    if not compiled:
        time.sleep(SECONDS)
        compiled = True
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)
"""


def item(rule: str, case: str, seconds: float = 60.0) -> SuiteItem:
    made = Rule(rule, rule[:2], "", "", lambda target: iter(()), lambda bench, case: None)
    object.__setattr__(made, "seconds", seconds)
    return SuiteItem(made, Case(case))


NORM = item("L2.rms_norm.correct", "float32")
OTHER = item("L2.determinism", "rms_norm-float16")
LINEAR = item("L2.linear.correct", "float32")
FUSED = item("L2.fused_add_rms_norm.correct", "float32")
COPY = item("L1.copy.round_trip", "1 bytes")


def overdue(*items: SuiteItem) -> list[dict[str, object]]:
    return [{"event": "overdue", "item": one.id} for one in items]


def test_a_case_has_its_rule_s_limit_and_once_a_longer_one():
    assert limits.limit_of(NORM, []) == 60.0
    assert limits.may_try_again(NORM, overdue(NORM))
    # From then on, all of its operator: a new process compiles again.
    for mine in (NORM, OTHER):
        assert limits.limit_of(mine, overdue(NORM)) == limits.COMPILE_S
    for other in (LINEAR, FUSED, COPY):
        assert limits.limit_of(other, overdue(NORM)) == 60.0


def test_an_operator_that_hangs_gets_no_more_time():
    twice = overdue(NORM, NORM)
    assert not limits.may_try_again(NORM, twice)
    assert limits.limit_of(OTHER, twice) == 60.0
    assert not limits.may_try_again(OTHER, [*twice, *overdue(OTHER)])
    assert limits.may_try_again(LINEAR, [*twice, *overdue(LINEAR)])


def test_what_is_no_operator_s_is_not_tried_again():
    assert not limits.may_try_again(COPY, overdue(COPY))
    assert limits.limit_of(COPY, overdue(COPY)) == 60.0


def test_a_load_has_its_case_s_limit_and_is_not_run_twice():
    rule = item("L5.endurance.load", "mixed").rule
    load = SuiteItem(rule, Case("mixed", seconds=2460.0))
    assert limits.limit_of(load, []) == 2460.0
    assert not limits.may_try_again(load, overdue(load))
    # A kernel that is timed may compile at first.
    share = item("L5.rms_norm.share", "float32-decode-small", 120.0)
    assert limits.may_try_again(share, overdue(share))


def test_a_longer_limit_of_a_rule_is_kept():
    assert limits.limit_of(item("L2.rms_norm.correct", "x", 900.0), overdue(NORM)) == 900.0


@given(st.lists(st.sampled_from([NORM, OTHER, LINEAR, FUSED]), max_size=12))
def test_no_case_is_tried_more_than_twice(order):
    """Whatever hangs, in whatever order it is offered."""
    events: list[dict[str, object]] = []
    for one in order:
        tries = 0
        while True:
            tries += 1
            events += overdue(one)
            if not limits.may_try_again(one, events):
                break
        assert tries <= 2


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "code"), [(9, 0), (900, 1)])
def test_a_kernel_that_compiles_passes_and_one_that_hangs_does_not(site, tmp_path, seconds, code):
    package = site.make("slow", device={"torch_type": "cpu"})
    (package / "kernels.py").write_text(KERNELS.replace("SECONDS", str(seconds)))
    (package / "capabilities").mkdir()
    descriptor = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Test", "arch": "any", "torch_type": "cpu"},
        "operators": {
            "rms_norm": {
                "support": "full",
                "dtypes": ["float32"],
                "run": "vllm_adapter_slow.kernels:rms_norm",
            }
        },
    }
    (package / "capabilities/any.json").write_text(json.dumps(descriptor))
    allowed = 100 if code == 0 else 12
    found = environment(site.path, COMPILE_S=str(allowed))
    found["PYTHONPATH"] = f"{PLUGINS}:{found['PYTHONPATH']}"
    journal = tmp_path / "journal"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--pyargs", "vllm_adapter_conformance"),
            *("--adapter", "slow", "--case", "L2.rms_norm.correct[float32]", "--seed", "1"),
            *("-p", "short_compile", "-p", "no:cacheprovider", "--journal", str(journal), "-q"),
        ],
        env=found,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    ends = [event for event in events if event["event"] == "end"]
    assert len([e for e in events if e["event"] == "overdue"]) == (1 if code == 0 else 2)
    assert len(ends) == 1
    if code == 0:
        assert ends[0]["outcome"] == "pass" and "compiles at the first call" in ends[0]["note"]
    else:
        assert ends[0]["expected"] == "an end within 12 s" and "it hangs" in ends[0]["seen"]
