"""docs/first-adapter.md: its commands are run as they stand, in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import venv
from pathlib import Path

import pytest

from vllm_adapter.contract.operators import CORE_OPERATORS

pytestmark = [pytest.mark.device, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs" / "first-adapter.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+(?:\\\.\d+)?")
"""A number in a text that `re.escape` has been over."""


def blocks(kind):
    """The fenced blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands():
    """Each command of the page, with the output that the page shows for it."""
    parts = [part for block in blocks("console") for part in re.split(r"^\$ ", block, flags=re.M)]
    return [tuple(part.split("\n", 1)) for part in parts if part]


def pattern(shown):
    """The page's output as a pattern: any number for a number, anything for `...`."""
    escaped = re.escape(" ".join(shown.split())).replace(r"\-", "-").replace(r"\ ", " ")
    return NUMBER.sub(r"-?\\d+(?:\\.\\d+)?", escaped).replace(r"\.\.\.", ".*")


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs a command line where this environment's packages are seen, and new ones are apart."""
    folder = tmp_path_factory.mktemp("first-adapter")
    place = folder / "venv"
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (packages / "ours.pth").write_text("\n".join([*lines, ""]), encoding="utf-8")
    scripts = {"pip": "pip", "vllm-adapter": "vllm_adapter.cli"}
    for script, module in scripts.items():
        file = place / "bin" / script
        file.write_text(f'#!/bin/sh\nexec "{place}/bin/python" -m {module} "$@"\n')
        file.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VA_", "PYTHON", "PIP_"))}
    own = {
        "PATH": f"{place}/bin:{kept['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads "no" as: without isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

    def run(command):
        return subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env=kept | own,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return folder, run


def test_the_page_s_commands_print_what_it_shows(shell):
    folder, run = shell
    ran = commands()
    assert len(ran) >= 8
    for command, shown in ran:
        done = run(command)
        said = f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == (1 if "FAILED" in shown else 0), said
        assert re.fullmatch(pattern(shown), " ".join(done.stdout.split())), said

    certificate = json.loads((folder / "certificates" / "acme-L2.json").read_bytes())
    assert certificate["level_reached"] == "L2"
    assert certificate["grade"] == "development"
    assert certificate["badge"] is None
    coverage = certificate["coverage"]
    declared = {op for op, states in coverage.items() if set(states.values()) != {"not_declared"}}
    assert len(declared) == 7 and set(CORE_OPERATORS) < declared
    assert {state for op in declared for state in coverage[op].values()} == {"pass"}
    assert "the CPU stands in for the device" in certificate["headline"]

    package = folder / "vllm-adapter-acme" / "src" / "vllm_adapter_acme"
    names = ("adapter.json", "capabilities/acme1.json", "kernels.py")
    files = [(package / name).read_text(encoding="utf-8") for name in names]
    for block in [*blocks("json"), *blocks("python")]:
        assert any(block in text for text in files), block
