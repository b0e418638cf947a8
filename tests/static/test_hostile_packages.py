"""One package cannot take the others down, whatever its files hold and its code does."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.cli.command_help import MAX_LINE, help_line
from vllm_adapter.contract.manifest import MAX_DESCRIPTORS
from vllm_adapter.discovery import registry
from vllm_adapter.discovery.distributions import MAX_POINTS, EntryPoint, satisfies
from vllm_adapter.discovery.probe import isolation
from vllm_adapter.discovery.registry import Status
from vllm_adapter.files import PACKAGE_BYTES, read_bounded
from vllm_adapter.settings import AdapterFilter, Settings

pytestmark = pytest.mark.static

CLI = ("-c", "import sys; from vllm_adapter.cli.main import main; sys.exit(main())")
HOOK = """
import json, os, signal, subprocess, sys, time
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def probe(self):
        {body}
        return [{{"name": "Acme"}}]
"""
GOOD = {"schema": "vllm-adapter/manifest/1.0", "name": "acme", "vendor": "A", "api": ">=1.0,<2"}


def body(text):
    return HOOK.format(body=text)


def fifo(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def large(path):
    with path.open("wb") as file:
        file.truncate(100 << 20)


def folder(path):
    path.mkdir()


def dangling(path):
    path.symlink_to("nowhere")


def loop(path):
    path.symlink_to(path.name)


def deep(path):
    path.write_text("[" * 200_000)


def latin(path):
    path.write_bytes(json.dumps(GOOD | {"vendor": "\xe4"}, ensure_ascii=False).encode("latin-1"))


def utf16(path):
    path.write_text(json.dumps(GOOD), encoding="utf-16")


def twice(path):
    path.write_text('{"name": "acme", "name": "acme"}')


def number(path):
    path.write_text('{"name": ' + "9" * 5000 + "}")


def empty(path):
    path.write_text("")


WAYS = (fifo, endless, large, folder, dangling, loop, deep, latin, utf16, twice, number, empty)
SPECIAL = (fifo, endless, large, folder, loop)


@pytest.fixture
def probed(site, monkeypatch):
    """Probes the named adapters of the site, and gives their records by name."""
    monkeypatch.syspath_prepend(site.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.path / ".cache"))

    def probe(*names, limit_s=20.0, **options):
        settings = Settings(adapters=AdapterFilter(allowed=frozenset(names)))
        records = [r for r in registry.discover(settings) if r.name in names]
        return {r.name: r for r in registry.probe(records, limit_s=limit_s, **options)}

    return probe


@pytest.fixture
def listed(site, monkeypatch):
    """The records of the named adapters, as `scan` has them."""
    monkeypatch.syspath_prepend(site.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.path / ".cache"))

    def scan(*names):
        found = registry.discover(Settings())
        registry.with_cached_probes(found, registry.host_for(found))
        return {r.name: r for r in found if r.name in names}

    return scan


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_manifest_that_is_no_manifest_breaks_its_adapter_alone(site, listed, way):
    site.make("healthy")
    manifest = site.make("acme") / "adapter.json"
    manifest.unlink()
    way(manifest)
    records = listed("acme", "healthy")
    assert records["acme"].status is Status.BROKEN
    assert "adapter.json" in records["acme"].reason
    assert records["healthy"].status is None


@pytest.mark.parametrize("way", WAYS)
def test_so_does_a_descriptor(site, probed, way):
    package = site.make("acme", device={"library": "libx.so"})
    (package / "capabilities").mkdir()
    way(package / "capabilities" / "a1.json")
    (record,) = probed("acme").values()
    assert record.status is Status.BROKEN
    assert "a1.json" in record.reason


@pytest.mark.parametrize("way", [*SPECIAL, empty, deep])
def test_so_does_a_library(site, probed, way):
    package = site.make("acme", device={"library": "libx.so"})
    way(package / "libx.so")
    (record,) = probed("acme").values()
    assert record.status is Status.BROKEN
    assert "libx.so" in record.reason


@pytest.mark.parametrize("way", SPECIAL)
@pytest.mark.parametrize("file", ["entry_points.txt", "METADATA", "direct_url.json"])
def test_a_distribution_s_own_files_are_read_as_files(site, listed, way, file):
    site.make("healthy")
    site.make("acme")
    place = site.path / "vllm_adapter_acme-1.0.dist-info" / file
    place.unlink(missing_ok=True)
    way(place)
    records = listed("acme", "healthy")
    assert records["healthy"].status is None
    if file == "entry_points.txt":
        assert records["acme"].status is Status.BROKEN
        assert "its entry_points.txt cannot be read" in records["acme"].reason
    else:
        assert records["acme"].status is None


@pytest.mark.parametrize("way", [fifo, endless, large])
def test_a_package_s_sources_are_looked_at_without_harm(site, probed, way):
    package = site.make("acme")
    way(package / "a.py")
    assert probed("acme")["acme"].status is Status.OK
    assert probed("acme")["acme"].status is Status.OK


def test_too_many_entry_points_or_descriptors_are_one_fault(site, listed, probed):
    site.make("acme")
    lines = "".join(f"a{i} = vllm_adapter_acme\n" for i in range(MAX_POINTS + 1))
    info = site.path / "vllm_adapter_acme-1.0.dist-info" / "entry_points.txt"
    info.write_text(f"[vllm_adapter.adapters]\n{lines}")
    records = listed("acme", "a1")
    assert list(records) == ["acme"]
    assert f"above {MAX_POINTS}" in records["acme"].reason
    package = site.make("many", device={"library": "libx.so"})
    (package / "capabilities").mkdir()
    for i in range(MAX_DESCRIPTORS + 1):
        (package / "capabilities" / f"{i}.json").touch()
    assert f"more than {MAX_DESCRIPTORS} descriptors" in probed("many")["many"].reason


@pytest.mark.parametrize("name", ["x" * 5000, "\x1b[31m", "a b", "Acme", "torch", "\u00e4"])
def test_a_name_of_an_entry_point_by_no_rule_is_broken_in_a_short_sentence(site, name):
    site.make("acme")
    info = site.path / "vllm_adapter_acme-1.0.dist-info" / "entry_points.txt"
    info.write_text(f"[vllm_adapter.adapters]\n{name} = vllm_adapter_acme\n", encoding="utf-8")
    done = site.run(*CLI, "list")
    assert "the name of its entry point is" in done.stdout
    assert "\x1b" not in done.stdout and max(map(len, done.stdout.splitlines())) < 400


@pytest.mark.parametrize(
    "glob",
    ["/*/*/*/*/*/*", "/proc/*/fd/*", "/dev/../*/*/*", "/dev/*/*/*/*/*", "/dev/**/.*/x", "dev/a"],
)
def test_a_device_node_is_looked_for_in_dev_alone(site, listed, glob):
    site.make("acme", match=[{"device_node": glob}])
    (record,) = listed("acme").values()
    assert record.status is Status.BROKEN
    assert "a glob in /dev" in record.reason


@pytest.mark.parametrize(
    "specifier", [f">={'9' * 5000}", ">=1; extra == 'x'", ">=1;" + "(" * 500, "~=1", "\0"]
)
def test_a_bound_that_nobody_can_read_is_pip_s_to_refuse(specifier):
    assert satisfies("2.13.0", specifier) in (True, False)


def test_what_nobody_foresaw_is_one_package_s_alone(site, listed, monkeypatch):
    site.make("acme")
    site.make("healthy")
    real = registry.read_manifest

    def read(path):
        if "acme" in str(path):
            raise ZeroDivisionError("by nobody")
        return real(path)

    monkeypatch.setattr(registry, "read_manifest", read)
    records = listed("acme", "healthy")
    assert "ZeroDivisionError: 'by nobody'" in records["acme"].reason
    assert records["healthy"].status is None


@given(st.integers(0, 40), st.integers(1, 40), st.booleans())
def test_a_bounded_read_is_the_file_or_a_refusal(tmp_path_factory, size, limit, cut):
    path = tmp_path_factory.mktemp("f") / "f"
    path.write_bytes(bytes(range(size)))
    if size <= limit or cut:
        assert read_bounded(path, limit, cut=cut) == bytes(range(size))[:limit]
    else:
        with pytest.raises(OSError, match="more than"):
            read_bounded(path, limit)


@pytest.mark.parametrize("path", ["a\0b", "/proc/kmsg", "/dev/tty", "/proc/self/mem"])
def test_a_bounded_read_never_waits(path):
    with pytest.raises(OSError) as refused:
        read_bounded(Path(path), PACKAGE_BYTES)
    assert refused.value.strerror


# --- probes ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_those_that_hang_share_one_time_and_keep_nobody(site, probed):
    for name in ("a", "b", "c", "e"):
        site.make(name, plugin=body("time.sleep(600)"))
    for name in ("d", "z"):
        site.make(name, plugin=body("pass"))
    begun = time.monotonic()
    records = probed(*"abcdez", limit_s=12.0)
    assert time.monotonic() - begun < 40
    assert {name for name, r in records.items() if r.status is Status.OK} == {"d", "z"}
    assert "gave no answer within 12 s" in records["c"].reason


@pytest.fixture
def children(monkeypatch):
    calls = []
    real = isolation.run_isolated

    def counted(names, order, **options):
        calls.append(list(names))
        return real(names, order, **options)

    monkeypatch.setattr(isolation, "run_isolated", counted)
    return calls


@pytest.mark.slow
def test_a_hang_is_kept_until_something_changes_or_somebody_asks(site, probed, children):
    package = site.make("slow", plugin=body("time.sleep(600)"))
    first = probed("slow", limit_s=2.0)["slow"]
    again = probed("slow", limit_s=2.0)["slow"]
    assert len(children) == 1
    assert again.status is Status.BROKEN
    assert again.reason.startswith(first.reason) and "was an earlier probe" in again.reason
    assert again.next_step == "vllm-adapter list --probe"
    probed("slow", limit_s=2.0, fresh=True)
    assert len(children) == 2
    probed("slow", limit_s=2.5)  # with more time than it had
    assert len(children) == 3
    (package / "plugin.py").write_text(body("pass"))
    assert probed("slow", limit_s=2.5)["slow"].status is Status.OK


def test_who_never_had_a_turn_is_no_culprit():
    dead = isolation._not_begun(3.0, {"a": isolation.ProbeFailure("x", hung=True), "c": {}})
    assert dead.how == "was not begun within the 3 s of all probes: a took the time"
    assert not dead.begun and not dead.hung


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("term", "os.kill(os.getppid(), signal.SIGTERM)", "sent SIGTERM to its parent process"),
        ("intr", "os.kill(os.getppid(), signal.SIGINT)", "sent SIGINT to its parent process"),
        ("kill", "os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)", "SIGKILL"),
        ("quick", "os.kill(os.getppid(), signal.SIGKILL)", "parent process"),
        ("stop", "os.kill(os.getppid(), signal.SIGSTOP)", "parent process"),
        ("group", "os.killpg(0, signal.SIGTERM)", "was killed by SIGTERM"),
        ("theirs", "os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)", "killed by SIGKILL"),
        ("itself", "os.kill(os.getpid(), signal.SIGSTOP)", "gave no answer"),
        ("closes", "os.closerange(0, 64); os._exit(3)", "exit code 3"),
    ],
)
def test_a_plug_in_that_signals_its_parent_is_named_and_ends_nobody(
    site, probed, name, text, reason
):
    site.make(name, plugin=body(text))
    site.make("healthy", plugin=body("pass"))
    records = probed(name, "healthy", limit_s=6.0)
    assert records[name].status is Status.BROKEN
    if name != "quick":  # the guard's end may be seen first
        assert reason in records[name].reason
    assert records["healthy"].status is Status.OK


def test_a_signal_that_finds_us_ends_us_with_a_sentence(site):
    up = "int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])"
    site.make("climbs", plugin=body(f"os.kill({up}, signal.SIGTERM); time.sleep(600)"))
    done = site.run(*CLI, "list", "--probe", variables={"VA_ADAPTERS": "climbs"})
    assert done.returncode == -signal.SIGTERM
    assert "error: SIGTERM ended this while climbs was being probed" in done.stderr
    assert "VA_ADAPTERS=-climbs" in done.stderr


# --- commands ----------------------------------------------------------------------------------

COMMANDS = {
    "exits": "import os\nHELP = 'leaves'\nos._exit(3)\n",
    "waits": "import time\ntime.sleep(600)\nHELP: str = (\n    'waits '\n    'long'\n)\n",
    "prints": "print('HELLO')\nHELP = 'x' * 3\n",
    "raises": "raise SystemExit\n",
    "steers": "HELP = '\\x1b[31m' 'red\\n\\nmore'\n",
    "long": f"HELP = {'y' * 5000!r}\n",
    "nests": f"HELP = {'(' * 900}\n",
    "broken": "HELP = 'unfinished\n",
}


def test_help_imports_no_command_of_anybody(site):
    for name, source in COMMANDS.items():
        (site.path / f"acme_{name}.py").write_text(source)
    info = site.path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n\n")
    lines = "".join(f"acme-{name} = acme_{name}\n" for name in (*COMMANDS, "gone"))
    (info / "entry_points.txt").write_text(f"[vllm_adapter.commands]\n{lines}")
    done = site.run(*CLI, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines() if " acme-" in line]
    assert all(line.endswith(" [of the package acme]") for line in lines)
    said = dict(line.removesuffix(" [of the package acme]").split(maxsplit=1) for line in lines)
    assert said["acme-exits"] == "leaves"
    assert said["acme-waits"] == "waits long"
    assert said["acme-steers"] == "[31mred more"
    assert said["acme-long"] == f"{'y' * MAX_LINE}..."
    assert said["acme-gone"] == "(there is no module acme_gone)"
    for name in ("prints", "raises", "nests", "broken"):
        assert said[f"acme-{name}"] == "(it says no HELP as a plain text)"
    assert "HELLO" not in done.stdout and "  validate " in done.stdout
    assert site.run(*CLI, "acme-raises").returncode == 2


def test_our_own_help_is_what_the_modules_say():
    import importlib

    from vllm_adapter.cli.main import find_commands

    for point in find_commands().values():
        if point.distribution.startswith("vllm-adapter-"):
            assert help_line(point) == importlib.import_module(point.value).HELP


@given(st.text(max_size=60))
def test_help_of_any_source_is_one_short_line(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("m")
    (folder / "anymodule.py").write_text(f"HELP = {text!r}\n", encoding="utf-8")
    point = EntryPoint("x", "anymodule", "d", "1", False, "", ())
    sys.path.insert(0, str(folder))
    try:
        line = help_line(point)
    finally:
        sys.path.remove(str(folder))
    assert line.isprintable() and len(line) <= MAX_LINE + 5
