"""The files of findings: every rule is fired by its sample, and each fault is one clear error."""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vllm_adapter_vendors
from vllm_adapter.cli.main import main
from vllm_adapter.contract import codes
from vllm_adapter.contract.codes import CODES
from vllm_adapter.engine.registries import reset
from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, OsFacts, TorchBuild
from vllm_adapter_doctor.findings import conditions, faults, register
from vllm_adapter_doctor.findings.groups import named_groups
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.register import all_rules
from vllm_adapter_doctor.findings.template import places, render
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

RULES = all_rules()
CASES = [(rule, case) for rule in RULES for case in rule.cases if not case.silent]
FILES = sorted(Path(vllm_adapter_vendors.__file__).parent.glob("findings/*.toml"))


@pytest.mark.parametrize(("rule", "case"), CASES, ids=lambda one: one.where)
def test_a_sample_fires_its_case_and_gets_no_other_code(rule, case):
    assert list(faults.of_sample(rule, case)) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda one: one.where)
def test_no_place_of_a_sentence_may_be_empty(rule):
    assert [*faults.of_patterns(rule), *faults.of_places(rule)] == []


def test_every_code_of_a_rule_says_what_one_sees():
    assert all(CODES[case.code].symptom for _, case in CASES)


def test_every_code_of_a_box_has_a_rule():
    without = {code for code in CODES if code.startswith("VA1")} - {case.code for _, case in CASES}
    assert without == set()


def test_the_page_of_a_code_tells_causes_and_which_no_real_report_has_fired(capsys):
    assert {code for code, page in CODES.items() if page.causes} == {c.code for _, c in CASES}
    seen = {}
    for _, case in CASES:
        known = seen.setdefault(case.code, [])
        known.append(case.seen)
    for code, page in CODES.items():
        assert any(told for _, told in page.causes) is any(seen.get(code, ()))
    assert main(["explain", "VA1117"]) == 0
    assert "software of <right_release> (unseen: no real report has fired this rule)" in (
        capsys.readouterr().out
    )
    assert main(["explain", "VA1101"]) == 0
    out = capsys.readouterr().out
    assert "the minimum of every CUDA <major>.x runtime" in out and "no real report" not in out


def test_the_example_of_the_readme_is_one(one_file):
    text = (FILES[0].parents[3] / "README.md").read_text(encoding="utf-8")
    (rule,) = one_file(text.split("```toml")[1].split("```")[0])
    assert [*faults.of_places(rule), *faults.of_sample(rule, rule.cases[0])] == []


def test_no_rule_asks_for_a_vendor_by_name_in_code():
    for file in Path(faults.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"vendor\w* (?:==|!=|in|not in) [(\"']", text), file


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_short_and_its_prose_is_read_in_one_line(file):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500
    assert tomllib.loads(text)


@pytest.fixture
def one_file(fresh, monkeypatch):
    """A function that reads the rules of one file that it is given as TOML."""

    def read(text):
        document = tomllib.loads(text)
        monkeypatch.setattr(register, "documents", lambda: {"some": document})
        monkeypatch.setattr(conditions, "documents", lambda: {"some": document})
        reset()
        return register.rules_of.__wrapped__("some")

    return read


RULE = """
[[rules]]
code = 'VA1101'
words = ['too old']
pattern = 'too old (?P<what>\\w+)(?: of (?P<who>\\w+))?'
cause = 'the {what} is too old'
sample = 'too old driver'
"""


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("sample = 'too old driver'", "", "a text in sample"),
        ("sample = 'too old driver'", "sample = ' '", "a text in sample"),
        ("cause = 'the {what} is too old'", "", "a text in cause"),
        ("VA1101", "VA1999", "a code that a table"),
        ("words = ['too old']", "", "words, in small letters"),
        ("words = ['too old']", "words = ['Too old']", "words, in small letters"),
        ("words = ['too old']", "words = 'too old'", "a list in words"),
        ("words = ['too old']", "words = [1]", "texts in words"),
        ("words = ['too old']", "words = ['too old']\nfunction = 'driver.too_old'", "one of"),
        ("pattern =", "patern =", "one of pattern, function"),
        ("cause =", "colour = 'red'\ncause =", "one of the fields"),
        ("cause =", "severity = 'fatal'\ncause =", "error, warning or note"),
        ("cause =", "also = ['VA9999']\ncause =", "codes of the register"),
        ("cause =", "seen = 'no'\ncause =", "true or false in seen"),
        ("cause =", "when = { vendr = 'cuda' }\ncause =", "one of accelerator"),
        ("cause =", "when = { vendor = 1 }\ncause =", "a text, or a list of texts"),
        ("cause =", "when = {}\ncause =", "a table of conditions"),
        ("cause =", "when = { is = 'nobody' }\ncause =", "one of"),
        ("cause =", "when = { any = { vendor = 'cuda' } }\ncause =", "a list of tables"),
    ],
)
def test_each_fault_is_one_error_that_names_place_and_need(one_file, was, becomes, said):
    assert was in RULE
    with pytest.raises(InputError, match=r"findings/some\.toml, rule 1") as caught:
        one_file(RULE.replace(was, becomes, 1))
    assert said in caught.value.message
    assert "reinstall" in caught.value.hint


