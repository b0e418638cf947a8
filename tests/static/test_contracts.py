"""The import contracts hold what they say: a planted fault breaks them, wherever it is planted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]
SOURCES = [*sorted(ROOT.glob("*/src")), *sorted(ROOT.glob("adapters/*/src"))]
ENGINE = "vllm_adapter.engine"
FREE = ("torch", "transformers", "vllm", "jsonschema")


def lint(folder):
    """What the import linter says of the packages in a folder."""
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "300", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copy(tmp_path):
    """All packages of this tree in one folder, with the contracts."""
    for source in SOURCES:
        for package in source.glob("vllm_adapter*"):
            shutil.copytree(
                package,
                tmp_path / package.name,
                ignore=shutil.ignore_patterns("__pycache__", "cookiecutter", "*.json", "*.so"),
            )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def modules(folder):
    """Every module below a folder, by its dotted name."""
    found = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_every_package_of_this_tree_is_under_contract():
    packages = {p.name for source in SOURCES for p in source.glob("vllm_adapter*") if p.is_dir()}
    assert packages == set(CONFIG["root_packages"])


def test_an_import_planted_in_any_torch_free_module_breaks_a_contract(copy):
    assert lint(copy).returncode == 0
    planted = {
        name: path
        for name, path in modules(copy).items()
        if not name.startswith((ENGINE, "vllm_adapter_conformance", "vllm_adapter_triton"))
        and name != "vllm_adapter_cpu.kernels"
    }
    assert len(planted) > 200 and "vllm_adapter.errors" in planted and "vllm_adapter" in planted
    for path in planted.values():
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"\nimport {name}\n" for name in FREE))
    done = lint(copy)
    assert done.returncode == 1
    said = set(re.findall(r"^- +(\S+) -> (\w+) ", done.stdout, re.MULTILINE))
    missed = {(name, free) for name in planted for free in FREE} - said
    assert missed == {("vllm_adapter.cli.checks", "jsonschema")}


def test_a_module_that_no_layer_names_breaks_a_contract(copy):
    roots = [*CONFIG["root_packages"], ENGINE]
    for package in roots:
        (copy / package.replace(".", "/") / "stranger.py").write_text("")
    done = lint(copy)
    assert done.returncode == 1
    assert {f"{name}.stranger" for name in roots} <= set(
        re.findall(r"[\w.]+\.stranger", done.stdout)
    )


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("vllm_adapter.errors", "import vllm_adapter.cli.main"),
        ("vllm_adapter.contract.resolve", "import vllm_adapter.discovery.registry"),
        ("vllm_adapter.broker.plugin", "import vllm_adapter_doctor"),
        ("vllm_adapter_doctor.report", "import vllm_adapter_doctor.cli.doctor"),
        ("vllm_adapter_doctor", "import vllm_adapter_conformance"),
        ("vllm_adapter_schemas", "import vllm_adapter"),
        ("vllm_adapter_vendors", "import vllm_adapter.errors"),
        ("vllm_adapter_cpu.plugin", "import vllm_adapter_cpu.kernels"),
        ("vllm_adapter_cpu.kernels", "import vllm_adapter_cuda"),
        ("vllm_adapter_cuda", "import vllm_adapter_doctor.findings"),
        ("vllm_adapter_conformance.plan", "import vllm_adapter_cpu"),
        ("vllm_adapter.engine.runtime.base", "import vllm_adapter.engine.ops.bind"),
        ("vllm_adapter.engine.process_objects", "import vllm_adapter.engine.blame"),
    ],
)
def test_an_arrow_the_wrong_way_breaks_a_contract(copy, module, line):
    with modules(copy)[module].open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1
    assert f"{module} -> {line.split()[1]}" in done.stdout
