"""Probing: a misbehaving adapter ends as a status with a reason, and costs no other adapter."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from vllm_adapter.discovery import registry
from vllm_adapter.discovery.probe import isolation
from vllm_adapter.discovery.registry import Status
from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts.facts import PciDevice
from vllm_adapter.settings import AdapterFilter, Settings

pytestmark = pytest.mark.static

HOOK = """
import json, os, subprocess, sys, time
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def {hook}(self):
        {body}
"""


@pytest.fixture
def probed(site, monkeypatch):
    """Probes the named adapters of the site, and gives their records by name."""
    monkeypatch.syspath_prepend(site.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.path / ".cache"))

    def probe(*names, limit_s=10.0, **options):
        settings = Settings(adapters=AdapterFilter(allowed=frozenset(names)))
        records = [r for r in registry.discover(settings) if r.name in names]
        return {r.name: r for r in registry.probe(records, limit_s=limit_s, **options)}

    return probe


def body(text, hook="probe"):
    return HOOK.format(hook=hook, body=text)


@pytest.mark.slow
def test_every_misbehaving_adapter_gets_a_status_and_the_healthy_one_is_ok(site, probed):
    kinds = ("exits", "hangs", "needs_lib", "prints", "raises", "segfaults")
    for kind in kinds:
        site.add(kind)
    records = probed(*kinds, limit_s=8.0)
    assert records["prints"].status is Status.OK
    assert records["prints"].reason.startswith("it brings kernels only, and no capability")
    reasons = {
        "exits": "its probe left with exit code 0",
        "hangs": "its probe gave no answer within 8 s",
        "needs_lib": "libacme_runtime_that_is_missing.so.7: cannot open shared object file",
        "raises": "ValueError: the table of devices is empty",
        "segfaults": "its probe was killed by SIGSEGV",
    }
    for kind, reason in reasons.items():
        assert records[kind].status is Status.BROKEN
        assert reason in records[kind].reason
        assert records[kind].next_step
    assert records["needs_lib"].next_step.startswith("ldconfig -p | grep libacme_runtime")
    assert f"{Path('vllm_adapter_raises', 'plugin.py')}:3" in records["raises"].reason


@pytest.mark.slow
def test_a_crash_and_a_hang_show_the_line_they_are_at(site, probed):
    for kind in ("segfaults", "hangs"):
        site.add(kind)
    for name, record in probed("segfaults", "hangs", limit_s=4.0).items():
        assert any(f"vllm_adapter_{name}/plugin.py" in line for line in record.evidence)
        assert all(line.startswith("stderr: ") for line in record.evidence)
        assert len(record.evidence) <= isolation.STDERR_LINES


def test_the_next_step_of_a_crash_shows_the_crash(site, probed):
    site.add("segfaults")
    words = probed("segfaults")["segfaults"].next_step.split()
    assert words[0] == "python"
    assert site.run(*words[1:]).returncode == -signal.SIGSEGV


def test_a_hang_takes_its_grandchildren_along(site, probed, tmp_path):
    note = tmp_path / "pid"
    site.make(
        "forks",
        plugin=body(
            f"p = subprocess.Popen(['sleep', '600']); open({str(note)!r}, 'w').write(str(p.pid)); "
            "time.sleep(600)"
        ),
    )
    assert probed("forks", limit_s=2.0)["forks"].status is Status.BROKEN
    pid = int(note.read_text())
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_grandchild_that_keeps_the_pipes_open_does_not_hide_a_death(site, probed):
    site.make("orphans", plugin=body("(os.fork() and os._exit(3)) or time.sleep(600)"))
    assert "exit code 3" in probed("orphans", limit_s=30.0)["orphans"].reason


def test_a_flood_on_stderr_is_bounded_and_blocks_nobody(site, probed):
    site.make(
        "floods",
        plugin=body(
            "os.write(2, b'x' * 79 + b'\\n') and [os.write(2, "
            "(b'y' * 79 + b'\\n') * 1000) for _ in range(50)]; os._exit(4)"
        ),
    )
    record = probed("floods")["floods"]
    assert "exit code 4" in record.reason
    assert len(record.evidence) <= isolation.STDERR_LINES


def test_a_forged_message_and_closed_descriptors_do_not_confuse_the_parent(site, probed):
    forged = json.dumps(["end", "forges", {"status": "ok"}])
    site.make(
        "forges",
        plugin=body(f"[os.write(fd, {forged!r}.encode()) for fd in (1, 2)]; os.closerange(3, 64)"),
    )
    site.add("prints")
    records = probed("forges", "prints")
    assert records["forges"].status is Status.BROKEN
    assert records["prints"].status is Status.OK


def test_an_order_larger_than_a_pipe_arrives(site, probed):
    site.add("prints")
    pci = tuple(PciDevice(f"{i:04x}:00:00.0", "fff1", "0001", "0x120000") for i in range(3000))
    host = dataclasses.replace(registry.host_for([]), pci=pci)
    assert probed("prints", host=host)["prints"].status is Status.OK


@pytest.mark.parametrize(
    ("name", "source", "status", "reason"),
    [
        ("leaves", "raise SystemExit(0)", Status.BROKEN, "SystemExit"),
        ("noclass", "x = 1", Status.BROKEN, "no attribute 'Plugin'"),
        ("syntax", "def (", Status.BROKEN, "SyntaxError"),
        ("impostor", body("return []"), Status.ABSENT, "none of its devices"),
        ("shapeless", body("return [{'arch': 'a1'}]"), Status.BROKEN, "no list of objects"),
        ("misspelt", body("pass", hook="porbe"), Status.BROKEN, "porbe"),
        ("argument", HOOK.replace("(self)", "(self, hots)").format(hook="probe", body="pass"),
         Status.BROKEN, "hots"),
        ("nonsense", body("return 3"), Status.BROKEN, "gave 3"),
    ],
)  # fmt: skip
def test_a_plug_in_at_fault_is_named(site, probed, name, source, status, reason):
    site.make(name, plugin=source)
    record = probed(name)[name]
    assert record.status is status
    assert reason in record.reason
    assert record.next_step


def test_a_bad_descriptor_breaks_its_adapter(site, probed):
    package = site.make("illegible", device={"library": "libx.so"})
    (package / "capabilities").mkdir()
    (package / "capabilities" / "a.json").write_text("{")
    record = probed("illegible")["illegible"]
    assert record.status is Status.BROKEN
    assert "a.json" in record.reason
    assert record.next_step.startswith("vllm-adapter validate")


@pytest.mark.parametrize("executable", ["", "/nonexistent/python"])
def test_a_system_without_children_is_refused_in_a_sentence(monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(InputError):
        isolation.run_isolated(["x"], {})


def test_a_child_that_dies_before_it_begins_is_our_error(monkeypatch):
    with pytest.raises(InputError, match="before it began"):
        isolation.run_isolated(["x"], {"host": "no host"})


def test_nothing_is_left_open(site, probed):
    site.add("exits")
    probed("exits")
    before = len(os.listdir("/proc/self/fd"))
    probed("exits", fresh=True)
    assert len(os.listdir("/proc/self/fd")) == before
