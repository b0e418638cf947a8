"""The page of the architecture speaks of this tree: its rooms, its files, its decisions."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest

from vllm_adapter.cli.owners import OWNERS

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = CONFIG["tool"]["importlinter"]["contracts"]
PLACES = (
    ROOT,
    ROOT / "core/src/vllm_adapter",
    ROOT / "doctor/src/vllm_adapter_doctor",
    ROOT / "conformance/src/vllm_adapter_conformance",
    ROOT / "vendors/src/vllm_adapter_vendors",
    ROOT / "vendors/src/vllm_adapter_vendors/findings",
)
NAMED = sorted(set(re.findall(r"`([\w/]+\.(?:py|txt|toml)|[a-z_]+/(?:[\w]+/)*)`", PAGE)))
NAMED = [name for name in NAMED if "KIND" not in name and name != "kernels.py"]
DECISIONS = sorted((ROOT / "docs/decisions").glob("0*.md"))
PARTS = ("Context", "Options", "Decision", "Consequences")


def rooms(package: str) -> list[list[str]]:
    """The layers of a package's own contract, top first."""
    (layers,) = (
        c["layers"]
        for c in CONTRACTS
        if c["type"] == "layers" and c.get("containers") == [package]
    )
    return [sorted(re.findall(r"\w+", layer)) for layer in layers]


@pytest.mark.parametrize("name", NAMED)
def test_a_file_that_the_page_names_is_there(name):
    assert any((place / name).exists() for place in PLACES)


@pytest.mark.parametrize(
    "package",
    ["vllm_adapter", "vllm_adapter.engine", "vllm_adapter_doctor", "vllm_adapter_conformance"],
)
def test_the_page_lists_the_rooms_as_the_contract_has_them(package):
    blocks = [
        re.findall(r"^    (\w+)  |;  (\w+):", block, re.MULTILINE)
        for block in re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE)
    ]
    listed = [[a or b for a, b in block] for block in blocks]
    wanted = rooms(package)
    (found,) = (block for block in listed if sorted(block) == sorted(itertools.chain(*wanted)))
    for layer in wanted:
        assert sorted(found[: len(layer)]) == layer
        found = found[len(layer) :]


def test_there_is_a_row_for_each_distribution():
    folders = [p.parent.name for p in ROOT.glob("*/pyproject.toml")]
    folders += [p.parent.name for p in ROOT.glob("adapters/*/pyproject.toml")]
    table = PAGE.partition("## Rooms")[0]
    assert [name for name in folders if name not in table] == []


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.name)
def test_a_decision_has_its_four_parts_and_is_listed(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == list(PARTS)
    assert f"# {int(path.name[:4])}. " in text
    assert path.name in PAGE and path.name in (path.parent / "README.md").read_text("utf-8")


def test_the_readme_names_every_command_of_ours():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [
        name for name in OWNERS if not re.search(rf"`(?:\S*vllm-adapter )?{name}\b", readme)
    ] == []
