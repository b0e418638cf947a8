"""What a level means: its core has run, all else has held, and nobody else's device earned it."""

from __future__ import annotations

import copy
import json

import importlib_metadata
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_certificates import made

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord
from vllm_adapter.hostfacts.facts import CpuFacts, HostFacts, OsFacts
from vllm_adapter_conformance.base.rule import LEVELS
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.certificate import claims, mustpass
from vllm_adapter_conformance.certificate.document import digest
from vllm_adapter_conformance.certificate.verification import faults
from vllm_adapter_conformance.judge import waivers
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.rules.l1_identity import names_agree

pytestmark = pytest.mark.null

LISTS = mustpass.committed()
RULES = sorted(LISTS.up_to(LEVELS[-1]))
CPU = "Intel(R) Xeon(R) Processor"
HOST = HostFacts(os=OsFacts(name="Linux", machine="x86_64"), cpu=CpuFacts(model=CPU))
LOW_HALF = ("L2.kv_cache", "L2.graph")


def target(tmp_path, *, adapter="acme", torch="acme:0", **identity):
    raw = {"vendor": "Acme", "arch": "a1", "name": "Acme One", "torch_type": "acme"} | identity
    descriptor = {"schema": "vllm-adapter/capability/1.0", "identity": raw, "operators": {}}
    file = tmp_path / "a1.json"
    file.write_text(json.dumps(descriptor), encoding="utf-8")
    package = tmp_path / "package"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    device = DeviceRecord(0, torch, "a device", arch="a1", capability_file=file)
    record = AdapterRecord(
        adapter, "vllm-adapter-acme", "1.0", "vllm_adapter_acme", path=package, devices=(device,)
    )
    return Target(record, HOST, parse_capability(descriptor, str(file)), device)


def seen(*nodes, vendor=None):
    library = None if vendor is None else {"vendor": vendor, "version": "1"}
    facts = {"name": "Acme One", "arch": None, "total_bytes": 1 << 30, "library": library}
    return facts | {"nodes": list(nodes)}


REAL = seen("/dev/acme0")


@pytest.fixture(scope="module")
def acme(tmp_path_factory):
    return target(tmp_path_factory.mktemp("acme"))


@pytest.fixture(scope="module")
def whole(acme):
    return made(acme, LEVELS[-1], facts=REAL)


def edited(document, change):
    """A copy with a change, and what follows from it: only what it claims can be wrong."""
    changed = copy.deepcopy(document)
    change(changed)
    for key, derive in (
        ("counts", lambda d: claims.counts(d["rules"])),
        ("coverage", lambda d: claims.coverage(d["rules"])),
        ("level_reached", lambda d: claims.level_reached(d["rules"], d["level_asked"], LISTS)),
        ("emulated", claims.emulated),
        ("badge", claims.badge),
        ("headline", claims.headline),
        ("digest", digest),
    ):
        changed[key] = derive(changed)
    return changed


def rule_of(document, id):
    return next(rule for rule in document["rules"] if rule["rule"] == id)


# ---- what must have run


def test_every_rule_that_counts_is_in_a_core_or_says_why_it_may_have_no_case():
    decided = mustpass.decided()
    core = {
        wanted.partition("[")[0]: level
        for level, groups in decided["core"].items()
        for group in groups
        for ids in group.values()
        for wanted in ids
    }
    spare = decided["may_be_absent"]
    undecided = set(RULES) - core.keys() - spare.keys()
    assert not undecided, f"say in core.json whether these must run: {sorted(undecided)}"
    assert not core.keys() & spare.keys()
    unknown = (core.keys() | spare.keys()) - set(RULES)
    assert not unknown, f"core.json names rules that do not count: {sorted(unknown)}"
    assert all(id.startswith(level) for id, level in core.items())
    assert set(decided["core"]) == {level for level in LEVELS if LISTS.rules[level]}


