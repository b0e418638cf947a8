"""Facts of fake machines: what is read, what is left unknown, and that nothing crashes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_adapter.hostfacts import facts as f
from vllm_adapter.hostfacts._tree import parse_cpulist, parse_integer
from vllm_adapter.hostfacts.live import collect

pytestmark = pytest.mark.static

CPU = "/sys/devices/system/cpu"
GPU = "/sys/bus/pci/devices/0000:3b:00.0"
NIC = "/sys/bus/pci/devices/0000:01:00.0"
MACHINE = {
    "/proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-2\nMems_allowed_list:\t0\n",
    "/proc/self/cgroup": "0::/kube/pod\n",
    "/proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0 (POE)\n",
    "/proc/meminfo": "MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n",
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: Acme 9\nflags\t\t: sse2 avx2 sse2\n\n"
    "processor\t: 1\nmodel name\t: other\nflags\t: none\n",
    f"{CPU}/online": "0-3\n",
    **{f"{CPU}/cpu{n}/topology/thread_siblings_list": f"{n % 2},{n % 2 + 2}\n" for n in range(4)},
    **{f"{CPU}/cpu{n}/topology/core_siblings_list": "0-3\n" for n in range(4)},
    f"{GPU}/vendor": "0x10DE\n",
    f"{GPU}/device": "0x2335\n",
    f"{GPU}/class": "0x030200\n",
    f"{GPU}/numa_node": "1\n",
    f"{NIC}/vendor": "0x8086\n",
    f"{NIC}/device": "0x1521\n",
    f"{NIC}/class": "0x020000\n",
    f"{NIC}/numa_node": "-1\n",
    "/sys/fs/cgroup/kube/pod/memory.max": "4096\n",
    "/sys/fs/cgroup/kube/pod/cpu.max": "max 100000\n",
    "/sys/fs/cgroup/kube/memory.max": "max\n",
    "/sys/fs/cgroup/kube/cpu.max": "150000 100000\n",
    "/dev/nvidia0": "",
    "/dev/nvidiactl": "",
    "/dev/nvidia-caps/nvidia-cap1": "",
    "/dev/dri/renderD128": "",
    "/dev/dri/card0": "",
    "/dev/null": "",
    "/dev/acme/7": "",
}


def build(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def known(facts: f.HostFacts) -> f.HostFacts:
    """Without what belongs to the running process."""
    return dataclasses.replace(facts, os=f.OsFacts(), python=None, torch=None)


def test_a_whole_machine(tmp_path):
    build(tmp_path, MACHINE)
    (tmp_path / GPU[1:] / "driver").symlink_to("../../../bus/pci/drivers/nvidia")

    facts = collect(tmp_path)

    assert facts.pci == (
        f.PciDevice("0000:01:00.0", "8086", "1521", "0x020000", None, None),
        f.PciDevice("0000:3b:00.0", "10de", "2335", "0x030200", 1, "nvidia"),
    )
    assert [node.path for node in facts.nodes] == [
        "/dev/dri/renderD128",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia0",
        "/dev/nvidiactl",
    ]
    assert facts.nodes[0] == f.DeviceNode("/dev/dri/renderD128", "file", True, True, os.getegid())
    assert facts.modules == ("nvidia", "nvidia_uvm")
    assert facts.cpuset == f.CpuSet((0, 1, 2), (0,))
    assert facts.cgroup == f.CgroupLimits(4096, 1.5)
    assert facts.cpu == f.CpuFacts("Acme 9", ("avx2", "sse2"), logical=4, cores=2, sockets=1)
    assert facts.memory == f.MemoryFacts(2048 * 1024, 1024 * 1024)
    assert facts.python == sys.version.split()[0]
    assert facts.os.machine == os.uname().machine
    assert facts.unknown == ()


def test_an_adapters_own_nodes_are_looked_for(tmp_path):
    build(tmp_path, MACHINE)
    facts = collect(tmp_path, node_globs=("/dev/acme/*", "relative/*", "/dev/\0", "/dev/nvidia0"))
    paths = [node.path for node in facts.nodes]
    assert "/dev/acme/7" in paths
    assert len(paths) == len(set(paths)) == 5


def test_a_root_with_glob_characters_is_no_pattern(tmp_path):
    root = build(tmp_path / "[a]*", {"/dev/kfd": ""})
    assert [node.path for node in collect(root).nodes] == ["/dev/kfd"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_modes_of_a_node_are_those_of_this_user(tmp_path):
    build(tmp_path, {"/dev/kfd": ""})
    (tmp_path / "dev/kfd").chmod(0o000)
    assert collect(tmp_path).nodes == (
        f.DeviceNode("/dev/kfd", "file", False, False, os.getegid()),
    )


def test_kinds_of_nodes(tmp_path):
    (tmp_path / "dev/accel").mkdir(parents=True)
    (tmp_path / "dev/accel/char").symlink_to("/dev/null")
    (tmp_path / "dev/accel/gone").symlink_to("/nowhere/at/all")
    os.mkfifo(tmp_path / "dev/accel/fifo")
    (tmp_path / "dev/nvidia0").mkdir()  # what a container tool makes of a missing source
    kinds = {node.path: node.kind for node in collect(tmp_path).nodes}
    assert kinds == {"/dev/accel/char": "char", "/dev/accel/fifo": "other"}


def test_an_empty_root_says_where_each_fact_would_come_from(tmp_path):
    facts = collect(tmp_path)
    assert known(facts) == f.HostFacts(unknown=facts.unknown)
    assert dict(facts.unknown) == {
        "pci": "/sys/bus/pci/devices",
        "modules": "/proc/modules",
        "cpuset.cpus": "/proc/self/status: Cpus_allowed_list",
        "cpuset.memory_nodes": "/proc/self/status: Mems_allowed_list",
        "cgroup.memory_limit_bytes": "/proc/self/cgroup",
        "cgroup.cpu_quota_cores": "/proc/self/cgroup",
        "cpu.flags": "/proc/cpuinfo: flags or Features",
        "cpu.model": "/proc/cpuinfo: model name",
        "cpu.logical": f"{CPU}/online",
        "cpu.cores": f"{CPU}/online",
        "cpu.sockets": f"{CPU}/online",
        "memory.total_bytes": "/proc/meminfo: MemTotal",
        "memory.available_bytes": "/proc/meminfo: MemAvailable",
    }
    assert facts.where("pci") == "/sys/bus/pci/devices"
    assert facts.where("nodes") is None


def test_arm_names_its_flags_features(tmp_path):
    build(tmp_path, {"/proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd sve\n\n"})
    assert collect(tmp_path).cpu.flags == ("asimd", "fp", "sve")


@pytest.mark.parametrize("content", ["", "0x10d", "10de", "0xzzzz", "0x10de10de", "\0"])
def test_a_pci_function_that_cannot_be_read_is_named(tmp_path, content):
    build(tmp_path, MACHINE | {f"{GPU}/vendor": content})
    facts = collect(tmp_path)
    assert [device.bdf for device in facts.pci] == ["0000:01:00.0"]
    assert facts.where("pci.0000:3b:00.0") == f"{GPU}/{{vendor,device,class}}"


def test_a_missing_numa_node_is_unknown_and_minus_one_is_none(tmp_path):
    build(tmp_path, MACHINE)
    (tmp_path / GPU[1:] / "numa_node").unlink()
    facts = collect(tmp_path)
    assert [device.numa_node for device in facts.pci] == [None, None]
    assert facts.unknown == (("pci.0000:3b:00.0.numa_node", f"{GPU}/numa_node"),)


V1 = "4:memory:/a/b\n3:cpu,cpuacct:/a\n1:name=systemd:/\n0::/\n"


@pytest.mark.parametrize(
    ("files", "memory", "cores"),
    [
        pytest.param({"/proc/self/cgroup": "0::/\n"}, None, None, id="v2 root has no files"),
        pytest.param(
            {
                "/proc/self/cgroup": "0::/host/path/of/the/container\n",
                "/sys/fs/cgroup/memory.max": "123\n",
                "/sys/fs/cgroup/cpu.max": "50000 100000\n",
            },
            123,
            0.5,
            id="v2 path of the host, group is the mount",
        ),
        pytest.param(
            {
                "/proc/self/cgroup": "0::/../../x\n",
                "/sys/fs/cgroup/x/memory.max": "7",
                "/sys/fs/cgroup/memory.max": "9",
            },
            7,
            None,
            id="v2 path above the namespace",
        ),
        pytest.param(
            {
                "/proc/self/cgroup": V1,
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854710272\n",
                "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            None,
            None,
            id="v1 without limits",
        ),
        pytest.param(
            {
                "/proc/self/cgroup": V1,
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "512\n",
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "1024\n",
                "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "250000\n",
                "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            512,
            2.5,
            id="v1, a parent is tighter",
        ),
        pytest.param(
            {
                "/proc/self/cgroup": "4:memory:/\n0::/u\n",
                "/sys/fs/cgroup/unified/u/cpu.max": "100000 100000",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "64",
            },
            64,
            1.0,
            id="both versions",
        ),
    ],
)
def test_cgroup_limits(tmp_path, files, memory, cores):
    facts = collect(build(tmp_path, files))
    assert facts.cgroup == f.CgroupLimits(memory, cores)
    assert not [name for name, _ in facts.unknown if name.startswith("cgroup")]


@pytest.mark.parametrize("content", ["", "maximum", "-5", "1e9", "9" * 30])
def test_odd_cgroup_files_are_unknown_and_no_limit(tmp_path, content):
    files = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": content}
    files["/sys/fs/cgroup/cpu.max"] = f"{content} 100000"
    facts = collect(build(tmp_path, files))
    assert facts.cgroup == f.CgroupLimits()
    assert facts.where("cgroup.memory_limit_bytes") == "/sys/fs/cgroup/memory.max"
    assert facts.where("cgroup.cpu_quota_cores") == "/sys/fs/cgroup/cpu.max"


@pytest.mark.parametrize("content", ["100000", "100000 0", "100000 x", "0 100000"])
def test_a_quota_without_a_period_is_unknown(tmp_path, content):
    files = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": content}
    facts = collect(build(tmp_path, files))
    assert facts.cgroup.cpu_quota_cores is None
    assert facts.where("cgroup.cpu_quota_cores") == "/sys/fs/cgroup/cpu.max"


def damaged() -> st.SearchStrategy[bytes]:
    """Any bytes, and good files cut short or with a run of bytes replaced."""
    whole = st.sampled_from([content.encode() for content in MACHINE.values() if content])
    cut = st.builds(lambda c, n: c[: n % len(c)], whole, st.integers(0, 200))
    mixed = st.builds(
        lambda a, b, n: a[: n % len(a)] + b, whole, st.binary(max_size=12), st.integers(0, 200)
    )
    words = st.sampled_from(
        [b"0-99999\n", b"99999999999", b"0::/\0/a\n", b"::" * 40, b"5-1", b"-"]
    )
    return st.one_of(st.binary(max_size=80), cut, mixed, words)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.dictionaries(st.sampled_from(sorted(MACHINE)), damaged(), max_size=6))
def test_no_content_of_any_file_crashes(tmp_path, contents):
    facts = collect(build(tmp_path, MACHINE | contents))
    assert f.HostFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


@pytest.mark.parametrize("name", sorted(MACHINE))
def test_a_folder_in_place_of_any_file_does_not_crash(tmp_path, name):
    build(tmp_path, MACHINE)
    (tmp_path / name[1:]).unlink()
    (tmp_path / name[1:]).mkdir()
    collect(tmp_path)


def test_this_machine():
    facts = collect()
    assert facts.python and facts.os.name
    assert f.HostFacts.from_json(facts.to_json()) == facts
    if sys.platform == "linux":
        assert set(os.sched_getaffinity(0)) <= set(facts.cpuset.cpus)
        assert facts.memory.total_bytes and facts.cpu.logical


# --- parsers -----------------------------------------------------------------------------


@given(st.sets(st.integers(0, 99999), max_size=40))
def test_cpulist_of_single_numbers(numbers):
    assert parse_cpulist(",".join(map(str, numbers)) + "\n") == tuple(sorted(numbers))


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 50)), max_size=8))
def test_cpulist_of_ranges(ranges):
    text = ",".join(f"{first}-{first + more}" for first, more in ranges)
    want = {n for first, more in ranges for n in range(first, first + more + 1)}
    assert parse_cpulist(text) == tuple(sorted(want))


@given(st.text(max_size=30) | st.from_regex(r"[0-9,\- \n]{0,20}"))
def test_cpulist_of_anything_is_sorted_numbers_or_none(text):
    numbers = parse_cpulist(text)
    assert numbers is None or list(numbers) == sorted(set(numbers))


@pytest.mark.parametrize(
    "text", ["x", "1-", "-1", "1-2-3", "1;2", "123456", "0-999999999999", "\u0661"]
)
def test_cpulist_refuses(text):
    assert parse_cpulist(text) is None


def test_cpulist_of_nothing():
    assert parse_cpulist(None) is None
    assert parse_cpulist(" \n") == ()


@given(st.integers(-(10**19) + 1, 10**19 - 1))
def test_integers(number):
    assert parse_integer(f" {number}\n") == number


@pytest.mark.parametrize("text", [None, "", "1_0", "0x1", "1.0", "+1", "9" * 20, "\u0663"])
def test_no_integers(text):
    assert parse_integer(text) is None


# --- cost --------------------------------------------------------------------------------


def test_collecting_and_matching_load_nothing_heavy():
    code = (
        "import sys; from vllm_adapter.hostfacts import live, match; facts = live.collect();"
        "match.match([{'os': ['Linux']}], facts);"
        "print(*(m for m in ('torch', 'jsonschema', 'pluggy', 'importlib.metadata',"
        " 'importlib_metadata', 'subprocess') if m in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
