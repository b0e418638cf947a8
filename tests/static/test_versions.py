"""`vllm-adapter versions`: combinations that certificates name, and whether ours is among them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from vllm_adapter.cli.main import main

pytestmark = pytest.mark.static

SHIPPED = Path(__file__).parent.parent.parent / "docs/certificates/cuda-L3.json"


def certificate(folder: Path, name: str = "one.json", **changes) -> Path:
    """A real certificate with parts replaced: read for what it says, not proved."""
    raw = json.loads(SHIPPED.read_text())
    for key, value in changes.items():
        raw[key] = raw[key] | value if isinstance(value, dict) else value
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(raw))
    return folder / name


@pytest.fixture
def here(capsys, monkeypatch, tmp_path):
    """(exit code, document) of `versions` where only the CPU adapter serves a device."""
    monkeypatch.setenv("VA_ADAPTERS", "cpu")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, dict]:
        code = main(["versions", "--json", *words])
        return code, json.loads(capsys.readouterr().out)

    return run


def mine(found: dict) -> dict:
    return next(one for one in found["here"] if one["adapter"] == "cpu")


def test_what_nobody_certified_is_said_to_be_so(here):
    code, found = here()
    assert code == 1 and found["certified"] == []
    assert "nobody has certified it" in mine(found)["sentence"]


def test_the_very_versions_of_this_machine_are_certified(here, tmp_path):
    versions = mine(here()[1])["versions"]
    environment = {"torch": versions["torch"]}
    same = {"name": "cpu", "version": versions["adapter"]}
    core = {"version": versions["core"]}
    certificate(tmp_path / "certificates", adapter=same, core=core, environment=environment)
    code, found = here()
    assert code == 0 and "certified at L3" in mine(found)["sentence"]
    certificate(tmp_path / "certificates", adapter=same, core=core, environment={"torch": "1.0"})
    code, found = here()
    assert code == 1
    assert f"torch 1.0 there, {versions['torch']} here" in mine(found)["sentence"]
    certificate(
        tmp_path / "certificates", adapter=same, core=core, environment=environment, emulated=True
    )
    assert here()[0] == 1, "an emulated device certifies no real one"


def test_a_certificate_that_an_adapter_ships_is_found(site, tmp_path):
    package = site.make("acme", device={"torch_type": "acme"})
    certificate(package / "certificates", adapter={"name": "acme", "version": "1.0"})
    done = site.run("-m", "vllm_adapter.cli", "versions", "--folder", str(SHIPPED.parent))
    assert done.returncode == 1, done.stderr
    assert "acme     1.0      L3" in done.stdout and "cuda     0.1.0    L3" in done.stdout


def test_a_file_that_is_none_is_left_out_and_named(capsys, monkeypatch, tmp_path):
    folder = tmp_path / "certificates"
    certificate(folder)
    (folder / "broken.json").write_text('{"schema": "vllm-adapter/certificate/1.0"}')
    (folder / "other.json").write_text("[]")
    shutil.copy(SHIPPED, folder / "cuda.json")
    monkeypatch.setenv("VA_ADAPTERS", "cpu")
    main(["versions", "--folder", str(folder)])
    said = capsys.readouterr()
    assert said.err.count("left out: ") == 2 and said.out.count("cuda ") == 2
    assert main(["versions", "--folder", str(folder / "cuda.json")]) == 2
    assert "is no folder" in capsys.readouterr().err
