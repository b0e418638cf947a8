"""The certificates under docs/ stay sound, whatever release of the suite reads them."""

from __future__ import annotations

import json
import re
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from vllm_adapter.cli.main import main
from vllm_adapter_conformance.certificate import mustpass
from vllm_adapter_conformance.certificate.verification import faults, load

pytestmark = pytest.mark.static

FOLDER = Path(__file__).parents[2] / "docs/certificates"
COMMITTED = sorted(FOLDER.glob("*.json"))


def test_readme_links_only_what_is_there_and_verifies():
    text = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    linked = [
        FOLDER.parents[1] / path for path in re.findall(r"\]\((docs/certificates/[^)]*)\)", text)
    ]
    assert linked
    for path in linked:
        assert faults(load(path)) == [], path


def test_there_is_one_from_real_hardware_that_is_not_the_host():
    assert FOLDER / "cuda-L2.json" in COMMITTED


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_it_is_sound(path):
    document = load(path)
    assert faults(document) == []
    assert document["grade"] == "release"
    assert document["level_reached"] == path.stem.rpartition("-")[2]


OLDER = [
    path
    for path in COMMITTED
    if load(path)["suite"]["mustpass_sha256"] != mustpass.committed_sha256()
]


@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.name)
def test_verify_says_of_which_suite_it_is(path, capsys):
    document = load(path)
    assert main(["verify", str(path)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    own = mustpass.listed(document["suite"]["mustpass_sha256"])
    asked = document["level_asked"]
    lacking = len(mustpass.committed().up_to(asked) - own.up_to(asked))
    assert lacking and f"without {lacking} of the" in first and "by an earlier suite" in first
    again = f"certify {document['adapter']['name']} --level {asked}"
    assert any(again in line for line in rest)


LISTS = Path(mustpass.__file__).parent / "lists"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_the_list_of_rules_that_it_names_is_known(path):
    assert mustpass.listed(load(path)["suite"]["mustpass_sha256"]) is not None


def test_no_list_that_another_names_was_forgotten():
    digest, seen = mustpass.committed().before, set()
    assert digest is not None
    while digest is not None:
        found = mustpass.listed(digest)
        assert found is not None, f"certificate/lists lacks {digest}.json: git has it"
        assert digest not in seen
        seen.add(digest)
        digest = found.before


def test_a_kept_list_bears_its_hash_and_is_one():
    assert mustpass.kept()
    for digest in mustpass.kept():
        path = LISTS / f"{digest}.json"
        assert sha256(path.read_bytes()).hexdigest() == digest
        found = mustpass.listed(digest)
        assert found is not None and found.up_to("L2")


def test_a_list_that_is_replaced_is_kept_and_named(tmp_path):
    shutil.copy(LISTS.parent / "mustpass.json", tmp_path)
    (tmp_path / "lists").mkdir()
    path = tmp_path / "mustpass.json"
    assert mustpass.renew(tmp_path) is None and not any((tmp_path / "lists").iterdir())
    raw = json.loads(path.read_text()) | {"preview": ["L0.package.older"]}
    path.write_text(json.dumps(raw, indent=1))
    old = path.read_bytes()
    digest = mustpass.renew(tmp_path)
    assert digest == sha256(old).hexdigest()
    assert (tmp_path / "lists" / f"{digest}.json").read_bytes() == old
    assert json.loads(path.read_text())["before"] == digest


def test_a_list_without_certificates_may_go(tmp_path):
    path = tmp_path / "mustpass.json"
    path.write_text("{}")
    assert mustpass.renew(tmp_path, keep=False) is None
    assert json.loads(path.read_text())["before"] == mustpass.committed().before