def test_a_function_that_is_not_there_is_an_error(one_file):
    text = "[[rules]]\nfunction = 'driver.nothing'\ncode = 'VA1101'\ncause = 'x'\nsample = 'x'\n"
    with pytest.raises(InputError, match=r"MODULE\.FUNCTION"):
        one_file(text)
    with pytest.raises(InputError, match="the tables codes, conditions, rules"):
        one_file("[[rule]]\ncode = 'VA1101'\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"title": ""}, "a text in title"),
        ({"meaning": 3}, "a text in meaning"),
        ({"page": "more"}, "no other field"),
        ({"explains": ["VA9999"]}, "codes of the register"),
    ],
)
def test_a_page_of_a_code_is_checked(monkeypatch, change, said):
    document = {"codes": {"VA1101": {"title": "t", "meaning": "m", "action": "a"} | change}}
    monkeypatch.setattr(codes, "documents", lambda: {"some": document})
    with pytest.raises(InputError, match=said):
        dict(codes._Register())


def test_a_code_stands_once(monkeypatch):
    page = {"codes": {"VA1101": {"title": "t", "meaning": "m", "action": "a"}}}
    monkeypatch.setattr(codes, "documents", lambda: {"one": page, "two": copy.deepcopy(page)})
    with pytest.raises(InputError, match="a code once in all files"):
        dict(codes._Register())


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("{what}", "{who}", "may be empty"),
        ("{what}", "{size}", "nothing fills {size}"),
        ("'too old driver'", "'as good as new'", "does not fire"),
        ("'too old driver'", "'too old driver: libcuda.so.1: cannot open shared object file'",
         "its sample gets"),
        ("\\w+)(?:", "\\w+(?:", "is no pattern"),
    ],
)  # fmt: skip
def test_what_an_author_gets_wrong_is_told(one_file, was, becomes, said):
    (rule,) = one_file(RULE.replace(was, becomes, 1))
    found = list(faults.of_patterns(rule))
    if not found:
        found = [*faults.of_places(rule), *faults.of_sample(rule, rule.cases[0])]
    assert any(said in one for one in found), found


def test_a_further_way_to_say_the_same_is_one_place(one_file):
    text = RULE.replace("too old (?P<what>\\w+)(?: of (?P<who>\\w+))?", PATTERN)
    (rule,) = one_file(text)
    assert list(faults.of_places(rule)) == []
    for said in ("too old driver", "driver is too old"):
        (finding,) = rule.check(ExaminedHost(parse_report(f"{said}\n")))
        assert finding.cause == "the driver is too old"


PATTERN = "too old (?P<what>\\w+)|(?P<what_2>\\w+) is too old"


@pytest.mark.parametrize(
    ("pattern", "always"),
    [
        (r"(?P<a>x)", {"a": True}),
        (r"(?P<a>x*)", {"a": False}),
        (r"(?P<a>x)?y", {"a": False}),
        (r"(?:(?P<a>x))+y", {"a": True}),
        (r"(?P<a>x)|y", {"a": False}),
        (r"(?P<a>x)|(?P<a_2>y)", {"a": True}),
        (r"(?=(?P<a>x))y", {"a": True}),
        (r"(?!(?P<a>x))y", {"a": False}),
    ],
)
def test_whether_a_group_always_says_something(pattern, always):
    assert named_groups(pattern) == always


word = st.text(st.characters(codec="ascii", categories=("Lu", "Ll", "Nd")), min_size=1)


@given(word, st.one_of(st.just(""), word), word)
def test_a_part_in_brackets_stands_only_when_it_says_something(start, value, end):
    text = f"{start}[[ ({{who}})]] {end}"
    assert render(text, {"who": value}) == (
        f"{start} ({value}) {end}" if value else f"{start} {end}"
    )
    assert places(text) == (frozenset(), frozenset({"who"}))


GPU = Accelerator("cuda", 0, "nvidia-smi")
HIP = TorchBuild(version="2.7.0", hip="6.3")


@pytest.mark.parametrize(
    ("table", "facts", "holds"),
    [
        ({"vendor": "rocm"}, HostFacts(), True),
        ({"vendor": "rocm"}, HostFacts(accelerators=(GPU,)), False),
        ({"vendor": ["rocm", "cuda"]}, HostFacts(accelerators=(GPU,)), True),
        ({"device": "none"}, HostFacts(), True),
        ({"device": "any"}, HostFacts(), False),
        ({"device": "any"}, HostFacts(accelerators=(GPU,)), True),
        ({"build": "rocm"}, HostFacts(torch=HIP), True),
        ({"runtime": "rocm", "build": "cuda"}, HostFacts(torch=HIP), False),
        ({"not": {"build": "rocm"}}, HostFacts(torch=HIP), False),
        ({"any": [{"build": "cuda"}, {"build": "rocm"}]}, HostFacts(torch=HIP), True),
        ({"any": [{"build": "cuda"}, {"build": "cpu"}]}, HostFacts(torch=HIP), False),
        ({"is": "cuda"}, HostFacts(), True),
        ({"is": "cuda"}, HostFacts(torch=HIP), False),
        ({"environment": "wsl"}, HostFacts(os=OsFacts(environment=("wsl2",))), True),
        ({"variable": "A="}, HostFacts(environment=(("A", ""),)), True),
        ({"variable": "A="}, HostFacts(), False),
    ],
)
def test_conditions(table, facts, holds):
    assert conditions.read(table, "here").holds(ExaminedHost(facts)) is holds
