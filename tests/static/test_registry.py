"""Discovery: manifests are read, nothing of an adapter is imported, each fault is a status."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from vllm_adapter.discovery import registry
from vllm_adapter.discovery.adapter import Adapter
from vllm_adapter.discovery.distributions import satisfies
from vllm_adapter.discovery.probe import cache as probe_cache
from vllm_adapter.discovery.probe import isolation
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.discovery.registry import Status
from vllm_adapter.errors import AdapterError
from vllm_adapter.hostfacts.facts import HostFacts, OsFacts, PciDevice, TorchBuild
from vllm_adapter.hostfacts.known_vendors import adapters_for
from vllm_adapter.settings import AdapterFilter, Settings

pytestmark = pytest.mark.static

H200 = PciDevice("0000:3b:00.0", "10de", "2335", "0x030200")
HOST = HostFacts(os=OsFacts("Linux", "6.8", "x86_64"), torch=TorchBuild(version="2.13.0+cpu"))
ALL = (
    *("bad_manifest", "dotted", "exits", "hangs", "needs_lib", "old_api", "prints"),
    *("raises", "segfaults"),
)


@pytest.fixture
def seen(site, monkeypatch):
    """The records of the named adapters, as `discover` has them in this process."""
    monkeypatch.syspath_prepend(site.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.path / ".cache"))

    def discover(*names, host=HOST, settings=None):
        found = registry.discover(settings or Settings(), host)
        return [r for r in found if r.name in names]

    return discover


@pytest.mark.parametrize(
    ("kind", "options", "status", "reason", "next_step"),
    [
        ("old_api", {}, Status.INCOMPATIBLE, ">=0.1,<1", "pip install --upgrade"),
        ("bad_manifest", {}, Status.BROKEN, "/colour", "vllm-adapter validate "),
        ("prints", {"entry_value": "a.b"}, Status.BROKEN, "without dot or colon", "pip install"),
        ("prints", {"entry_value": "a:B"}, Status.BROKEN, "without dot or colon", "pip install"),
        ("prints", {"entry_value": "not_there"}, Status.BROKEN, "not there", "pip install"),
        ("prints", {"entry_name": "other"}, Status.BROKEN, "manifest prints", "vllm-adapter val"),
        ("prints", {"requires_python": ">=4"}, Status.INCOMPATIBLE, "Python >=4", "pip install"),
        ("prints", {"requires": ["torch>=99"]}, Status.INCOMPATIBLE, "2.13.0+cpu", "torch>=99"),
        ("prints", {"requires": ["torch>=2.11,<3", "torchx>=99", "torch>=99 ; extra == 'x'"]},
         None, "", ""),
    ],
)  # fmt: skip
def test_a_fault_that_metadata_show_is_a_status(
    site, seen, kind, options, status, reason, next_step
):
    site.add(kind, **options)
    (record,) = seen(options.get("entry_name", kind))
    assert record.status is status
    assert reason in record.reason
    assert next_step in record.next_step
    assert (record.version, record.editable) == ("1.0", False)


def test_torch_that_is_missing_is_said(site, seen):
    site.add("prints", requires=["torch>=2.11"])
    (record,) = seen("prints", host=HostFacts(os=HOST.os))
    assert record.status is Status.INCOMPATIBLE
    assert "torch is not installed" in record.reason


def test_a_manifest_of_a_later_interface_is_incompatible_and_not_broken(site, seen):
    site.make("future", api=">=7.0", entirely={"new": True})
    (record,) = seen("future")
    assert record.status is Status.INCOMPATIBLE


def test_a_device_that_is_not_here_is_absent_with_what_was_looked_for(site, seen):
    site.make("acme", match=[{"pci_vendor": "fff1", "pci_class": ["0x1200"]}])
    (record,) = seen("acme")
    assert record.status is Status.ABSENT
    assert "fff1" in record.reason
    assert record.next_step == "lspci -nn"


@pytest.mark.parametrize(
    "rule", [AdapterFilter(denied=frozenset({"prints"})), AdapterFilter(frozenset({"cpu"}))]
)
def test_va_adapters_blocks(site, seen, rule):
    site.add("prints")
    (record,) = seen("prints", settings=Settings(adapters=rule))
    assert record.status is Status.BLOCKED
    assert "VA_ADAPTERS" in record.reason


def test_the_twin_is_shadowed_wherever_it_lies(site, seen, monkeypatch):
    site.add("twin", name="a-first-name", entry_name="cpu")
    for path in ([str(site.path), *sys.path], [*sys.path, str(site.path)]):
        monkeypatch.setattr(sys, "path", path)
        first, twin = seen("cpu")
        assert (first.distribution, first.status) == ("vllm-adapter-cpu", None)
        assert twin.status is Status.SHADOWED
        assert "vllm-adapter-cpu" in twin.reason and str(first.path) in twin.reason
        assert twin.next_step == "pip uninstall a-first-name"


def test_a_stranger_with_broken_metadata_hides_nobody(site, seen):
    site.add("prints")
    for name, text in {"x": b"\xff\xfe[", "y": b"[vllm_adapter.adapters]\nnonsense\n"}.items():
        info = site.path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_bytes(text)
        (info / "direct_url.json").write_text("{")
    records = {r.name: r for r in seen("prints", "y")}
    assert records["prints"].status is None
    assert records["y"].status is Status.BROKEN
    assert "one of its lines is not NAME = VALUE" in records["y"].reason


def test_a_finder_that_raises_breaks_its_adapter_alone(site, seen, monkeypatch):
    site.add("prints")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "vllm_adapter_prints":
                raise RuntimeError("stale hook")

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    (record,) = seen("prints")
    assert record.status is Status.BROKEN
    assert "stale hook" in record.reason


def test_records_survive_json(site, seen):
    site.add("prints", requires=["torch>=2"])
    (record,) = seen("prints")
    raw = json.loads(json.dumps(record.to_json()))
    assert AdapterRecord.from_json(raw) == record


def test_find_has_a_message_for_each_way_of_not_being_there(site, seen):
    site.add("raises")
    with pytest.raises(AdapterError, match="no adapter named raise is installed") as missing:
        registry.find("raise", Settings(), HOST)
    assert "did you mean raises?" in missing.value.hint
    assert "pip install vllm-adapter-raise" in missing.value.hint
    with pytest.raises(AdapterError, match=r"is installed but broken: .*table of devices") as bad:
        registry.find("raises", Settings(), HOST)
    assert "probe._child raises" in bad.value.hint
    card = PciDevice("0000:c1:00.0", "9999", "0a01", "0x038000")
    with pytest.raises(AdapterError, match="no adapter for it is installed") as device:
        registry.find("metax", Settings(), HostFacts(os=HOST.os, pci=(card,)))
    assert device.value.hint.startswith("use MetaX's own vLLM plug-in, vllm-metax: pip install ")


def test_find_takes_an_absent_adapter_only_if_asked_to(site, seen):
    site.make("acme", match=[{"pci_vendor": "fff1"}])
    with pytest.raises(AdapterError, match="absent here"):
        registry.find("acme", Settings(), HOST)
    accepted = registry.find("acme", Settings(), HOST, accept=[Status.OK, Status.ABSENT])
    assert accepted.status is Status.ABSENT


def test_known_hardware():
    integrated = PciDevice("0000:00:02.0", "8086", "46a6", "0x030000")
    arc = PciDevice("0000:03:00.0", "8086", "56a0", "0x030000")
    bmc = PciDevice("0000:02:00.0", "19e5", "1711", "0x030000")
    switch = PciDevice("0000:05:00.0", "10de", "22a3", "0x068000")
    assert not adapters_for([integrated, bmc, switch])
    assert list(adapters_for([integrated, arc, H200])) == ["xpu", "cuda"]


RELEASES = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(
    lambda numbers: ".".join(map(str, numbers))
)
TERMS = st.one_of(
    st.builds("{}{}".format, st.sampled_from([">=", "<=", "==", "!=", ">", "<"]), RELEASES),
    st.builds("{}{}.*".format, st.sampled_from(["==", "!="]), RELEASES),
    st.builds("~={}.{}".format, st.integers(0, 12), RELEASES),
)


@given(RELEASES, st.lists(TERMS, max_size=3).map(",".join))
def test_version_bounds_are_read_as_packaging_reads_them(version, specifier):
    assert satisfies(version, specifier) == SpecifierSet(specifier).contains(version)


@pytest.mark.parametrize(
    ("version", "specifier", "admitted"),
    [
        ("2.13.0+cpu", ">=2.11,<2.14", True),
        ("2.14.0a0+git1234", "<2.14", False),
        ("2.13.0", "(>=2.11)", True),
        ("2.13.0", ">=99; sys_platform == 'nowhere'", True),
        ("2.13.0", ">=99; sys_platform != 'nowhere'", False),
        ("2.13.0", "===2.13.0", True),
        ("2.13.0", ">=2.14.0rc1", False),
        ("2.13.0", "@ https://example.invalid/torch.whl", True),
        ("2.13.0", "what is this", True),
    ],
)
def test_other_specifiers(version, specifier, admitted):
    assert satisfies(version, specifier) is admitted


# --- the command -------------------------------------------------------------------------------


def test_list_imports_nothing_heavy_and_no_adapter(site):
    for kind in ALL:
        site.add(kind, **({"entry_value": "vllm_adapter_dotted.x"} if kind == "dotted" else {}))
    site.add("twin", entry_name="cpu")
    code = (
        "import sys; from vllm_adapter.cli.main import main; code = main(['list', '--json'])\n"
        "heavy = {'torch', 'numpy', 'jsonschema', 'pluggy', 'vllm'}\n"
        "adapters = [m for m in sys.modules if m.startswith('vllm_adapter_')]\n"
        "bad = [m for m in sys.modules if m in heavy]\n"
        "bad += [m for m in adapters if m != 'vllm_adapter_vendors']\n"
        "sys.exit(f'{code} {bad}')"
    )
    done = site.run("-c", code)
    assert done.stderr.strip() == "0 []"
    listed = {(a["name"], a["distribution"]): a for a in json.loads(done.stdout)["adapters"]}
    assert {name for name, _ in listed} >= {"cpu", *ALL}
    assert listed["cpu", "vllm-adapter-twin"]["status"] == "shadowed"
    assert listed["cpu", "vllm-adapter-cpu"]["status"] == "not probed"
    for record in listed.values():
        assert record["status"] == "not probed" or (record["reason"] and record["next_step"])


def test_list_shows_what_the_last_probe_found(site):
    for kind in ("prints", "raises"):
        site.add(kind)
    only = {"VA_ADAPTERS": "prints,raises"}
    cli = ("-c", "import sys; from vllm_adapter.cli.main import main; sys.exit(main())")
    before = site.run(*cli, "list", variables=only)
    assert before.returncode == 0
    assert before.stdout.count("not probed") == 3
    probed = site.run(*cli, "list", "--probe", variables=only)
    assert "ACME SDK" not in probed.stdout
    after = site.run(*cli, "list", variables=only)
    assert after.stdout == probed.stdout
    assert "table of devices is empty" in after.stdout


def test_list_says_1_when_nothing_can_be_used(site):
    cli = ("-c", "import sys; from vllm_adapter.cli.main import main; sys.exit(main(['list']))")
    done = site.run(*cli, variables={"VA_ADAPTERS": "nobody"})
    assert done.returncode == 1
    assert "VA_ADAPTERS allows only nobody" in done.stdout
    assert "VA_ADAPTERS names nobody, and no adapter of that name is installed" in done.stderr


# --- the cache ---------------------------------------------------------------------------------


@pytest.fixture
def children(monkeypatch):
    """The names that were probed in a child, call by call."""
    calls = []
    real = isolation.run_isolated

    def counted(names, order, **options):
        calls.append(list(names))
        return real(names, order, **options)

    monkeypatch.setattr(isolation, "run_isolated", counted)
    return calls


def test_an_answer_is_kept_until_something_of_its_key_changes(site, seen, children, monkeypatch):
    package = site.add("prints")
    records = seen("prints")
    assert registry.probe(records, HOST)[0].status is Status.OK
    assert registry.probe(records, HOST)[0].status is Status.OK
    assert registry.with_cached_probes(records, HOST)[0].status is Status.OK
    assert len(children) == 1
    registry.probe(records, HOST, fresh=True)
    assert len(children) == 2
    with (package / "plugin.py").open("a") as file:
        file.write("# changed\n")
    registry.probe(records, HOST)
    assert len(children) == 3
    other = HostFacts(os=HOST.os, torch=HOST.torch, pci=(H200,))
    assert registry.with_cached_probes(records, other)[0].status is None
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "")
    assert registry.with_cached_probes(records, HOST)[0].status is None


def test_a_failure_is_shown_and_asked_again(site, seen, children):
    site.add("raises")
    records = seen("raises")
    registry.probe(records, HOST)
    assert registry.with_cached_probes(records, HOST)[0].status is Status.BROKEN
    registry.probe(records, HOST)
    assert len(children) == 2


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b'{"key": 1}', b"[" * 100_000, None])
def test_a_corrupted_file_is_rewritten(site, seen, children, text):
    site.add("prints")
    records = seen("prints")
    registry.probe(records, HOST)
    (file,) = probe_cache.folder().iterdir()
    if text is None:  # the right key and half an answer
        kept = json.loads(file.read_text())
        text = json.dumps(kept | {"answer": {"status": "fine"}}).encode()
    file.write_bytes(text)
    assert registry.with_cached_probes(records, HOST)[0].status is None
    assert registry.probe(records, HOST)[0].status is Status.OK
    assert len(children) == 2
    assert registry.with_cached_probes(records, HOST)[0].status is Status.OK
    assert list(probe_cache.folder().iterdir()) == [file]


def test_a_folder_that_cannot_be_written_means_no_cache(site, seen, children, monkeypatch):
    site.add("prints")
    (site.path / "file").touch()  # a folder below a file cannot be made, even by root
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.path / "file"))
    records = seen("prints")
    for _ in range(2):
        assert registry.probe(records, HOST)[0].status is Status.OK
    assert len(children) == 2


def test_the_cache_follows_the_xdg_rules(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert probe_cache.folder() == tmp_path / ".cache" / "vllm-adapter"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert probe_cache.folder() == tmp_path / "x" / "vllm-adapter"


# --- one adapter's plug-in ---------------------------------------------------------------------

PLUGIN = """
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def probe(self, host):
        return [{"name": host}]

    @hookimpl
    def compiler(self):
        raise KeyError("no such mode")
