"""Whole runs of the suite: its worker, its outcomes, its commands and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_adapter_conformance.certificate import claims
from vllm_adapter_conformance.certificate.document import canonical, digest

pytestmark = pytest.mark.null

PLUGINS = Path(__file__).parents[1] / "suite_plugins"
REQUIRES = ("vllm-adapter-core>=0.1,<0.2",)


@pytest.fixture
def faulty(site):
    """A site with the adapter whose runtime has the fault that FAULTY_RUNTIME names."""
    site.add("faulty_runtime", requires=REQUIRES)
    return site


@pytest.fixture
def command(site, tmp_path, monkeypatch):
    """Runs `vllm-adapter` in an empty folder that sees the site."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*words, **variables):
        done = site.run("-m", "vllm_adapter.cli", *words, variables=variables)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def certificate(name):
    return json.loads(Path("certificates", name).read_text(encoding="utf-8"))


def outcomes(document, rule=None):
    """Outcome by item, of one rule or of all."""
    return {
        f"{r['rule']}[{c['case']}]": c["outcome"]
        for r in document["rules"]
        for c in r["cases"]
        if rule in (None, r["rule"])
    }


def case(document, item):
    rule, _, name = item.removesuffix("]").partition("[")
    return next(
        c for r in document["rules"] if r["rule"] == rule for c in r["cases"] if c["case"] == name
    )


@pytest.mark.slow
def test_a_healthy_adapter_reaches_l1_and_an_empty_descriptor_no_l2(faulty, command):
    done = command("certify", "faulty_runtime", "--level", "L2", "--seed", "3")
    assert done.returncode == 1, done.stdout + done.stderr
    document = certificate("faulty_runtime-L2.json")
    assert document["level_reached"] == "L1" and document["seed"] == 3
    assert "fail" in outcomes(document, "L2.coverage.core").values()
    assert {outcomes(document)[item] for item in outcomes(document) if item[:2] != "L2"} == {
        "pass"
    }
    assert "the CPU stands in for the device" in document["headline"]
    assert document["headline"] in done.stdout
    assert "certificates/faulty_runtime-L2.json" in done.stdout
    assert document["settings"]["VA_FALLBACK"] == "error"
    assert command("validate", "certificates/faulty_runtime-L2.json").returncode == 0
    found = command(
        *("verify", "certificates/faulty_runtime-L2.json", "--against-installed"),
        *("--replay", "3", "--json"),
    )
    assert found.returncode == 0, found.stdout + found.stderr
    answer = json.loads(found.stdout)
    assert answer["ok"] and len(answer["replayed"]) == 3


