"""The hook `diagnose` of adapters: each is asked alone, and a failing one is named."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.static

FINDS = """
from vllm_adapter.contract.finding import Evidence, Finding, Severity
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def diagnose(self, host):
        line = host.report[0].text if host.report else "this machine"
        return [Finding("VA1702", Severity.WARNING, (Evidence(line, "line 1"),), "hot", "cool it")]
"""
RAISES = """
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def diagnose(self, host):
        raise RuntimeError("no sensor")
"""
WRONG = """
from vllm_adapter.contract.hookspecs import hookimpl

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


@pytest.fixture
def this_machine(site):
    """this_machine() runs the doctor here: (process, the findings of installed adapters)."""

    def run():
        done = site.run("-m", "vllm_adapter.cli", "doctor", "--json")
        found = json.loads(done.stdout)["findings"]
        return done, [one for one in found if one["code"] == "VA0401"]

    return run


def test_installed_adapters_that_are_in_order_are_no_finding(site, this_machine):
    site.make("hot")
    site.make("other", match=[{"pci_vendor": "fff1"}])
    assert this_machine()[1] == []


def unreadable(content):
    def spoil(site):
        site.make("hot")
        (info,) = site.path.glob("vllm_adapter_hot-*.dist-info")
        (info / "entry_points.txt").write_bytes(content)

    return spoil


TEXT = "[vllm_adapter.adapters]\nhot = vllm_adapter_hot\n"
SPOILT = {
    "a future interface": (lambda site: site.make("hot", api=">=7,<8"), "error", "it needs a"),
    "a bad manifest": (lambda site: site.make("hot", matches=[]), "error", "/matches"),
    "not UTF-8": (unreadable(TEXT.encode() + b"# \xe4\n"), "error", "it is not UTF-8 text"),
    "UTF-16": (unreadable(TEXT.encode("utf-16")), "error", "it is not UTF-8 text"),
    "a second one": (lambda site: site.make("hot") and site.add("twin", entry_name="hot"),
                     "warning", "has an adapter of the same name"),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_an_installed_adapter_that_cannot_be_used_is_a_finding(site, this_machine, how):
    spoil, severity, said = SPOILT[how]
    spoil(site)
    done, found = this_machine()
    (one,) = found
    assert done.returncode == 1
    assert one["severity"] == severity
    assert "adapter hot (vllm-adapter-" in one["cause"]
    assert said in one["evidence"][0]["text"]
    assert one["action"].startswith("run `")
    assert "nothing wrong found" not in done.stdout


def test_what_the_last_probe_found_is_a_finding_of_this_machine_alone(site, this_machine, report):
    site.add("segfaults")
    site.run("-m", "vllm_adapter.cli", "list", "--probe")
    (one,) = (one for one in this_machine()[1] if "adapter segfaults" in one["cause"])
    assert "its probe" in one["evidence"][0]["text"]
    assert doctor(site, report)[1]["findings"] == []


def test_a_distribution_of_any_name_that_mentions_the_group_is_reported_by_list(site):
    site.make("hot")
    (info,) = site.path.glob("vllm_adapter_hot-*.dist-info")
    info = info.rename(site.path / "acme_tools-1.0.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    for content, status in ((b"\xff" + TEXT.encode(), "broken"), (b"\xff\xfe[", None)):
        (info / "entry_points.txt").write_bytes(content)
        done = site.run("-m", "vllm_adapter.cli", "list", "--json")
        found = {one["distribution"]: one for one in json.loads(done.stdout)["adapters"]}
        assert found.get("acme-tools", {}).get("status") == status
    (info / "entry_points.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    done = site.run("-m", "vllm_adapter.cli", "list", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)["adapters"]}
    assert found["hot"]["status"] == "not probed"
