"""One version for all but adapters, pins that admit their neighbours, a changelog that builds."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import vllm_adapter

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2]
VERSION = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
FRAGMENTS = sorted(p for p in (ROOT / "changes").glob("*.md") if p.name != "README.md")


@pytest.fixture(scope="module")
def versions():
    spec = importlib.util.spec_from_file_location("versions", ROOT / "scripts/versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def projects():
    found = [ROOT / "pyproject.toml", *ROOT.glob("*/pyproject.toml")]
    found += ROOT.glob("adapters/*/pyproject.toml")
    return {path: tomllib.loads(path.read_text(encoding="utf-8"))["project"] for path in found}


def test_every_project_holds_the_one_version(versions):
    assert [str(path) for path, _ in versions.stale(VERSION)] == []
    assert vllm_adapter.__version__ == VERSION
    house = {path: p for path, p in projects().items() if "adapters" not in path.parts}
    assert {p["version"] for p in house.values()} == {VERSION}
    assert {path.parent.relative_to(ROOT).name for path in house} == set(versions.HOUSE)


def test_another_version_changes_every_pin(versions):
    for path, project in projects().items():
        text = versions.written(path, "7.8.9")
        lines = re.findall(r"vllm-adapter-core(?:\[[\w,]*\])?([=<>][^\"]*)", text)
        assert all(bound in ("==7.8.9", ">=7.8,<8") for bound in lines), path
        house = "adapters" not in path.parts
        assert tomllib.loads(text)["project"]["version"] == (
            "7.8.9" if house else project["version"]
        )


@pytest.mark.parametrize(
    ("version", "range_"),
    [("0.1.0", ">=0.1,<0.2"), ("0.12.3", ">=0.12,<0.13"), ("2.3.4", ">=2.3,<3")],
)
def test_what_an_adapter_takes(versions, version, range_):
    assert versions.compatible(version) == range_


def test_what_lies_in_this_tree_satisfies_every_pin_on_it():
    all_ = projects()
    have = {project["name"]: project["version"] for project in all_.values()}
    for path, project in all_.items():
        extras = project.get("optional-dependencies", {}).values()
        for line in [*project.get("dependencies", ()), *(x for extra in extras for x in extra)]:
            wanted = Requirement(line)
            if wanted.name.startswith("vllm-adapter-"):
                assert wanted.specifier.contains(have[wanted.name]), f"{path}: {line}"


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_names_its_issue_and_one_of_the_types(path):
    kinds = [kind["directory"] for kind in TOOLS["towncrier"]["type"]]
    assert re.fullmatch(rf"\d+\.({'|'.join(kinds)})\.md", path.name)


def test_the_changelog_can_be_built_and_holds_every_paragraph():
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", VERSION]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    for path in FRAGMENTS:
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            number = path.name.partition(".")[0]
            assert f"- {' '.join(paragraph.split())} (#{number})" in said, path
    assert f"## {VERSION}" in said


def test_the_page_of_changes_has_the_place_where_the_next_release_goes():
    page = (ROOT / TOOLS["towncrier"]["filename"]).read_text(encoding="utf-8")
    assert page.count(TOOLS["towncrier"]["start_string"]) == 1
