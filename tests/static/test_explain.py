"""`vllm-adapter explain`."""

from __future__ import annotations

import json
import types
from pathlib import Path

import pytest

import vllm_adapter_cpu
from vllm_adapter import errors
from vllm_adapter.cli.decisions import Question, answers, sample_cases
from vllm_adapter.cli.main import main
from vllm_adapter.contract.codes import CODES
from vllm_adapter.contract.decision import OperatorEntry
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.contract.resolve import Provider
from vllm_adapter.discovery import distributions
from vllm_adapter.settings import Fallback, Settings

pytestmark = pytest.mark.static

ENTRY = {"support": "full", "dtypes": ["float16"], "run": "k:attention"}
CAPABILITY = Path(vllm_adapter_cpu.__file__).parent / "capabilities" / "x86_64.json"


@pytest.fixture
def package(tmp_path):
    """A package folder, and a function that writes its descriptor's operators."""

    def write(operators, arch="a1", name="a.json", folder="capabilities"):
        (tmp_path / folder).mkdir(exist_ok=True)
        raw = {
            "schema": "vllm-adapter/capability/1.0",
            "identity": {"vendor": "Acme", "arch": arch},
            "operators": operators,
        }
        (tmp_path / folder / name).write_text(json.dumps(raw))
        return str(tmp_path / folder / name)

    manifest = {
        "schema": "vllm-adapter/manifest/1.0",
        "name": "acme",
        "vendor": "Acme",
        "api": ">=1.0",
        "device": {"torch_type": "cpu"},
    }
    (tmp_path / "adapter.json").write_text(json.dumps(manifest))
    return tmp_path, write