def oracle(outcomes, asked):
    """The level, said again from core.json by sets: outcomes is {rule: {case: outcome}}."""
    reached = None
    for level in LEVELS[: LEVELS.index(asked) + 1]:
        held = all(
            outcomes.get(id) and set(outcomes[id].values()) <= {"pass", "not_declared"}
            for id in LISTS.rules[level]
        )
        ran = {
            (id, case) for id, cases in outcomes.items() for case in cases if cases[case] == "pass"
        }
        dtypes = [
            {(id, case.partition("-")[0]) for id, case in ran},
            {(id, case) for id, case in ran},
        ]

        def met(wanted, dtype, ran=ran, dtypes=dtypes):
            id, _, case = wanted.removesuffix("]").partition("[")
            if case == "DTYPE":
                return (id, dtype) in dtypes[0]
            return (id, case) in dtypes[1] if case else any(one == id for one, _ in ran)

        cored = all(
            any(
                all(met(one, dtype) for one in ids)
                for ids in group.values()
                for dtype in ("float32", "float16", "bfloat16")
            )
            for group in LISTS.core[level]
        )
        if not (held and cored):
            break
        reached = level
    return reached


HOWS = st.sampled_from(["pass"] * 2 + ["not_declared"] * 2 + ["fail"])


@settings(max_examples=120, deadline=None)
@given(
    changes=st.dictionaries(st.sampled_from(RULES), st.tuples(HOWS, HOWS), max_size=12),
    asked=st.sampled_from(LEVELS),
)
def test_a_level_is_reached_where_its_core_ran_and_all_has_held(acme, changes, asked):
    """Two outcomes a rule: for its cases of float16, and for the others."""

    def outcome(rule, case):
        first, rest = changes.get(rule, ("pass", "pass"))
        return first if case.startswith("float16") else rest

    document = made(acme, asked, outcome, facts=REAL)
    outcomes = {
        rule["rule"]: {c["case"]: c["outcome"] for c in rule["cases"]}
        | {c["case"]: "not_declared" for c in rule["not_declared"]}
        for rule in document["rules"]
    }
    assert document["level_reached"] == oracle(outcomes, asked)
    # Written and derived again are the same, whatever the outcomes are.
    assert faults(document) == []
    assert document["badge"] in (None, document["level_reached"])


def absent(*rules, dtype=""):
    return lambda rule, case: (
        "not_declared" if rule in rules and case.startswith(dtype) else "pass"
    )


ENCODER = tuple(f"L2.{op}.correct" for op in ("layer_norm", "gelu", "embedding", "attention"))
DECODER = tuple(
    f"L2.{op}.correct"
    for op in (
        *("rms_norm", "fused_add_rms_norm", "silu_and_mul"),
        *("rotary_embedding", "reshape_and_cache", "paged_attention"),
    )
)


@pytest.mark.parametrize(
    ("rules", "level"),
    [
        ((), "L4"),
        (("L2.linear.correct",), "L1"),  # neither layer without it
        ((*DECODER, *ENCODER), "L1"),  # one linear is no model
        (("L2.rms_norm.correct", "L2.attention.correct"), "L1"),
        ((*DECODER, "L2.gelu_and_mul.correct", *LOW_HALF), "L4"),  # an encoder's is there
        (ENCODER, "L4"),
        (("L2.kv_cache", *ENCODER), "L1"),
        (("L2.determinism",), "L4"),  # L2.many_calls has run
        (("L2.many_calls",), "L1"),
        (("L2.refusal.direct",), "L1"),
        (("L1.memory.leak",), "L0"),
        (("L0.package.imports",), None),
        (tuple(id for id in RULES if id.startswith("L3")), "L2"),
        (tuple(id for id in RULES if id.startswith("L3") and "bert" not in id), "L4"),
        (tuple(id for id in RULES if id.startswith("L4")), "L3"),  # nothing of vLLM has run
        (("L4.server",), "L3"),
        (("L4.bf16", "L4.experts"), "L4"),
    ],
)
def test_a_level_with_nothing_run_is_not_reached(acme, rules, level):
    assert made(acme, "L4", absent(*rules), facts=REAL)["level_reached"] == level


