"""Certificates: what verify catches, what it lets through, and what it refuses to read."""

from __future__ import annotations

import copy
import datetime
import json
from pathlib import Path

import importlib_metadata
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_certificates import made

from vllm_adapter.cli.main import main
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.certificate import claims, mustpass
from vllm_adapter_conformance.certificate.against import against_installed
from vllm_adapter_conformance.certificate.document import canonical, digest
from vllm_adapter_conformance.certificate.fingerprint import Census
from vllm_adapter_conformance.certificate.mustpass import RuleList
from vllm_adapter_conformance.certificate.parts import digests, suite_version
from vllm_adapter_conformance.certificate.verification import faults, notes
from vllm_adapter_conformance.cli import pages
from vllm_adapter_conformance.judge import waivers
from vllm_adapter_conformance.judge.journal import Ran
from vllm_adapter_conformance.judge.outcome import Result, blocker, failed, passed, settle
from vllm_adapter_conformance.plan.suite import SuiteItem, SuitePlan, in_order, make_plan
from vllm_adapter_conformance.rules import registered

pytestmark = pytest.mark.null

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "conformance/src/vllm_adapter_conformance"


def make_rule(id, *needs, cases=(), preview=False):
    level = id.partition(".")[0]
    return Rule(id, level, "a rule", "why", lambda target: iter(cases), None, needs, 60, preview)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    record = AdapterRecord(
        "acme",
        "vllm-adapter-acme",
        "1.0",
        "vllm_adapter_acme",
        path=tmp_path_factory.mktemp("acme") / "package",
    )
    record.path.mkdir()
    (record.path / "__init__.py").write_text("", encoding="utf-8")
    return Target(record, HostFacts(), None, None)


@pytest.fixture(scope="module")
def built(target):
    return made(
        target,
        outcome=lambda rule, case: "not_declared" if "bfloat16" in case else "pass",
    )


@pytest.fixture
def document(built):
    """A release-grade certificate of L2 in which everything that is declared passes."""
    return copy.deepcopy(built)


class Held:
    """A document as an argument that nobody prints."""

    def __init__(self, document):
        self.document = document


@pytest.fixture(scope="module")
def held(built):
    return Held(built)


def edit(document, *keys, value, recompute=False):
    changed = copy.deepcopy(document)
    at = changed
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    if recompute:
        changed["digest"] = digest(changed)
    return changed


@pytest.mark.parametrize("variable", ["VA_CAPABILITY", "VA_LIBRARY"])
def test_what_a_variable_puts_in_the_adapter_s_place_is_no_release(target, monkeypatch, variable):
    monkeypatch.setenv(variable, "another")
    census = Census(target)
    census.start()
    assert any(variable in sentence for sentence in census.settle(Ran()).changed)


def test_a_whole_certificate_is_sound(document):
    assert faults(document) == []
    assert document["level_reached"] == document["badge"] == "L2"
    assert document["grade"] == "release"
    assert document["coverage"]["linear"] == {
        "float32": "pass",
        "float16": "pass",
        "bfloat16": "not_declared",
    }
    assert f"{len(OPERATORS)} of {len(OPERATORS)} operators x 2 dtypes" in document["headline"]
    assert "largest error 0.5 of its budget" in document["headline"]


