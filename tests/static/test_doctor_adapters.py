"""The hook `diagnose` of adapters: each is asked alone, and a failing one is named."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.static

FINDS = """
from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def diagnose(self, host):
        line = host.report[0].text if host.report else "this machine"
        return [Finding("VA1702", Severity.WARNING, (Evidence(line, "line 1"),), "hot", "cool it")]
"""
RAISES = """
from vllm_adapter.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def diagnose(self, host):
        raise RuntimeError("no sensor")
"""
WRONG = """
from vllm_adapter.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def diagnose(self, host):
        return ["it is hot"]
"""
IMPORTED = "raise SystemExit('this adapter must not be imported')  # for its hook diagnose"
REPORT = "Linux box 6.8.0-79-generic #79 SMP x86_64 GNU/Linux\nthe fan of slot 3 stands still\n"


def doctor(site, report):
    done = site.run("-m", "vllm_adapter.cli", "doctor", "--report", str(report), "--json")
    return done, json.loads(done.stdout)


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "report.txt"
    path.write_text(REPORT, encoding="utf-8")
    return path


def test_findings_of_an_adapter_join_ours(site, report):
    site.make("hot", plugin=FINDS)
    done, answer = doctor(site, report)
    assert done.returncode == 1, done.stderr
    (one,) = answer["findings"]
    assert (one["code"], one["cause"]) == ("VA1702", "hot")
    assert one["evidence"][0]["text"].startswith("Linux box")


@pytest.mark.parametrize(
    ("plugin", "said"),
    [(RAISES, "no sensor"), (WRONG, "gave a str among its findings"), (IMPORTED, "must not be")],
)
def test_a_failing_adapter_is_named_and_the_others_are_asked(site, report, plugin, said):
    site.make("broken", plugin=plugin)
    site.make("hot", plugin=FINDS)
    done, answer = doctor(site, report)
    assert [one["code"] for one in answer["findings"]] == ["VA1702"]
    assert "broken" in done.stderr and said in done.stderr


def test_an_adapter_of_another_box_is_not_imported(site, report):
    site.make("other", plugin=IMPORTED, match=[{"pci_vendor": "fff1"}])
    done, answer = doctor(site, report)
    assert (done.returncode, answer["findings"], done.stderr) == (0, [], "")


def test_a_blocked_adapter_is_not_asked(site, report):
    site.make("hot", plugin=FINDS)
    done = site.run(
        "-m", "vllm_adapter.cli", "doctor", "--report", str(report),
        variables={"VA_ADAPTERS": "-hot"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