"""


def test_call_asks_one_adapter_and_names_what_failed(site, seen):
    site.make("calls", plugin=PLUGIN)
    adapter = Adapter(seen("calls")[0])
    assert "vllm_adapter_calls.plugin" not in sys.modules
    assert adapter.call("probe", host="here") == [{"name": "here"}]
    assert adapter.call("communicator", device="calls:0") is None
    with pytest.raises(ValueError, match="no hook"):
        adapter.call("porbe")
    with pytest.raises(AdapterError) as failed:
        adapter.call("compiler", device="calls:0", capability=None)
    assert "adapter calls: its hook `compiler` failed: KeyError" in failed.value.message
    assert "plugin.py:11)" in failed.value.message
    assert isinstance(failed.value.__cause__, KeyError)


def test_call_of_an_adapter_without_a_plug_in_is_none(site, seen):
    site.make("bare")
    adapter = Adapter(seen("bare")[0])
    assert adapter.call("probe", host=HOST) is None


def test_a_failed_registration_stays_failed(site, seen):
    site.make("halfway", plugin=PLUGIN.replace("def compiler(self)", "def compiler(self, mode)"))
    adapter = Adapter(seen("halfway")[0])
    for _ in range(2):
        with pytest.raises(AdapterError, match="mode"):
            adapter.call("probe", host=HOST)


def test_va_adapters_names_that_are_not_installed_are_said(site, monkeypatch):
    site.make("acme")
    monkeypatch.syspath_prepend(site.path)
    settings = Settings(adapters=AdapterFilter(frozenset({"acmee"}), order=("acmee",)))
    (sentence,) = registry.unknown_names(registry.scan(settings), settings)
    assert "VA_ADAPTERS names acmee" in sentence and sentence.endswith("did you mean acme?")
    with pytest.raises(AdapterError, match=r"allows only acmee; VA_ADAPTERS names acmee"):
        registry.find("acme", settings, HOST)
