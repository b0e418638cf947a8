"""The installed torch's build, read without importing it."""

from __future__ import annotations

import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.hostfacts import facts as f
from vllm_adapter.hostfacts.live import collect
from vllm_adapter.hostfacts.torch_build import installed_torch_build, parse_version_py

pytestmark = pytest.mark.static


def build(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


VERSION_PY = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'xpu']
__version__ = {version!r}
debug = False
cuda: Optional[str] = {cuda!r}
git_version = 'abc'
hip: Optional[str] = {hip!r}
xpu: Optional[str] = {xpu!r}
"""


@pytest.mark.parametrize(
    "build",
    [
        f.TorchBuild("2.13.0+cpu", "cpu"),
        f.TorchBuild("2.13.0+cu130", "cu130", cuda="13.0"),
        f.TorchBuild("2.13.0+rocm7.0", "rocm7.0", hip="7.0.51831"),
        f.TorchBuild("2.13.0+xpu", "xpu", xpu="20250301"),
        f.TorchBuild("2.13.0"),
        f.TorchBuild("2.14.0a0+gitabc", "gitabc"),
    ],
    ids=lambda build: build.version,
)
def test_builds_of_torch(build):
    text = VERSION_PY.format(version=build.version, cuda=build.cuda, hip=build.hip, xpu=build.xpu)
    assert parse_version_py(text) == build


@pytest.mark.parametrize(
    "text",
    ["", "\0", "def", "(" * 500, "__version__ = 3", "__version__ = f()", "cuda: str", "a.b = 'c'"],
)
def test_garbage_is_no_build(text):
    assert parse_version_py(text) == f.TorchBuild()


@given(st.text(max_size=60))
def test_no_text_crashes_the_torch_parser(text):
    assert isinstance(parse_version_py(text), f.TorchBuild)


def test_code_in_version_py_is_not_run(tmp_path):
    mark = tmp_path / "ran"
    parse_version_py(f"open({str(mark)!r}, 'w')\n__version__ = '1'\n")
    assert not mark.exists()


@pytest.fixture
def only_on_path(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(
        sys,
        "meta_path",
        [m for m in sys.meta_path if getattr(m, "__module__", "") == "_frozen_importlib_external"],
    )
    return tmp_path


def test_torch_is_found_without_importing_it(only_on_path):
    build(only_on_path, {"torch/__init__.py": "1 / 0", "torch/version.py": "__version__ = '9+x'"})
    assert installed_torch_build() == f.TorchBuild("9+x", "x")


def test_no_torch(only_on_path):
    assert installed_torch_build() is None
    (only_on_path / "torch").mkdir()
    assert installed_torch_build() is None  # a folder of that name is no torch


def test_a_torch_without_version_py_is_unknown(only_on_path):
    build(only_on_path, {"torch/__init__.py": ""})
    facts = collect(only_on_path)
    assert facts.torch == f.TorchBuild()
    assert facts.where("torch.version") == "torch/version.py: __version__"


def test_a_stand_in_for_torch_without_a_spec(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert installed_torch_build() is None
