"""L5 on a real device: short runs, and kernels that only it can find. No time is asserted."""

from __future__ import annotations

import copy
import importlib
import json
from dataclasses import replace

import pytest
from made_certificates import fingerprint_of
from zoo import alone, descriptor, run_rules, target_of

from vllm_adapter.errors import CertificateError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case
from vllm_adapter_conformance.certificate.document import build, canonical, digest
from vllm_adapter_conformance.certificate.verification import faults
from vllm_adapter_conformance.performance import clock, measuring, section
from vllm_adapter_conformance.performance.baseline import read_baseline, with_baseline
from vllm_adapter_conformance.performance.summary import summary
from vllm_adapter_conformance.plan.suite import SuiteItem, make_plan
from vllm_adapter_conformance.rules import l5_endurance, l5_share, registered
from vllm_adapter_conformance.run.execution import run_item

pytestmark = pytest.mark.device

P = "vllm_adapter_mutants.performance:"
FLOAT32 = {"dtypes": ["float32"]}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Seconds where a certificate takes minutes."""
    monkeypatch.setattr(measuring, "COPIED", (1 << 18, 4 << 20))
    monkeypatch.setattr(measuring, "SIDES", (64, 128, 256))
    monkeypatch.setattr(clock, "SAMPLES", 6)
    monkeypatch.setattr(clock, "SAMPLE_S", 0.002)
    monkeypatch.setattr(clock, "WARM_S", 0.0)
    monkeypatch.setattr(l5_endurance, "SHORTEST_S", 0.1)


def only_float32(operators, **sections):
    raw = descriptor(operators, **sections)
    for entry in raw["operators"].values():
        entry.update(FLOAT32)
    return raw


@pytest.fixture
def make(tmp_path):
    """make(changes): the mutant's target, which declares float32 alone; its load is short."""

    def target(operators, minutes=0.05, **sections):
        # An overload's name belongs to one kernel for the life of the process.
        kernels = (str(entry.get("run")).partition(":")[2] for entry in operators.values())
        name = "_".join(["acme", *kernels])
        found = target_of(name, only_float32(operators, **sections), tmp_path)
        return replace(found, minutes=minutes, seed=1, budget=0.01)

    return target


def run(target, item, *, apart=False):
    """The result of one item, in this process, or with a process for the device."""
    rule, _, case = item.removesuffix("]").partition("[")
    with alone():
        importlib.import_module("vllm_adapter_mutants.performance").restart()
        found = {c.id: c for c in registered()[rule].cases(target) if isinstance(c, Case)}
        bench = Bench(target, target.record.path, apart=apart)
        try:
            return run_item(bench, SuiteItem(registered()[rule], found[case]))
        finally:
            bench.end()


def test_rates_of_the_device_are_measured(make):
    found = run_rules(make({}), "L5.roofline")["L5.roofline"]
    assert [result.outcome for result in found] == ["pass", "pass"]
    rates = [rate for result in found for rate in result.figures["rates"]]
    assert {rate["what"] for rate in rates} == {"copy", "read", "gemm"}
    assert all(0 < rate["rate"]["least"] <= rate["rate"]["most"] for rate in rates)


SMALL = {
    "linear": "decode",
    "rms_norm": "decode",
    "fused_add_rms_norm": "prefill",
    "silu_and_mul": "decode",
    "layer_norm": "decode",
    "gelu": "prefill",
    "gelu_and_mul": "decode",
    "embedding": "decode",
    "rotary_embedding": "decode",
    "reshape_and_cache": "prefill",
    "paged_attention": "decode",
    "attention": "prefill",
}


def test_every_operator_is_timed(make):
    target = make({})
    plan = make_plan(target, "L5", registered())
    rows = []
    with alone():
        bench = Bench(target)
        for op, phase in SMALL.items():
            result = run_item(bench, plan.item(f"L5.{op}.share[float32-{phase}-small]"))
            assert result.outcome == "pass", result
            (row,) = result.figures["shares"]
            assert (row["operator"], row["phase"], row["size"]) == (op, phase, "small")
            assert row["share"]["median"] > 0 and row["bytes"] > 0
            rows.append(row)
    assert {row["bound"] for row in rows} == {"memory", "compute"}


