"""Adapters import core's public names alone, and what these are is held in core/api.txt."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_adapter
from vllm_adapter.contract.dotted import marked_methods, may_implement
from vllm_adapter_conformance.rules._inspect_child import hooks

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/make_api.py"
PUBLIC = frozenset({*vllm_adapter.__all__, "__version__"})
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
JINJA = re.compile(r"\{%.*?%\}|\{\{.*?\}\}")
HEAVY = ("torch", "pluggy", "jsonschema", "transformers", "importlib_metadata", "packaging")


def foreign(source: str) -> list[str]:
    """What a source imports of core beyond the public names."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("vllm_adapter.")]
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.startswith("vllm_adapter."):
                found.append(node.module)
            elif node.module == "vllm_adapter":
                found += [a.name for a in node.names if a.name not in PUBLIC]
    return found


INTRUDER = ROOT / "tests/plugins/hostile"
"""It reaches into the device's process, to show that this does not help it."""


def sources() -> list[Path]:
    folders = ("adapters", "template", "tests/plugins")
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if not path.is_relative_to(INTRUDER)]


@pytest.fixture(scope="module")
def make_api():
    spec = importlib.util.spec_from_file_location("make_api", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_an_adapter_imports_public_names_alone(path):
    assert foreign(JINJA.sub("0", path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name
)
def test_so_does_an_example_of_the_docs(page):
    for code in FENCE.findall(page.read_text(encoding="utf-8")):
        assert foreign(code) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("from vllm_adapter import hookimpl, generic, errors", ["errors"]),
        ("from vllm_adapter.errors import OutOfMemory", ["vllm_adapter.errors"]),
        ("import vllm_adapter.settings as s", ["vllm_adapter.settings"]),
        ("import vllm_adapter\nfrom vllm_adapter_cpu import kernels", []),
    ],
)
def test_what_is_not_public_is_seen(source, said):
    assert foreign(source) == said


def test_the_snapshot_is_up_to_date():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_list_is_sorted_and_each_name_has_one_home(make_api):
    names = make_api.public_names()
    assert names == sorted(set(names)) == sorted(make_api.homes())
    package = make_api.tree_of("vllm_adapter")
    checked = next(node for node in package.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == make_api.homes()


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, vllm_adapter; from vllm_adapter import UnsupportedCase, hookimpl, HostFacts\n"
        "assert 'torch' not in sys.modules and 'jsonschema' not in sys.modules\n"
    )
    light = f"import sys, vllm_adapter; assert not set({HEAVY!r}) & set(sys.modules)"
    for text in (light, code):
        subprocess.run([sys.executable, "-c", text], check=True)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="hookimp"):
        vllm_adapter.hookimp  # noqa: B018
    assert set(vllm_adapter.__all__) <= set(dir(vllm_adapter))


@pytest.mark.parametrize(
    ("base", "told"),
    [("", True), ("(AdapterSpec)", True), ("(v.AdapterSpec)", True), ("(X)", False)],
)
def test_the_hooks_of_a_class_are_read_without_an_import(tmp_path, monkeypatch, base, told):
    (tmp_path / "acme_hooks.py").write_text(
        "import vllm_adapter as v\nfrom vllm_adapter import AdapterSpec, hookimpl\n"
        f"class X: ...\nclass Plugin{base}:\n"
        "    @hookimpl\n    def describe(self): ...\n    def probe(self): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = "acme_hooks:Plugin"
    assert may_implement(plugin, "describe")
    assert may_implement(plugin, "implementations") is not told
    assert marked_methods(plugin, "hookimpl") == (("describe",) if told else ())
    assert hooks({"plugin": plugin}) == {"hooks": ["describe"], "unmarked": ["probe"]}
    sys.modules.pop("acme_hooks")