EDITS = {
    "level": (("level_reached",), "L1"),
    "no level": (("level_reached",), None),
    "badge": (("badge",), None),
    "count": (("counts", "pass"), 10_000),
    "coverage": (("coverage", "linear", "bfloat16"), "pass"),
    "headline": (("headline",), "acme is the best"),
    "outcome": (("rules", 0, "cases", 0, "outcome"), "fail"),
    "rule twice": (("rules", 1, "rule"), "L0.descriptor.schema"),
    "case twice": (("rules", 0, "cases", 1, "case"), "float16-x"),
    "rule left out": (("rules",), []),
    "emulated": (("emulated",), True),
    "editable": (("adapter", "editable"), True),
    "unknown key": (("approved",), True),
    "asked for more": (("level_asked",), "L5"),
    "future": (("created",), "2099-01-01T00:00:00Z"),
    "no moment": (("created",), "2026-99-99T00:00:00Z"),
    "changed files": (("changed",), ["x differs"]),
    "no loaded files": (("distributions",), {}),
    "other files of core": (("core", "files_sha256"), "0" * 64),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_caught_by_its_digest_and_most_by_their_claim(document, name):
    keys, value = EDITS[name]
    assert faults(edit(document, *keys, value=value))
    assert faults(edit(document, *keys, value=value, recompute=True))


def test_another_suite_s_wording_of_the_headline_is_no_fault(document):
    other = edit(document, "suite", "files_sha256", value="1" * 64)
    other["distributions"]["vllm-adapter-conformance"]["files_sha256"] = "1" * 64
    assert faults(edit(other, "headline", value="reaches L2, as we say it", recompute=True)) == []


def leaves(value, at=()):
    """Every place of a document, with what is there."""
    yield at, value
    inside = {}
    if isinstance(value, (dict, list)):
        inside = value if isinstance(value, dict) else dict(enumerate(value))
    for key, item in inside.items():
        yield from leaves(item, (*at, key))


VALUES = st.one_of(st.none(), st.booleans(), st.integers(0), st.text(max_size=5), st.just("pass"))


@given(data=st.data())
@settings(max_examples=60)
def test_any_edit_is_refused_by_the_digest(held, data):
    document = held.document
    places = [keys for keys, _ in leaves(document) if keys and keys != ("digest",)]
    keys = places[data.draw(st.integers(0, len(places) - 1))]
    value = data.draw(VALUES)
    changed = edit(document, *keys, value=value)
    if canonical(changed) != canonical(document):
        assert faults(changed)


@pytest.mark.parametrize("keys", [("adapter", "version"), ("seed",), ("created",)])
def test_what_nothing_derives_is_caught_by_the_digest_alone(document, keys):
    value = 7 if keys == ("seed",) else "2020-01-01T00:00:00Z"
    (fault,) = faults(edit(document, *keys, value=value))
    assert "edited after it was written" in fault
    assert faults(edit(document, *keys, value=value, recompute=True)) == []


def test_another_must_pass_list_that_nobody_has_is_a_fault(document):
    other = edit(document, "suite", "mustpass_sha256", value="1" * 64, recompute=True)
    (fault,) = faults(other)
    assert "does not know the list of rules of its suite" in fault


@pytest.mark.parametrize("value", ["\ud800", 10**400, -1, [[]], "L9", None])
def test_odd_values_are_faults_and_no_errors(document, value):
    for keys in (("rules", 0), ("rules", 0, "cases", 0, "share"), ("headline",), ("counts",)):
        for recompute in (False, True):
            faults(edit(document, *keys, value=value, recompute=recompute))


def test_canonical_json_is_stable(document):
    assert json.loads(canonical(document)) == document
    assert canonical({"b": 0.1, "a": "é"}) == '{"a":"é","b":0.1}'


def test_verify_exit_codes(document, tmp_path, capsys):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(canonical(document), encoding="utf-8")
    bad.write_text(canonical(edit(document, "seed", value=9)), encoding="utf-8")
    assert main(["verify", str(good)]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith(f"{good}: sound, unsigned")
    assert main(["verify", str(bad)]) == 1
    assert "edited after it was written" in capsys.readouterr().out
    assert main(["verify", "--json", str(bad)]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    (tmp_path / "text.json").write_text("not JSON", encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    manifest = ROOT / "adapters/cpu/src/vllm_adapter_cpu/adapter.json"
    for path in (tmp_path / "none.json", tmp_path / "text.json", tmp_path / "list.json", manifest):
        assert main(["verify", str(path)]) == 2
    assert main(["verify", str(good), "--against-installed"]) == 2
    assert "no adapter acme is installed" in capsys.readouterr().err


@pytest.fixture
def of_cpu(document):
    """The same, of the installed cpu adapter."""
    files = digests(ROOT / "adapters/cpu/src/vllm_adapter_cpu")
    changed = copy.deepcopy(document)
    changed["adapter"] |= {"name": "cpu", "dist": "vllm-adapter-cpu", "files": files}
    changed["adapter"]["version"] = importlib_metadata.version("vllm-adapter-cpu")
    del changed["distributions"]["vllm-adapter-acme"]
    changed["distributions"]["vllm-adapter-cpu"] = {"version": "0.1.0", "loaded": {}}
    changed["headline"] = claims.headline(changed)
    return changed | {"digest": digest(changed)}


def against(document):
    document["headline"] = claims.headline(document)
    document["digest"] = digest(document)
    assert faults(document) == []
    return against_installed(document)


def test_what_did_not_take_part_is_a_note(of_cpu):
    assert against(of_cpu) == ([], [])
    of_cpu["distributions"]["vllm-adapter-core"]["files_sha256"] = "0" * 64
    of_cpu["core"]["files_sha256"] = "0" * 64
    of_cpu["distributions"]["other-kernels"] = {"version": "1.0", "loaded": {"x.py": "0" * 64}}
    found, said = against(of_cpu)
    assert found == []
    assert "vllm-adapter-core has other files here; none of them took part" in said
    assert any("other-kernels 1.0, whose files were loaded, is not installed" in s for s in said)


def test_files_that_differ_from_the_installed_are_named(of_cpu, tmp_path, capsys):
    of_cpu["adapter"]["files"] |= {"plugin.py": "0" * 64, "gone.py": "0" * 64}
    loaded = of_cpu["distributions"]["vllm-adapter-core"]["loaded"]
    assert list(loaded) == ["vllm_adapter/__init__.py"]
    loaded["vllm_adapter/__init__.py"] = "0" * 64
    of_cpu["outside"]["/opt/kernels/lib.so"] = "0" * 64
    of_cpu["digest"] = digest(of_cpu)
    file = tmp_path / "cpu.json"
    file.write_text(canonical(of_cpu), encoding="utf-8")
    assert main(["verify", str(file)]) == 0
    capsys.readouterr()
    assert main(["verify", str(file), "--against-installed"]) == 1
    out = capsys.readouterr().out
    assert "gone.py is not installed; plugin.py differs" in out
    assert "vllm_adapter/__init__.py differs; /opt/kernels/lib.so is not there" in out


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("adapter", "version"), "9.9", "version 9.9 of vllm-adapter-cpu is not installed"),
        (("adapter", "dist"), "vllm-adapter-cpu2", "its adapter is of vllm-adapter-cpu2"),
        (("contract",), "2.0", "it is of version 2.0 of the contract"),
    ],
)
def test_another_version_is_named(of_cpu, keys, value, said):
    changed = edit(of_cpu, *keys, value=value)
    changed["distributions"]["vllm-adapter-cpu2"] = {"version": "0.1.0", "loaded": {}}
    found, _ = against(changed)
    assert any(said in fault for fault in found)


def test_the_format_of_before_is_read_with_notes(of_cpu):
    for key in ("contract", "distributions", "outside", "changed", "start_up"):
        del of_cpu[key]
    of_cpu["schema"] = "vllm-adapter/certificate/1.0"
    assert against(of_cpu) == ([], [])
    assert any("does not say which files took part" in note for note in notes(of_cpu))
    of_cpu["core"]["files_sha256"] = "0" * 64
    (fault,), _ = against(of_cpu)
    assert "its format does not say which of them took part" in fault


def test_another_suite_of_this_version_is_said_at_once(document, tmp_path, capsys):
    other = edit(document, "suite", "files_sha256", value="1" * 64)
    other["distributions"]["vllm-adapter-conformance"]["files_sha256"] = "1" * 64
    file = tmp_path / "other.json"
    file.write_text(canonical(other | {"digest": digest(other)}), encoding="utf-8")
    assert main(["verify", str(file)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert f"by other files of suite {suite_version()} than these" in first


def rules_document(*outcomes):
    """One rule a level, each with one case of that outcome."""
    return [
        {
            "rule": f"L{level}.x",
            "level": f"L{level}",
            "preview": False,
            "cases": [{"case": "a", "outcome": outcome, "share": None}],
            "not_declared": [],
        }
        for level, outcome in enumerate(outcomes)
    ]


NEEDED = RuleList({"L0": ["L0.x"], "L1": ["L1.x"], "L2": ["L2.x"]})


@pytest.mark.parametrize(
    ("outcomes", "asked", "reached"),
    [
        (("pass", "pass", "pass"), "L2", "L2"),
        (("pass", "pass", "pass"), "L1", "L1"),
        (("pass", "waived", "pass"), "L2", "L2"),
        (("pass", "fail", "pass"), "L2", "L0"),
        (("fail", "pass", "pass"), "L2", None),
        (("pass", "pass", "blocked"), "L2", "L1"),
        (("pass", "pass"), "L2", "L1"),
    ],
)
def test_level_arithmetic(outcomes, asked, reached):
    assert claims.level_reached(rules_document(*outcomes), asked, NEEDED) == reached


def test_a_rule_without_cases_does_not_hold():
    (rule,) = rules_document("pass")
    assert not claims.holds(rule | {"cases": []})
    assert claims.holds(rule | {"cases": [], "not_declared": [{"case": "a"}]})


def test_needs_decide_who_is_blocked():
    base, middle, top = make_rule("L1.a"), make_rule("L1.b", "L1.a"), make_rule("L1.c", "L1.b")
    items = [SuiteItem(rule, Case("x")) for rule in in_order([top, middle, base])]
    assert [item.rule.id for item in items] == ["L1.a", "L1.b", "L1.c"]
    plan = SuitePlan([base, middle, top], items)
    bad = failed(items[0], Failure("a", "b"), 0.1, None)
    events = [{"event": "end", **bad.to_json()}] + [
        {"event": "end", **passed(item, None, 0.1, None).to_json()} for item in items[1:]
    ]
    # L1.b and L1.c had passed before the failure came: that says nothing any more.
    settled = settle(plan, events)
    assert [settled[item.id].outcome for item in items] == ["fail", "blocked", "blocked"]
    assert {settled[item.id].blocked_by for item in items[1:]} == {"L1.a"}
    assert blocker(middle, plan, {items[0].id: Result(items[0].id, "waived")}) is None


@pytest.mark.parametrize(
    "rules",
    [
        [make_rule("L1.a", "L1.b"), make_rule("L1.b", "L1.a")],
        [make_rule("L0.a", "L1.b"), make_rule("L1.b")],
        [make_rule("L1.a", "L1.none")],
    ],
    ids=["circle", "upwards", "missing"],
)
def test_needs_that_cannot_be_met_are_an_error(rules):
    with pytest.raises(ValueError, match="cannot be met"):
        in_order(rules)


def test_two_cases_of_one_id_are_an_error(target):
    twins = make_rule("L0.a", cases=[Case("x"), NotDeclaredCase("x", "/p", "r")])
    with pytest.raises(ValueError, match="two cases of one id"):
        make_plan(target, "L0", {"L0.a": twins})


WAIVER = {
    "rule": "L1.a",
    "case": "x*",
    "adapter": "acme",
    "issue": "https://example.org/1",
    "expires": "2030-01-01",
}


def test_a_waiver_covers_until_its_day():
    (waiver,) = waivers.parse([WAIVER])
    item, failure = SuiteItem(make_rule("L1.a"), Case("x1")), Failure("a", "b")
    assert waivers.find([waiver], "acme", "L1.a", "x1") is waiver
    assert waivers.find([waiver], "acme", "L1.a", "y") is None
    assert waivers.find([waiver], "other", "L1.a", "x1") is None
    before = failed(item, failure, 0.1, waiver, datetime.date(2030, 1, 1))
    assert before.outcome == "waived" and before.waiver["issue"] == WAIVER["issue"]
    after = failed(item, failure, 0.1, waiver, datetime.date(2030, 1, 2))
    assert after.outcome == "fail" and "expired on 2030-01-01" in after.detail
    unexpected = passed(item, None, 0.1, waiver)
    assert unexpected.outcome == "fail" and unexpected.seen == "it passes"


@pytest.mark.parametrize(
    "change", [{"expires": "soon"}, {"issue": "none"}, {"vendor": "Acme"}, {"expires": None}]
)
def test_a_waiver_that_cannot_be_read_is_an_error(change):
    from vllm_adapter.errors import InputError

    with pytest.raises(InputError, match="waiver 0"):
        waivers.parse([WAIVER | change])


def test_a_waiver_of_no_rule_is_an_error():
    from vllm_adapter.errors import InputError

    with pytest.raises(InputError, match=r"L1\.a, which there is not"):
        waivers.check(waivers.parse([WAIVER]), registered().keys())
    waivers.check(waivers.shipped(), registered().keys())


def test_the_must_pass_list_is_that_of_the_rules():
    text = (SUITE / "certificate/mustpass.json").read_text(encoding="utf-8")
    assert text == mustpass.render(), "python -m vllm_adapter_conformance.certificate.mustpass"


def test_the_page_of_rules_is_up_to_date():
    text = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    assert text == pages.render(), "python -m vllm_adapter_conformance.cli.pages > docs/rules.md"


def test_every_rule_has_a_page():
    for id in registered():
        assert id in (pages.page(id) or "")
    assert pages.page("L1.none") is None