def test_a_sleep_is_found(make):
    target = make({"rms_norm": {"run": f"{P}sleeps"}})
    result = run(target, "L5.rms_norm.share[float32-decode-small]")
    assert result.outcome == "fail" and "a sleep" in result.seen
    assert result.figures["shares"][0]["seconds"]["samples"] >= 3


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("L5.rms_norm.share[float32-decode-small]", "a sleep"),
        ("L2.path.latency[rms_norm-float32]", "ms, the fastest"),
        ("L5.endurance.load[mixed]", "by the judge's"),
    ],
)
def test_a_clock_that_the_adapter_stops_hides_no_sleep(make, item, words):
    target = make({"rms_norm": {"run": f"{P}stops_the_clock"}})
    manifest = {
        "schema": "vllm-adapter/manifest/1.0",
        "name": target.record.name,
        "vendor": "Test",
        "api": ">=1.0,<2",
        "device": {"torch_type": "cpu"},
        "capabilities": "*.json",
    }
    # The device's process reads it anew.
    target.record.manifest.path.write_text(json.dumps(manifest), encoding="utf-8")
    result = run(target, item, apart=True)
    assert result.outcome == "fail" and words in result.seen, result


def test_work_that_is_not_done_is_found(make):
    target = make({"linear": {"run": f"{P}remembers"}})
    result = run(target, "L5.linear.share[float32-prefill-typical]")
    assert result.outcome == "fail" and "work is left out" in result.seen


def test_a_short_load_passes_and_does_not_reach_the_level(make):
    found = run_rules(make({}), "L5.endurance.load", "L5.endurance.length")
    (load,), (length,) = found.values()
    assert load.outcome == "pass", load
    seen = load.figures["endurance"]
    assert seen["probes"] and seen["tokens"] > seen["rounds"] > 0
    assert seen["workers"] == ["float32", "float32"]
    assert set(seen["latency_s"]) >= {"decode", "prefill"}
    assert seen["memory"]["steps"][-1] == seen["rounds"]
    assert length.outcome == "fail" and "10 minutes" in length.expected


def test_as_many_minutes_as_the_level_asks_for_reach_it(make):
    (result,) = run_rules(make({}, minutes=10.0), "L5.endurance.length")["L5.endurance.length"]
    assert result.outcome == "pass"


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("tires", "times what is allowed"),
        ("breaks", "no handle is left"),
        ("keeps_objects", "Python objects with each step"),
    ],
)
def test_what_fails_after_many_calls_is_found(make, kernel, words):
    target = make({"rms_norm": {"run": P + kernel}}, minutes=0.08)
    result = run(target, "L5.endurance.load[mixed]")
    assert result.outcome == "fail" and words in result.seen, result


def test_rounding_that_is_declared_is_allowed_and_a_wrong_number_is_not(make):
    numerics = {"fp8_flavour": None, "fp8_max": None, "deterministic": False}
    target = make({"rms_norm": {"run": f"{P}tires"}}, numerics=numerics, minutes=0.08)
    result = run(target, "L5.endurance.load[mixed]")
    assert result.outcome == "fail" and "times what is allowed" in result.seen


def test_more_memory_than_there_is_is_refused_and_the_rest_is_not_declared(make):
    rule, target = registered()["L5.endurance.faults"], make({})
    ids = {case.id: isinstance(case, Case) for case in rule.cases(target)}
    assert sum(ids.values()) == 1 and len(ids) == 5
    result = run(target, "L5.endurance.faults[more memory than there is]")
    assert result.outcome == "pass" and "OutOfMemory" in result.note


def certificate(target, results):
    """The certificate of a run of these items alone."""
    plan = make_plan(target, "L5", registered(), only=results.keys())
    return build(target, "L5", plan, results, fingerprint_of(target), {})


ITEM = "L5.gelu.share[float32-prefill-small]"
_results = {}
"""Of the healthy adapter, measured once for all tests."""


@pytest.fixture
def measured(make):
    """A target, one item of it, and a certificate with its speed."""
    target = make({})
    if not _results:
        _results.update({item: run(target, item) for item in (ITEM, "L5.roofline[memory]")})
    return target, ITEM, certificate(target, copy.deepcopy(_results))


def changed(document, factor):
    """The document with another share of that operator, known to one part in a hundred."""
    new = copy.deepcopy(document)
    for row in new["performance"]["shares"]:
        middle = factor * row["share"]["median"]
        ends = {"least": 0.99, "low": 0.99, "median": 1.0, "high": 1.01, "most": 1.01}
        row["share"] |= {name: middle * part for name, part in ends.items()}
    new["digest"] = digest(new)
    return new


