"""Runs tests/vllm/test_release.py under several releases of vLLM, in an environment of each.

    python scripts/vllm_matrix.py [RELEASE ...]

Without a release: each that there is a snapshot of its hooks. An environment lies over .venv-vllm,
is made by scripts/make_vllm_release and removed after its run (KEEP=1 keeps it). Printed is what
each release did; the reports are in vllm-matrix/. Exit code 1 where one failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

SNAPSHOTS = Path("core/src/vllm_adapter/engine/integrations/vllm")
REPORTS = Path("vllm-matrix")
TESTS = Path("tests/vllm/test_release.py")


def releases() -> list[str]:
    """Every release that there is a snapshot of, oldest first."""
    files = SNAPSHOTS.glob("signatures-*.json")
    found = [json.loads(file.read_text("utf-8"))["vllm"] for file in files]
    return sorted(found, key=lambda text: [int(part) for part in text.split(".")])


def run(release: str) -> dict[str, str]:
    """Outcome by test; empty where the environment could not be made."""
    env, report = Path(f".venv-vllm-{release}"), REPORTS / f"{release}.xml"
    try:
        if subprocess.run(["scripts/make_vllm_release", release]).returncode:
            return {}
        command = [str(env / "bin/python"), "-m", "pytest", str(TESTS), f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1"]
        subprocess.run(command)
        return outcomes(report)
    finally:
        if not os.environ.get("KEEP"):
            shutil.rmtree(env, ignore_errors=True)


def outcomes(report: Path) -> dict[str, str]:
    """What a JUnit file says of each test."""
    if not report.exists():
        return {}
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = case.find("failure") is not None or case.find("error") is not None
        found[case.get("name", "")] = "failed" if wrong else "passed"
    return found


def main() -> None:
    """Prints a row a release."""
    REPORTS.mkdir(exist_ok=True)
    wrong = False
    for release in sys.argv[1:] or releases():
        found = run(release)
        cells = [f"{name}: {outcome}" for name, outcome in found.items()] or ["no environment"]
        print("\n".join([release, *(f"  {cell}" for cell in cells)]), flush=True)
        wrong = wrong or not found or "failed" in found.values()
    sys.exit(wrong)


if __name__ == "__main__":
    main()
