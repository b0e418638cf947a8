"""An adapter that cannot be judged is refused in one sentence with the next step, and code 2."""

from __future__ import annotations

import json

import pytest
from fake_dist import install, write_adapter

from vllm_adapter.cli.main import main

pytestmark = pytest.mark.null

REQUIRES = ("vllm-adapter-core>=0.1,<0.2",)
DESCRIPTOR = {
    "schema": "vllm-adapter/capability/1.0",
    "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "acme"},
    "operators": {},
}


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError("the run was started")

    monkeypatch.setattr("vllm_adapter_conformance.run.runner.subprocess.Popen", fails)


class Package:
    """A healthy adapter's source; a test changes one thing, and installs it."""

    def __init__(self, tmp_path):
        self.source, self.site = tmp_path / "source", tmp_path / "site"
        write_adapter(self.source, "acme", device={"torch_type": "acme"}, tested_on=[])
        self.folder = self.source / "vllm_adapter_acme"
        (self.folder / "capabilities").mkdir()
        (self.folder / "capabilities/a1.json").write_text(json.dumps(DESCRIPTOR))
        self.options = {}
        self.after = None

    def manifest(self, **changes):
        file = self.folder / "adapter.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    def install(self):
        given = {"name": "vllm-adapter-acme", "entry_name": "acme", "requires": REQUIRES}
        place = install(self.source, self.site, **given | self.options)
        if self.after is not None:
            self.after(place)


def text(name, content):
    return lambda p: (p.folder / name).write_text(content)


def option(**options):
    return lambda p: p.options.update(options)


def afterwards(change):
    return lambda p: setattr(p, "after", change)


KINDS = {
    # what is done to it: a word of the sentence, a word of the next step
    "another interface": (lambda p: p.manifest(api=">=7.0,<8"), "is incompatible", "pip install"),
    "no range": (lambda p: p.manifest(api="newest"), "/api", "vllm-adapter validate"),
    "an unknown key": (lambda p: p.manifest(colour="red"), "/colour", "vllm-adapter validate"),
    "another name": (lambda p: p.manifest(name="acne"), "acne", "vllm-adapter validate"),
    "another schema": (
        lambda p: p.manifest(schema="vllm-adapter/manifest/9.0"),
        "schema",
        "vllm-adapter",
    ),
    "no manifest": (lambda p: (p.folder / "adapter.json").unlink(), "adapter.json", "vllm-ad"),
    "no JSON": (text("adapter.json", "{nope"), "adapter.json", "vllm-adapter validate"),
    "a list": (text("adapter.json", "[]"), "object", "vllm-adapter validate"),
    "empty": (text("adapter.json", ""), "adapter.json", "vllm-adapter validate"),
    "bytes": (
        lambda p: (p.folder / "adapter.json").write_bytes(b"\xff\xfe\x00"),
        "adapter.json",
        "vllm-adapter validate",
    ),
    "an entry point inside a package": (
        option(entry_value="vllm_adapter_acme.plugin"),
        "top-level package",
        "pip install --force-reinstall vllm-adapter-acme",
    ),
    "an entry point to an object": (
        option(entry_value="vllm_adapter_acme:Plugin"),
        "top-level package",
        "pip install --force-reinstall vllm-adapter-acme",
    ),
    "an entry point to nothing": (
        option(entry_value="vllm_adapter_gone"),
        "which is not there",
        "pip install --force-reinstall vllm-adapter-acme",
    ),
    "another Python": (option(requires_python=">=3.99"), "needs Python >=3.99", "pip install"),
    "a descriptor lost": (
        afterwards(lambda place: (place / "capabilities/a1.json").unlink()),
        "is not whole: its wheel had vllm_adapter_acme/capabilities/a1.json",
        "pip install --force-reinstall vllm-adapter-acme",
    ),
    "a module lost": (
        lambda p: (
            text("kernels.py", "")(p),
            afterwards(lambda at: (at / "kernels.py").unlink())(p),
        ),
        "vllm_adapter_acme/kernels.py",
        "pip install --force-reinstall vllm-adapter-acme",
    ),
    "no descriptor": (
        lambda p: (p.folder / "capabilities/a1.json").unlink(),
        "has no descriptor: nothing in",
        "docs/first-adapter.md",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_it_is_refused_in_a_sentence_with_the_next_step(name, tmp_path, monkeypatch, capsys):
    change, words, step = KINDS[name]
    package = Package(tmp_path)
    change(package)
    package.install()
    monkeypatch.syspath_prepend(str(package.site))
    assert main(["certify", "acme", "--level", "L0", "--output", str(tmp_path / "c.json")]) == 2
    said = capsys.readouterr()
    error, hint = said.err.strip().splitlines()
    assert said.out == "" and error.startswith("error: ") and hint.startswith("hint: ")
    assert words in error and "acme" in error, said.err
    assert step in hint, said.err
    assert not (tmp_path / "c.json").exists()


def test_a_denied_one_too(tmp_path, monkeypatch, capsys):
    package = Package(tmp_path)
    package.install()
    monkeypatch.syspath_prepend(str(package.site))
    monkeypatch.setenv("VA_ADAPTERS", "-acme")
    assert main(["certify", "acme", "--level", "L0"]) == 2
    assert "is blocked" in capsys.readouterr().err


def test_a_healthy_one_is_run(tmp_path, monkeypatch):
    package = Package(tmp_path)
    package.install()
    monkeypatch.syspath_prepend(str(package.site))
    with pytest.raises(AssertionError, match="the run was started"):
        main(["certify", "acme", "--level", "L0", "--output", str(tmp_path / "c.json")])
