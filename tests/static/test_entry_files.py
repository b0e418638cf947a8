"""Packages whose entry points end every reader of all of them, `import torch` included."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.discovery import entry_files
from vllm_adapter.discovery.distributions import entry_points, unclosed
from vllm_adapter.discovery.entry_files import AUTOLOAD, let_torch_be_imported, unreadable

pytestmark = pytest.mark.static

GROUP = "vllm_adapter.adapters"
SPOILT = {
    "not UTF-8": (lambda file: file.write_bytes(b"[console_scripts]\nx = \xff\n"), "UTF-8"),
    "UTF-16": (lambda file: file.write_text("[a]\nb = c\n", "utf-16"), "UTF-8"),
    "no equals sign": (lambda file: file.write_text("[a]\nb\n"), "the line 'b'"),
    "an unclosed section": (lambda file: file.write_text("[a]\nb = c\n[d\n"), "the line '[d'"),
    "a pipe": (os.mkfifo, "regular file"),
    "a loop": (lambda file: file.symlink_to(file.name), "symbolic links"),
    "without end": (lambda file: file.symlink_to("/dev/zero"), "regular file"),
}
PASSED_OVER = {
    "missing": lambda file: None,
    "a folder": Path.mkdir,
    "dangling": lambda file: file.symlink_to("nowhere"),
    "a comment": lambda file: file.write_text("# x\n[a]\n\n# y\nb = c\n"),
    "before any section": lambda file: file.write_text("b\n[a]\nb = c\n"),
    "a first section without an end": lambda file: file.write_text("[a\nb = c\n"),
    "a value of many": lambda file: file.write_text("[a]\nb = c = d [e]\n"),
}


def spoil(site, to_device, name="otherlib"):
    """Another package, which has nothing to do with us."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\n")
    to_device(folder / "entry_points.txt")
    return folder


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A site folder that is the whole path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize("how", SPOILT)
def test_a_package_that_ends_every_reader_is_found(alone, how):
    to_device, said = SPOILT[how]
    folder = spoil(alone, to_device)
    (one,) = unreadable()
    assert (one.distribution, one.file) == ("otherlib", folder / "entry_points.txt")
    assert said in one.why


@pytest.mark.parametrize("how", PASSED_OVER)
def test_what_python_passes_over_is_none(alone, how):
    spoil(alone, PASSED_OVER[how])
    assert unreadable() == []
    importlib.metadata.entry_points(group="a")


def test_only_the_first_of_a_name_is_read(tmp_path, monkeypatch):
    spoil(tmp_path / "one", PASSED_OVER["a comment"])
    spoil(tmp_path / "two", SPOILT["not UTF-8"][0])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "one"), str(tmp_path / "two")])
    assert unreadable() == []
    monkeypatch.setattr(sys, "path", [str(tmp_path / "two"), str(tmp_path / "one")])
    assert len(unreadable()) == 1


LINES = st.sampled_from(
    ["[a]", "[a", "a]", "b", "b = c", "=", "# d", "", "  [e]  ", "\x0c", "\xa0"]
)
TEXTS = st.one_of(
    st.binary(max_size=30),
    st.lists(LINES, max_size=8).map(lambda lines: "\n".join(lines).encode()),
)


@given(TEXTS)
def test_python_reads_what_we_call_readable_and_nothing_else(content):
    with tempfile.TemporaryDirectory() as folder:
        info = spoil(Path(folder), lambda file: file.write_bytes(content))
        distribution = importlib.metadata.Distribution.at(info)
        try:
            list(distribution.entry_points)
            read = True
        except (ValueError, TypeError):
            read = False
        assert (entry_files._fault(info / "entry_points.txt") == "") == read


@pytest.mark.parametrize("was", [None, "1", "0", "other"])
@pytest.mark.parametrize("spoilt", [False, True])
def test_torch_is_told_not_to_ask_only_where_asking_would_end_it(alone, monkeypatch, was, spoilt):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    given = {} if was is None else {AUTOLOAD: was}
    monkeypatch.setattr(os, "environ", given)
    if spoilt:
        spoil(alone, SPOILT["a pipe"][0])
    let_torch_be_imported()
    due = "0" if spoilt and was in (None, "1") else was
    assert given.get(AUTOLOAD) == due


@pytest.mark.parametrize("name", ["vllm-adapter-acme", "acme-tools"])
def test_an_adapter_under_a_section_without_an_end_is_broken(alone, name):
    spoil(alone, lambda file: file.write_text(f"[{GROUP}\nacme = vllm_adapter_acme\n"), name)
    (point,) = entry_points(GROUP, faulty=True)
    assert point.distribution == name and f"'[{GROUP}' has no closing bracket" in point.fault
    assert entry_points(GROUP) == []


def test_a_section_without_an_end_of_somebody_else_is_not_ours(alone):
    spoil(alone, lambda file: file.write_text("[console_scripts\nacme = acme:main\n"))
    assert entry_points(GROUP, faulty=True) == []


def test_the_first_line_of_a_section_without_an_end():
    assert unclosed("[a]\nb = c\n") is None
    assert unclosed("[a]\n [b \nc\n") == "[b"


@pytest.mark.parametrize("how", ["not UTF-8", "a pipe"])
def test_the_package_of_another_is_named_and_cpu_runs(site, how):
    spoil(site.path, SPOILT[how][0])
    done = site.run("-m", "vllm_adapter.cli", "list", "--probe", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row["status"] for row in json.loads(done.stdout)["adapters"]}
    assert rows["cpu"] == "ok"
    assert "otherlib: its entry_points.txt" in done.stderr
    done = site.run("-m", "vllm_adapter.cli", "doctor", "--json")
    assert done.returncode == 1
    found = [one for one in json.loads(done.stdout)["findings"] if one["code"] == "VA0403"]
    assert len(found) == 1 and "otherlib" in found[0]["cause"]
    assert "import torch" in found[0]["cause"] and AUTOLOAD in found[0]["action"]


@pytest.mark.device
def test_the_engine_imports_torch_beside_a_spoilt_package(site):
    spoil(site.path, SPOILT["not UTF-8"][0])
    done = site.run("-c", "import torch")
    assert done.returncode == 1 and "UnicodeDecodeError" in done.stderr
    lines = (
        "from vllm_adapter.engine.device import open_device",
        "print(open_device('cpu').device)",
    )
    done = site.run("-c", "\n".join(lines))
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr
