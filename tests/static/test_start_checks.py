"""What `serve` refuses before a slow start: the model, the port, the memory, the CPU binding."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.broker.vllm_install import VllmInstall
from vllm_adapter_doctor.serving import start_checks
from vllm_adapter_doctor.serving.start_checks import StartInputs, problems

pytestmark = pytest.mark.static

GIB = 1 << 30


@pytest.fixture
def start(tmp_path):
    """start(model, flags, **changes) -> the sentences of what is wrong with a start here."""
    vllm = tmp_path / "vllm"
    (vllm / "config").mkdir(parents=True)
    field = "    gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1)\n"
    (vllm / "config/cache.py").write_text(field)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    machine(tmp_path, total=8, free=8)

    def check(model=str(model), *flags, build="cpu", world=1, **environ):
        given = VllmInstall(vllm, "vllm", f"0.32.0+{build}")
        flags = flags or ("--port", str(free_port()))
        environ = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} | environ
        return [
            f"{one.sentence}; {one.hint}"
            for one in problems(StartInputs(model, flags, given, world, environ, tmp_path))
        ]

    return check


def machine(root, *, total, free, nodes=1, limit="max", used="0"):
    for node in range(nodes):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = {"MemTotal": total, "MemFree": free, "Active(file)": 0, "Inactive(file)": 0}
        rows["SReclaimable"] = 0
        lines = [f"Node {node} {name}:  {int(gib * 1024**2)} kB" for name, gib in rows.items()]
        (folder / "meminfo").write_text("\n".join(lines))
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")


def free_port():
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]


def test_a_start_in_order_has_no_problem(start):
    assert start() == []


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("package:smollm2", "a model in a package, which `vllm-adapter run` reads"),
        ("./absent", "there is no folder ./absent"),
        ("/absent/model", "there is no folder /absent/model"),
        ("a/b/c", "there is no folder a/b/c"),
        ("org/name", ""),
        ("gpt2", ""),
        ("s3://bucket/model", ""),
    ],
)
def test_what_is_no_model_of_vllm_s(start, model, words):
    found = start(model)
    assert (words in found[0] and "save_pretrained" in found[0]) if words else found == []


def test_a_folder_says_its_format(start, tmp_path):
    folder = tmp_path / "gguf"
    folder.mkdir()
    assert f"{folder} has no config.json" in start(str(folder))[0]
    (folder / "model.Q4_1.gguf").touch()
    assert "which `vllm-adapter run` reads and vLLM does not" in start(str(folder))[0]
    assert "is a GGUF file" in start(str(folder / "model.Q4_1.gguf"))[0]
    assert start(str(folder), "--port", str(free_port()), "--load-format", "dummy") == []
    (folder / "params.json").touch()
    assert start(str(folder)) == []


def test_offline_a_name_must_be_in_the_hub_s_cache(start, tmp_path):
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    assert "not in the hub's cache" in start("org/name", **offline)[0]
    (tmp_path / "hub/models--org--name").mkdir(parents=True)
    assert start("org/name", **offline) == []
    home = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    assert start("org/name", **home) == []


@pytest.mark.parametrize("host", [(), ("--host", "127.0.0.1")])
def test_a_port_in_use(start, tmp_path, host):
    model = str(tmp_path / "model")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1" if host else "", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for flag in (("--port", str(port)), (f"--port={port}",)):
            (found,) = start(model, *flag, *host)
            assert f"the port {port} is in use by another process" in found
        assert start(model, "--port", str(port), *host, "--uds", "/tmp/s") == []
        later = ("--port", str(port), "--port", str(free_port()))
        assert start(model, *later, *host) == []


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1"])
def test_what_is_no_port(start, tmp_path, port):
    assert "is no port" in start(str(tmp_path / "model"), f"--port={port}")[0]


def test_a_host_that_is_not_ours(start, tmp_path):
    port = str(free_port())
    (found,) = start(str(tmp_path / "model"), "--port", port, "--host", "192.0.2.1")
    assert "the server cannot listen on 192.0.2.1" in found


@pytest.mark.parametrize(
    ("place", "flags", "environ", "words"),
    [
        ({"total": 8, "free": 7}, (), {}, "vLLM takes 0.92 of this machine's 8.0 GiB"),
        ({"total": 8, "free": 7}, ("--gpu-memory-utilization", "0.5"), {}, ""),
        ({"total": 8, "free": 3}, ("--gpu_memory_utilization=0.5",), {}, "takes 0.5 of"),
        ({"total": 8, "free": 3}, (), {"VLLM_CPU_KVCACHE_SPACE": "2"}, ""),
        ({"total": 8, "free": 3}, (), {"VLLM_CPU_KVCACHE_SPACE": "4"}, "asks for 4 GiB, and 3.0"),
        ({"total": 8, "free": 3}, (), {"VLLM_CPU_KVCACHE_SPACE": "x"}, "is 'x', which is no"),
        ({"total": 8, "free": 3}, ("--kv-cache-memory-bytes", "1G"), {}, ""),
        ({"total": 8, "free": 8, "limit": str(4 * GIB), "used": str(GIB)}, (), {}, "4.0 GiB"),
        ({"total": 8, "free": 8, "limit": str(4 * GIB), "used": "0"}, (), {}, ""),
    ],
)
def test_the_share_of_memory(start, tmp_path, place, flags, environ, words):
    machine(tmp_path, **place)
    words_of = ("--port", str(free_port()), *flags)
    found = start(str(tmp_path / "model"), *words_of, **environ)
    assert (words in found[0]) if words else found == []
    assert start(str(tmp_path / "model"), *words_of, build="cuda", **environ) == []


@pytest.mark.parametrize(
    ("bind", "world", "words"),
    [
        ("auto", 1, ""),
        ("auto", 2, "each of 2 ranks to a NUMA node of its own, and this machine has 1"),
        ("nobind", 4, ""),
        ("0", 1, ""),
        ("0", 2, "names 1 groups of CPUs, and there are 2 ranks"),
        ("zero", 1, "is no list of CPUs"),
        ("0-", 1, "is no list of CPUs"),
        ("99999", 1, "names CPU 99999, which this process may not use"),
        ("auto", None, ""),
    ],
)
def test_the_binding_of_cpus(start, monkeypatch, bind, world, words):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    found = start(world=world, VLLM_CPU_OMP_THREADS_BIND=bind)
    assert (words in found[0] and "nobind" in found[0]) if words else found == []


@given(st.text("0123456789,-|x ", max_size=12))
def test_a_list_of_cpus_is_read_or_refused(text):
    ids = start_checks._ids(text)
    assert ids is None or all(isinstance(one, int) and one >= 0 for one in ids)