def document(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_page(code, capsys):
    assert main(["explain", code.lower()]) == 0
    page = capsys.readouterr().out
    assert page.startswith(code) and "What to do: " in page


def test_every_error_has_a_code_that_is_registered():
    def tree(kind):
        yield kind
        for child in kind.__subclasses__():
            yield from tree(child)

    for kind in tree(errors.VllmAdapterError):
        assert kind.code in CODES, kind


def test_an_unknown_code_names_the_nearest(capsys):
    assert main(["explain", "VA3002"]) == 2
    err = capsys.readouterr().err
    assert "there is no code VA3002" in err and "VA3001" in err


def test_pages_of_other_packages(monkeypatch, capsys):
    def broken():
        raise ImportError("no luck")

    pages = types.SimpleNamespace(page=lambda key: "The rule." if key == "L2.x.y" else None)
    points = [
        types.SimpleNamespace(value="broken", load=broken),
        types.SimpleNamespace(value="pages", load=lambda: pages),
    ]
    real = distributions.entry_points
    monkeypatch.setattr(
        distributions,
        "entry_points",
        lambda group: points if group == "vllm_adapter.pages" else real(group),
    )
    assert main(["explain", "L2.x.y", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"key": "L2.x.y", "page": "The rule."}
    assert "no luck" in err
    assert main(["explain", "L2.x.z"]) == 2
    assert main(["explain", "L2.x.y", "rms_norm"]) == 2


def test_decisions_of_the_cpu_adapter(capsys):
    assert main(["explain", "cpu", "paged_attention", "--json"]) == 0
    for found in document(capsys)["descriptors"]:
        cases = found["operators"]["paged_attention"]
        assert cases[0]["decision"] == "accept"
        assert not [case for case in cases if case["decision"] == "reject"]
        assert "float8_e4m3fn" in {case["case"]["kv_dtype"] for case in cases}
    assert main(["explain", "cpu"]) == 0
    text = capsys.readouterr().out
    for name in OPERATORS:
        assert f"\n{name}: " in text


def test_text_says_what_is_declared_and_why_not(package, capsys, monkeypatch):
    monkeypatch.setenv("VA_FALLBACK", "error")
    folder, write = package
    write({"paged_attention": ENTRY | {"limits": {"head_size": {"min": 128}}}})
    assert main(["explain", str(folder), "paged_attention"]) == 0
    text = capsys.readouterr().out
    assert "candidates, best rank first: acme, core's portable code (VA_FALLBACK=error)" in text
    assert "the usual case: dtype=float16 head_size=128 " in text
    lines = {line.split()[0]: " ".join(line.split()) for line in text.splitlines() if line.strip()}
    pointer = "/operators/paged_attention"
    assert f"the usual case accept {pointer}" in " ".join(text.split())
    assert f"reject dtype not declared ({pointer}/dtypes" in lines["dtype=float32"]
    assert (
        f"reject head_size outside its limits ({pointer}/limits/head_size: got 64"
        in (lines["head_size=64"])
    )
    assert main(["explain", str(folder), "fused_add_rms_norm"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "the usual case reject fused_add_rms_norm is not declared" in text


def test_a_phase_that_the_adapter_does_not_serve_is_a_fallback_or_a_refusal(
    package, capsys, monkeypatch
):
    folder, write = package
    write({"paged_attention": ENTRY | {"limits": {"phase": ["decode"]}}})
    pointer = "/operators/paged_attention"
    words = ["explain", str(folder), "paged_attention"]
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"the usual case fallback {pointer}, only phase decode; core's portable code" in text
    assert f"only phase prefill or mixed: phase outside its limits ({pointer}/limits/phase" in text
    monkeypatch.setenv("VA_FALLBACK", "error")
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    reason = f"phase outside its limits ({pointer}/limits/phase: got 'prefill', need ['decode'])"
    assert f"the usual case reject {reason}" in text


def test_va_ops_decides_and_is_named(package, capsys, monkeypatch):
    folder, write = package
    write({"rms_norm": ENTRY})
    monkeypatch.setenv("VA_OPS", "rms_norm:torch")
    words = ["explain", str(folder), "rms_norm"]
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "the usual case accept core's portable code (VA_OPS names it)" in text
    assert main([*words, "--json"]) == 0
    (found,) = document(capsys)["descriptors"]
    usual = found["operators"]["rms_norm"][0]
    assert usual["picks"] == {"every step": "torch"}
    ranks = [(e["provider"], e["rank"], e["decision"]) for e in usual["entries"]]
    assert ranks == [("torch", "override", "accept"), ("acme", "device", "accept")]
    monkeypatch.setenv("VA_OPS", "rms_norm:acme")
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "dtype=float32 reject dtype not declared" in text and "VA_OPS asks for acme" in text
    monkeypatch.setenv("VA_OPS", "rms_norm:nobody")
    assert main(words) == 2
    assert "use one of: acme, torch" in capsys.readouterr().err


def test_a_composed_operator_names_what_it_is_made_of(package, capsys):
    folder, write = package
    write({"rms_norm": ENTRY})
    assert main(["explain", str(folder), "fused_add_rms_norm"]) == 0
    text = capsys.readouterr().out
    assert "not declared; composed of rms_norm" in text
    assert "accept /operators/rms_norm, composed" in " ".join(text.split())


def test_samples_differ_from_the_usual_case_in_one_fact():
    operator = OPERATORS["rotary_embedding"]
    cases = sample_cases(operator, ())
    assert cases[0] == {
        "dtype": "float32",
        "head_size": 32,
        "interleaved": False,
        "partial": False,
    }
    for case in cases[1:]:
        assert sum(case[name] != cases[0][name] for name in case) == 1
    assert len(cases) == 1 + 2 + 6 + 1 + 1
    nothing = OperatorEntry("unsupported", "/x")
    provider = Provider("acme", "device", {operator.name: [nothing]})
    alone = Question("acme", [provider], Settings(fallback=Fallback.ERROR))
    assert {answer.word for answer in answers(operator, alone, [nothing])} == {"reject"}


def test_diff_names_the_decisions_that_change(package, capsys, monkeypatch):
    monkeypatch.setenv("VA_FALLBACK", "error")
    folder, write = package
    write({"rms_norm": ENTRY, "linear": ENTRY})
    write({"rms_norm": ENTRY}, arch="a2", name="b.json")
    new = write({"rms_norm": ENTRY | {"dtypes": ["float16", "float32"]}}, folder="new")
    assert main(["explain", str(folder), "--diff", new, "--json"]) == 0
    found = [
        (c["operator"], c["old"]["decision"], c["new"]["decision"], c["new"]["case"]["dtype"])
        for c in document(capsys)["changes"]
    ]
    assert ("rms_norm", "reject", "accept", "float32") in found
    assert ("linear", "accept", "reject", "float16") in found
    assert not any(name == "rms_norm" and dtype == "bfloat16" for name, *_, dtype in found)
    assert main(["explain", str(folder), "rms_norm", "--diff", new]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "dtype=float32 reject: dtype not declared accept: k:attention" in text
    assert "linear" not in text
    assert main(["explain", str(folder), "--diff", str(folder / "capabilities" / "a.json")]) == 0
    assert "no decision changes" in capsys.readouterr().out
    other = write({}, arch="a9", folder="new")
    assert main(["explain", str(folder), "--diff", other]) == 2
    assert "its arches: a1, a2" in capsys.readouterr().err


def test_the_replacing_descriptor_is_explained(package, capsys, monkeypatch):
    _, write = package
    monkeypatch.setenv("VA_CAPABILITY", write({}, arch="mine"))
    assert main(["explain", "cpu", "rms_norm", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "VA_CAPABILITY replaces" in err
    (found,) = json.loads(out)["descriptors"]
    assert found["arch"] == "mine"
    why = found["operators"]["rms_norm"][0]["why"]
    assert why.startswith("core's portable code: rms_norm is not declared (/operators/rms_norm")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nobody"], "no adapter nobody is installed"),
        (["cpu", "rms_nom"], "did you mean rms_norm?"),
        (["cpu", "--diff", "no.json"], "No such file"),
        ([str(CAPABILITY)], "is a file, not an adapter"),
        (["/no/such/path"], "there is no file or folder"),
    ],
)
def test_bad_input(words, says, capsys):
    assert main(["explain", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err


def test_a_package_without_descriptors(package, capsys):
    folder, _ = package
    assert main(["explain", str(folder)]) == 2
    assert "names no capability descriptor" in capsys.readouterr().err


def test_a_level_lists_its_rules_and_a_wrong_rule_names_the_nearest(capsys):
    assert main(["explain", "L0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("L0: a level of ") and "\n  L0.descriptor.paths\n" in out
    assert main(["explain", "L0.descriptor.path"]) == 2
    assert "the nearest: L0.descriptor.paths" in capsys.readouterr().err
    assert main(["explain", "L9"]) == 2
    err = capsys.readouterr().err
    assert "there is no level L9" in err and "the levels: L0, L1" in err


def test_without_the_rules_their_package_is_named(monkeypatch, capsys):
    monkeypatch.setattr(distributions, "entry_points", lambda group: [])
    for key in ("L2", "L2.rms_norm.correct"):
        assert main(["explain", key]) == 2
        assert "rules come with vllm-adapter-conformance" in capsys.readouterr().err


def test_an_operator_alone_needs_an_adapter(capsys):
    assert main(["explain", "linear"]) == 2
    err = capsys.readouterr().err
    assert "linear is an operator" in err and "vllm-adapter explain cpu linear" in err


def test_an_adapter_that_is_not_used_is_explained_with_a_warning(monkeypatch, capsys):
    monkeypatch.setenv("VA_ADAPTERS", "-cpu")
    assert main(["explain", "cpu", "linear"]) == 0
    assert "warning: cpu is not used: VA_ADAPTERS denies it" in capsys.readouterr().err