@pytest.mark.slow
def test_crash_and_hang_are_told_apart_and_nothing_is_lost(faulty, site, tmp_path):
    file = tmp_path / "certificate.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--pyargs", "vllm_adapter_conformance"),
            *("--adapter", "faulty_runtime", "--level", "L1", "--certificate", str(file)),
            *("-p", "short_limits", "-p", "no:cacheprovider"),
        ],
        env=environment(site, FAULTY_RUNTIME="crashes_and_hangs"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    document = json.loads(file.read_text(encoding="utf-8"))
    trips = outcomes(document, "L1.copy.round_trip")
    failed = {item for item in trips if trips[item] != "pass"}
    failed.discard("L1.copy.round_trip[to 256 MiB]")  # whose time depends on the machine
    assert failed == {
        f"L1.copy.round_trip[{kind}]" for kind in ("bytes", "about a page", "megabytes")
    }
    crash = case(document, "L1.copy.round_trip[about a page]")["message"]
    left = case(document, "L1.copy.round_trip[bytes]")["message"]
    hang = case(document, "L1.copy.round_trip[megabytes]")["message"]
    assert "killed by SIGSEGV" in crash and "faults.py" in crash
    assert "left with exit code 7" in left
    assert "an end within 2 s; saw none: it hangs" in hang and "faults.py" in hang
    offsets = next(rule for rule in document["rules"] if rule["rule"] == "L1.copy.offset")
    found = {(one["outcome"], one["blocked_by"]) for one in offsets["cases"]}
    assert found == {("blocked", "L1.copy.round_trip")}
    assert set(outcomes(document, "L1.memory.alignment").values()) == {"pass"}
    counts = document["counts"]
    assert counts["fail"] >= 3 and sum(counts.values()) - counts["not_declared"] == len(
        outcomes(document)
    )
    assert "INTERNAL ERROR" not in done.stdout
    assert f"{counts['fail']} failed" in done.stdout and "blocked" in done.stdout


def environment(site, **variables):
    from fake_dist import environment

    found = environment(site.path, **variables)
    found["PYTHONPATH"] = os.pathsep.join([str(PLUGINS), found["PYTHONPATH"]])
    return found


@pytest.mark.slow
def test_a_failure_is_explained_and_can_be_run_again(faulty, command, site):
    done = command("certify", "faulty_runtime", "--level", "L1", FAULTY_RUNTIME="frees_twice")
    assert done.returncode == 1, done.stdout + done.stderr
    document = certificate("faulty_runtime-L1.json")
    assert document["level_reached"] == "L0" and document["badge"] is None
    failed = {item for item, outcome in outcomes(document).items() if outcome == "fail"}
    assert failed == {"L1.memory.freed[free]"}
    assert "expected  AllocationFreed for free after free()" in done.stdout
    assert "vllm-adapter explain L1.memory.freed" in done.stdout
    script = next(Path("certificates/repro").glob("*.py"))
    assert str(script) in done.stdout
    again = site.run(str(script), variables={"FAULTY_RUNTIME": "frees_twice"})
    assert again.returncode == 1 and "AllocationFreed" in again.stdout
    mended = site.run(str(script), variables={"FAULTY_RUNTIME": "none"})
    assert mended.returncode == 0, mended.stdout + mended.stderr
    page = command("explain", "L1.memory.freed")
    assert page.returncode == 0 and "handed to two owners" in page.stdout
    assert command("verify", "certificates/faulty_runtime-L1.json").returncode == 0

    # Whoever forges an outcome and all that follows from it is caught by a replay alone.
    forged = certificate("faulty_runtime-L1.json")
    for rule in forged["rules"]:
        for one in rule["cases"]:
            if one["outcome"] != "pass":
                one |= {"outcome": "pass", "message": None, "blocked_by": None}
    forged["level_reached"] = "L1"
    forged["counts"] = claims.counts(forged["rules"])
    forged["headline"] = claims.headline(forged)
    forged["digest"] = digest(forged)
    Path("forged.json").write_text(canonical(forged), encoding="utf-8")
    assert command("verify", "forged.json").returncode == 0
    done = command("verify", "forged.json", "--replay", "999", FAULTY_RUNTIME="frees_twice")
    assert done.returncode == 1
    assert "L1.memory.freed[free] was 'pass' and is 'fail' now" in done.stdout


def test_l0_needs_neither_probe_nor_device(faulty, command):
    assert command("certify", "cuda", "--level", "L0").returncode == 0
    assert certificate("cuda-L0.json")["device"] is None
    # The plug-in's runtime is not asked, so that its fault does not matter.
    done = command("certify", "faulty_runtime", "--level", "L0", FAULTY_RUNTIME="does_not_open")
    assert done.returncode == 0


def test_an_adapter_without_its_descriptor_is_refused_in_a_sentence(faulty, command, site):
    (site.path / "vllm_adapter_faulty_runtime/capabilities/any.json").unlink()
    done = command("certify", "faulty_runtime", "--level", "L0")
    assert done.returncode == 2
    assert "capabilities/any.json, which is not installed" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nobody"], "no adapter named nobody is installed"),
        (["faulty_runtime", "--device", "7"], "no device 7"),
        (["faulty_runtime", "--device", "-1"], "from zero up"),
        (["faulty_runtime", "--level", "L9"], "invalid choice"),
        (["faulty_runtime", "--level", "L0", "--output", "/proc/none/x.json"], "/proc/none"),
    ],
)
def test_what_cannot_be_certified_is_one_sentence(faulty, command, words, sentence):
    done = command("certify", *words)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_a_skip_is_an_internal_error(faulty, site, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--pyargs", "vllm_adapter_conformance"),
            *("--adapter", "faulty_runtime", "--level", "L0", "-p", "skips_a_rule"),
            *("-p", "no:cacheprovider", "--certificate", str(tmp_path / "none.json")),
        ],
        env=environment(site),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3
    assert "was skipped: not today" in done.stdout
    assert not (tmp_path / "none.json").exists()


def test_the_plugin_is_inert_in_other_runs(site, tmp_path):
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    for name in ('--device', '--seed', '--level', '--case'):\n"
        "        parser.addoption(name)\n",
        encoding="utf-8",
    )
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it(request):\n"
        "    assert request.config.getoption('--device') == 'tpu'\n"
        "    assert 'vllm_adapter_conformance.run.plugin' in sys.modules\n"
        "    assert not {'torch', 'vllm_adapter.engine', 'vllm_adapter'} & set(sys.modules)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--device", "tpu"],
        env=environment(site),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