@pytest.mark.parametrize(
    ("rules", "level"),
    [
        ((), "L5"),
        (("L5.gelu.share", "L5.attention.share"), "L5"),  # an encoder's
        (("L5.rms_norm.share",), "L4"),
        (("L5.roofline",), "L4"),
        (("L5.endurance.load",), "L4"),
        (("L5.endurance.faults",), "L4"),
        (("L4.server",), "L3"),
    ],
)
def test_speed_is_reached_where_it_was_measured_and_a_load_has_run(acme, rules, level):
    document = made(acme, "L5", absent(*rules), facts=REAL)
    assert document["level_reached"] == level
    assert faults(document) == []


def test_a_layer_s_operators_have_to_meet_in_one_dtype(acme):
    split = {"L2.linear.correct": "float16", "L2.rms_norm.correct": "float32"}

    def outcome(rule, case):
        if rule in ENCODER:
            return "not_declared"
        return "not_declared" if case.startswith(split.get(rule, "none")) else "pass"

    assert made(acme, "L2", outcome, facts=REAL)["level_reached"] == "L1"


# ---- what ran it

ON_CPU = {"arch": "x86_64", "name": CPU, "torch_type": "cpu", "vendor": "Any CPU"}


@pytest.mark.parametrize(
    ("torch", "identity", "facts", "badge", "words"),
    [
        ("acme:0", {}, REAL, "L2", None),
        ("cpu", ON_CPU, seen(), "L2", None),
        ("cpu", ON_CPU | {"vendor": "Intel"}, seen(), "L2", None),
        # a chip's name in the descriptor, whatever the adapter is called
        ("cpu", {}, seen(), None, "the CPU stands in"),
        ("cpu", {"torch_type": "cpu"}, seen(), None, "the CPU stands in"),
        ("cpu", ON_CPU | {"name": "Acme One"}, seen(), None, "the CPU stands in"),
        ("cpu", ON_CPU | {"arch": "sm_90"}, seen(), None, "the CPU stands in"),
        ("cpu", ON_CPU | {"vendor": "Acme"}, seen(), None, "the CPU stands in"),
        ("cpu", ON_CPU | {"torch_type": "acme"}, seen(), None, "the CPU stands in"),
        # a device with nothing but the host behind it, and the simulated one under another name
        ("acme:0", {}, seen(), None, "nothing but the host is behind"),
        ("acme:0", {}, seen(vendor="Acme"), None, "nothing but the host is behind"),
        ("acme:0", {}, seen("/dev/acme0", vendor="vllm-adapter"), None, "nothing but the host"),
        ("acme:0", {}, seen("/dev/acme0", vendor="Acme"), "L2", None),
    ],
)
@pytest.mark.parametrize("name", ["acme", "cpu_fast", "cpu"])
def test_what_ran_it_decides_on_the_badge_and_not_what_it_is_called(
    tmp_path, name, torch, identity, facts, badge, words
):
    document = made(target(tmp_path, adapter=name, torch=torch, **identity), "L2", facts=facts)
    assert document["level_reached"] == "L2" and document["grade"] == "release"
    assert document["badge"] == badge
    assert (words or "says nothing of a chip") in document["headline"] or badge
    assert faults(document) == []
    claimed = copy.deepcopy(document) | {"badge": "L2"}
    claimed["digest"] = digest(claimed)
    assert (faults(claimed) == []) == (badge == "L2")