def against(target, item, document, folder):
    folder.mkdir()
    path = folder / "baseline.json"
    path.write_text(canonical(document), encoding="utf-8")
    return run(with_baseline(target, path, folder / "none.json"), item)


def test_a_certificate_has_what_was_measured(measured):
    _, _, document = measured
    # It is of a few items, and nothing else is amiss.
    assert all("are missing" in fault for fault in faults(document))
    found = document["performance"]
    assert found["conditions"]["threads"] >= 1 and found["endurance"] is None
    assert found["shares"][0]["operator"] == "gelu" and found["baseline"] is None
    assert any(line.startswith("device: ") for line in summary(found))
    assert document["level_reached"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(bytes=s["bytes"] + 4), "its sizes give"),
        (lambda s: s["sizes"].pop("hidden"), "lacks 'hidden'"),
        (lambda s: s["share"].update(low=s["share"]["most"] * 2), "are no figure"),
    ],
)
def test_figures_that_do_not_fit_each_other_are_a_fault(measured, change, words):
    _, _, document = measured
    change(document["performance"]["shares"][0])
    document["digest"] = digest(document)
    assert any(words in fault for fault in faults(document))


def test_a_level_without_its_load_is_a_fault(measured):
    _, _, document = measured
    claimed = document | {"level_reached": "L5"}
    assert any("needs 10 minutes" in fault for fault in section.section_faults(claimed))
    ran = {"minutes": 10.0, "minutes_needed": 10.0}
    claimed["performance"] = document["performance"] | {"endurance": ran}
    assert list(section.section_faults(claimed)) == []
    claimed.pop("performance")
    assert any("no section" in fault for fault in section.section_faults(claimed))


def test_speed_that_fell_below_the_baseline_fails(measured, tmp_path):
    target, item, document = measured
    result = against(target, item, changed(document, 1000), tmp_path / "faster")
    assert result.outcome == "fail" and "10 % below" in result.expected
    (row,) = result.figures["shares"]
    assert row["baseline"]["verdict"] == "fell" and row["baseline"]["reason"] is None


@pytest.mark.parametrize(("falls", "outcome"), [(2, "pass"), (3, "fail")])
def test_a_fall_counts_where_three_measurements_show_it(make, monkeypatch, falls, outcome):
    real, seen = l5_share.judge, []

    def judge(*given):
        seen.append(given)
        if len(seen) <= falls:
            raise l5_share.ShareFell("the share of the baseline", "less")
        return real(*given)

    monkeypatch.setattr(l5_share, "judge", judge)
    assert run(make({}), ITEM).outcome == outcome
    assert len(seen) == 3


def test_speed_that_rose_passes(measured, tmp_path):
    target, item, document = measured
    result = against(target, item, changed(document, 1 / 1000), tmp_path / "slower")
    assert result.outcome == "pass" and "baseline: rose" in result.note


def test_speed_under_other_conditions_is_not_compared(measured, tmp_path):
    target, item, document = measured
    other = changed(document, 1000)
    other["performance"]["conditions"]["torch"] = "1.13"
    other["digest"] = digest(other)
    result = against(target, item, other, tmp_path / "other")
    assert result.outcome == "pass" and "torch was 1.13" in result.note


def test_the_section_counts_how_shares_are_to_the_baseline(measured, tmp_path):
    target, item, document = measured
    path = tmp_path / "old.json"
    path.write_text(canonical(changed(document, 1000)), encoding="utf-8")
    target = with_baseline(target, None, path)
    assert target.baseline == path
    found = section.performance(target, [run(target, item).figures])
    assert found["baseline"]["fell"] == 1 and found["baseline"]["kept"] == 0
    assert found["baseline"]["digest"] == json.loads(path.read_text())["digest"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("performance"), "it has no figures"),
        (lambda d: d["adapter"].update(name="other"), "it is of other"),
        (lambda d: d["performance"].pop("shares"), "it breaks its schema"),
        (lambda d: d.clear(), "it is no certificate"),
    ],
)
def test_what_is_no_baseline(measured, tmp_path, change, words):
    target, _, document = measured
    change(document)
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CertificateError, match=words):
        read_baseline(path, "acme")
    assert with_baseline(target, None, path).baseline is None