@settings(max_examples=60, deadline=None)
@given(
    on_cpu=st.booleans(),
    is_cpu=st.booleans(),
    nodes=st.sampled_from([(), ("/dev/acme0",)]),
    vendor=st.sampled_from([None, "Acme", "vllm-adapter"]),
    grade=st.sampled_from(["release", "development"]),
    emulated=st.booleans(),
)
def test_a_badge_stands_never_beside_another_device_or_grade(
    tmp_path_factory, on_cpu, is_cpu, nodes, vendor, grade, emulated
):
    identity = ON_CPU if is_cpu else {}
    subject = target(
        tmp_path_factory.mktemp("any"), torch="cpu" if on_cpu else "acme:0", **identity
    )
    document = made(subject, "L1", facts=seen(*nodes, vendor=vendor))
    document["grade"] = grade
    document["adapter"]["emulated"] = emulated
    document["badge"] = claims.badge(document)
    real = is_cpu if on_cpu else bool(nodes) and vendor != "vllm-adapter"
    assert (document["badge"] == "L1") == (real and grade == "release" and not emulated)
    if not real and not emulated:
        assert "says nothing of a chip" in claims.headline(document)


@pytest.mark.parametrize(
    ("declared", "live", "arch", "agree"),
    [
        ("H200 SXM", "NVIDIA H200", "sm_90", True),
        ("H200 SXM", "NVIDIA H20", "sm_90", False),
        ("H100 PCIe", "NVIDIA H200", "sm_90", False),
        ("A100 SXM 40 GB", "NVIDIA A100-SXM4-40GB", "sm_80", True),
        ("A10", "NVIDIA A100-SXM4-40GB", "sm_80", False),
        ("GeForce RTX 4090", "NVIDIA GeForce RTX 4090", "sm_89", True),
        ("MI250X (one of two dies)", "AMD Instinct MI250X/MI250", "gfx90a", True),
        ("Ascend 910B1", "Ascend910B1", "910b1", True),
        ("Ascend 910C (one of two dies)", "Ascend910_9392", "910_93", True),
        ("Gaudi 2", "GAUDI2", "gaudi2", True),
        (
            "Data Center GPU Max 1550 (one of two stacks)",
            "Intel(R) Data Center GPU Max 1550",
            "xe-hpc",
            True,
        ),
        ("Simulated accelerator", "Simulated accelerator", "sim48", True),
        (None, "anything", "a1", True),
        ("Acme 7", None, "a1", True),
        ("Acme 7", "Acme 8", "a1", False),
    ],
)
def test_names_of_a_device(declared, live, arch, agree):
    assert names_agree(declared, live, arch) is agree


# ---- rules and cases that its suite knows


def invent(id, level):
    def change(document):
        case = copy.deepcopy(rule_of(document, "L0.manifest.name")["cases"][0])
        document["rules"].append(
            {"rule": id, "level": level, "preview": False, "cases": [case], "not_declared": []}
        )

    return change


def drop(id):
    return lambda d: d.update(rules=[rule for rule in d["rules"] if rule["rule"] != id])


def drop_case(id, name):
    def change(document):
        rule = rule_of(document, id)
        rule["cases"] = [case for case in rule["cases"] if case["case"] != name]

    return change


def add_case(id, name):
    def change(document):
        cases = rule_of(document, id)["cases"]
        cases.append(cases[0] | {"case": name})

    return change


CHANGES = {
    "an invented rule": (invent("L4.approved", "L4"), "no such rules up to L5: L4.approved"),
    "a rule in another level": (
        lambda d: rule_of(d, "L4.abort").update(level="L3"),
        "L4.abort is put into L3",
    ),
    "a rule left out": (drop("L2.leak"), "rules that its suite has for L5 are missing: L2.leak"),
    "a rule made a preview": (
        lambda d: rule_of(d, "L2.leak").update(preview=True),
        "the rule L2.leak is no preview",
    ),
    "a case left out": (
        drop_case("L2.graph", "float16"),
        "cases of L2.graph are missing: float16",
    ),
    "an invented case": (
        add_case("L4.server", "approved"),
        "no such cases of L4.server: approved",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_its_suite_does_not_know_or_what_is_missing_refuses_a_certificate(whole, name):
    change, words = CHANGES[name]
    assert faults(whole) == []
    found = faults(edited(whole, change))
    assert any(words in fault for fault in found), found


def test_a_rule_of_a_level_that_was_not_asked_for_is_unknown(acme):
    document = edited(made(acme, "L1", facts=REAL), invent("L2.leak", "L2"))
    assert any("no such rules up to L1: L2.leak" in fault for fault in faults(document))


def test_a_preview_may_be_there_and_counts_for_nothing(acme):
    previews = [rule.id for rule in registered().values() if rule.preview]
    document = made(
        acme,
        "L4",
        lambda rule, case: "fail" if rule in previews else "pass",
        facts=REAL,
        previews=True,
    )
    assert document["level_reached"] == "L4" and faults(document) == []


def test_a_preview_lasts_for_one_minor_release():
    minor = importlib_metadata.version("vllm-adapter-conformance").rpartition(".")[0]
    for rule in registered().values():
        assert bool(rule.since) == rule.preview, f"{rule.id}: since when is it a preview?"
        assert rule.since in ("", minor), (
            f"{rule.id} is a preview since {rule.since}: let it count, or take it out"
        )


# ---- waivers

WAIVER = {
    "rule": "L2.leak",
    "case": "float16*",
    "adapter": "acme",
    "issue": "https://example.org/1",
    "expires": "2999-01-01",
}


def waive(**change):
    def edit(document):
        case = rule_of(document, "L2.leak")["cases"][0]
        shown = {"issue": WAIVER["issue"], "expires": WAIVER["expires"], "reason": None} | change
        case.update(outcome="waived", message="expected a; saw b", waiver=shown)

    return edit


def waived_faults(monkeypatch, document, **kept):
    own = mustpass.committed()
    listed = type(own)(
        own.rules, own.preview, own.core, own.cases, tuple(waivers.parse([WAIVER | kept]))
    )
    monkeypatch.setattr(mustpass, "listed", lambda digest: listed)
    return faults(document)


def test_a_waiver_of_the_suite_is_shown_and_holds(whole, monkeypatch):
    document = edited(whole, waive())
    assert document["level_reached"] == "L5"
    assert "1 waived" in document["headline"]
    assert "waived: L2.leak until 2999-01-01 (https://example.org/1)" in document["headline"]
    assert waived_faults(monkeypatch, document) == []


def test_an_unknown_waiver_refuses_a_certificate(whole):
    (fault,) = faults(edited(whole, waive()))
    assert "the waiver of L2.leak[float16-x]" in fault and "is none of its suite's" in fault


@pytest.mark.parametrize(
    ("shown", "kept", "words"),
    [
        ({"issue": "https://example.org/2"}, {}, "none of its suite's"),
        ({"expires": "2999-01-02"}, {}, "none of its suite's"),
        ({}, {"adapter": "other"}, "none of its suite's"),
        ({}, {"case": "float32*"}, "none of its suite's"),
        ({"expires": "2026-01-01"}, {"expires": "2026-01-01"}, "expired on 2026-01-01"),
    ],
)
def test_a_waiver_that_is_another_s_or_has_expired_counts_as_a_failure(
    whole, monkeypatch, shown, kept, words
):
    found = waived_faults(monkeypatch, edited(whole, waive(**shown)), **kept)
    assert any(words in fault for fault in found), found


def test_a_waiver_beside_a_pass_is_a_fault(whole):
    def change(document):
        waive()(document)
        rule_of(document, "L2.leak")["cases"][0]["outcome"] = "pass"

    assert any("its waiver differs" in fault for fault in faults(edited(whole, change)))


def test_a_core_rule_whose_cases_are_all_waived_has_not_run(acme):
    document = made(acme, "L2", facts=REAL)
    for case in rule_of(document, "L2.leak")["cases"]:
        case["outcome"] = "waived"
    assert claims.level_reached(document["rules"], "L2", LISTS) == "L1"
