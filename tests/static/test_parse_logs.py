"""Logs, tracebacks, variables, small outputs, and the cleaning that comes before all parsers."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.hostfacts.facts import Driver, HostFacts, VllmFacts
from vllm_adapter_doctor.report.parsers import env_vars, startup_log, surroundings, system_text
from vllm_adapter_doctor.report.read import parse_report
from vllm_adapter_doctor.report.secrets import MASK, hidden, is_secret
from vllm_adapter_doctor.report.text import clean, clean_line

pytestmark = pytest.mark.static
REPORTS = Path(__file__).parents[1] / "data" / "reports"
LOGS = sorted(REPORTS.glob("errors/*.txt"))
PARSERS = (env_vars, startup_log, surroundings, system_text)


def read(name: str) -> HostFacts:
    """The facts in the only case whose path begins so."""
    (path,) = REPORTS.glob(f"{name}*.txt")
    return parse_report(path.read_bytes())


def log(text: str) -> HostFacts:
    return startup_log.parse(clean(text))


# -- what the cases say


def test_the_platform_that_vllm_chose() -> None:
    assert read("errors/24").vllm == VllmFacts(platform="rocm")
    assert read("errors/25").vllm == VllmFacts(platform="cuda")
    assert read("errors/44").vllm == VllmFacts(platform="cpu")
    plugin = ("vllm.platform_plugins", "metal", "vllm_metal:register")
    assert read("errors/23").vllm == VllmFacts(plugins=(plugin,), platform="cpu")


def test_a_number_in_an_error_is_a_version_of_cuda() -> None:
    assert Driver("cuda", "12.8", "found version 12080") in read("errors/03").drivers
    facts = read("errors/03")
    assert facts.torch is not None
    assert (facts.torch.version, facts.driver("nvidia")) == (
        "2.11.0",
        Driver("nvidia", "570.86.10", "Driver"),
    )


def test_devices_in_error_texts() -> None:
    (device,) = read("errors/15").accelerators
    assert (device.vendor, device.name, device.arch) == (
        "cuda",
        "NVIDIA GeForce RTX 2080 Ti",
        "sm_75",
    )
    (npu,) = read("errors/36").accelerators
    assert (npu.vendor, npu.index, npu.memory_total_bytes) == ("ascend", 0, round(60.96 * 2**30))
    (metax,) = read("other-vendors/06").accelerators
    assert (metax.vendor, metax.name) == ("metax", "MetaX C500")


@pytest.mark.parametrize("number", "02 11 12 13 14 21 29 31 32 33 34 38 39 40 41 42 48".split())
def test_an_error_alone_names_no_device(number: str) -> None:
    assert read(f"errors/{number}").accelerators == ()


def test_visible_devices_of_an_assertion() -> None:
    torch = read("errors/38").torch
    assert torch is not None
    assert torch.visible_devices == 0


def test_containers_and_wsl() -> None:
    assert read("errors/02").os.environment == ("container", "docker")
    assert read("errors/13").os.environment == ("container", "docker")
    assert read("errors/47").os.environment == ("wsl2",)
    assert read("errors/47").drivers == ()


# -- kinds beyond the cases


def test_versions_and_plugins_of_startup_logs() -> None:
    found = log(
        "INFO 03-21 10:00:00 [__init__.py:30] Available plugins for group vllm.platform_plugins:\n"
        "INFO 03-21 10:00:00 [__init__.py:32] name=ascend, value=vllm_ascend:register\n"
        "INFO 03-21 10:00:00 [__init__.py:44] plugin ascend loaded.\n"
        "INFO 03-21 10:00:00 [__init__.py:198] Platform plugin ascend is activated\n"
        "INFO 03-21 10:00:01 [config.py:58] PyTorch version 2.5.1 available.\n"
        "INFO 03-21 10:00:02 [api_server.py:981] vLLM API server version 0.8.5+cpu\n"
    )
    plugin = ("vllm.platform_plugins", "ascend", "vllm_ascend:register")
    assert found.vllm == VllmFacts("0.8.5+cpu", None, "cpu", (plugin,), "ascend")
    assert found.torch is not None
    assert found.torch.version == "2.5.1"


def test_the_archs_of_a_torch_and_an_unserved_device() -> None:
    found = log(
        "UserWarning: \nNVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with"
        " the current PyTorch installation.\nThe current PyTorch install supports CUDA"
        " capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90.\n"
    )
    assert found.torch is not None
    assert found.torch.archs == ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
    (device,) = found.accelerators
    assert (device.name, device.arch) == ("NVIDIA GeForce RTX 5090", "sm_120")


def test_cuda_out_of_memory_names_no_maker() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 63.98 GiB"
    )
    assert log(text).accelerators == ()
    (device,) = log(text.replace("CUDA", "HIP")).accelerators
    assert (device.vendor, device.index) == ("rocm", 1)
    (device,) = log(text + "\ntorch 2.8.0+metax3.7.0.7").accelerators
    assert device.vendor == "metax"


def test_variables_of_dumps_commands_and_files() -> None:
    found = env_vars.parse(
        clean(
            "CUDA_VISIBLE_DEVICES=0,1\nexport NCCL_DEBUG='INFO'\n"
            "$ docker run --gpus all -e VLLM_USE_V1=0 -e HF_TOKEN=abc image\n"
            "HIP_VISIBLE_DEVICES=2 vllm serve model\nos.environ['OMP_NUM_THREADS'] = '4'\n"
            '        - name: ASCEND_RT_VISIBLE_DEVICES\n          value: "0"\n'
            "VLLM_API_KEY=secret\nVLLM_HOST_IP=10.0.0.1\nLD_LIBRARY_PATH=/a:/b...\nHOME=/home/x\n"
            "export ROCR_VISIBLE_DEVICES=0\nexport ROCR_VISIBLE_DEVICES=1\n"
        )
    )
    assert found.environment == (
        ("ASCEND_RT_VISIBLE_DEVICES", "0"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("HIP_VISIBLE_DEVICES", "2"),
        ("NCCL_DEBUG", "INFO"),
        ("OMP_NUM_THREADS", "4"),
        ("VLLM_USE_V1", "0"),
    )


def test_small_outputs() -> None:
    found = system_text.parse(
        clean(
            "$ uname -a\nLinux box 5.15.0-91-generic #101-Ubuntu SMP Tue Nov 14 13:30:08 UTC 2023"
            ' x86_64 x86_64 x86_64 GNU/Linux\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n'
            "ldd (Ubuntu GLIBC 2.35-0ubuntu3.8) 2.35\nMemTotal:       1056316 kB\n"
            "Cuda compilation tools, release 12.6, V12.6.85\n"
        )
    )
    system = found.os
    assert (system.name, system.release, system.machine) == (
        "Linux",
        "5.15.0-91-generic",
        "x86_64",
    )
    assert (system.distribution, system.libc) == ("Ubuntu 22.04.5 LTS", "glibc 2.35")
    assert found.memory.total_bytes == 1056316 << 10
    assert found.drivers == (Driver("cuda-toolkit", "12.6.85", "nvcc"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hypervisor vendor: Microsoft", ("hypervisor:Microsoft", "vm")),
        (
            "Hypervisor vendor: Microsoft\nLinux version 5.15.0-1064-azure (x)",
            ("azure", "hypervisor:Microsoft", "vm"),
        ),
        (
            "Hypervisor vendor: Microsoft\nLinux b 5.15.153.1-microsoft-standard-WSL2 #1",
            ("hypervisor:Microsoft", "wsl2"),
        ),
        ("Linux b 4.4.0-19041-Microsoft #1", ("wsl1",)),
        ("root@3f2a1b4c5d6e:/workspace# nvidia-smi", ("container", "docker")),
        ("[pod/vllm-0/vllm] CUDA error", ("container", "kubernetes")),
        ("/data/data/com.termux/files/usr/bin/python", ("android", "termux")),
        ("Hypervisor vendor: -", ()),
    ],
)
def test_where_it_runs(text: str, words: tuple[str, ...]) -> None:
    assert surroundings.parse(clean(text)).os.environment == words


# -- cleaning


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("> > OS: x", "OS: x"),
        ("[rank0]:         TraceBack", "        TraceBack"),
        ("| 0     910B2               | OK", "| 0     910B2               | OK"),
        ("GPU0 | X | NV18", "GPU0 | X | NV18"),
        ("web  | CUDA error 35", "CUDA error 35"),
        ("vllm-1  | | 0  NVIDIA A10 | x |", "| 0  NVIDIA A10 | x |"),
        ("2024-07-16T23:02:53.123Z stdout F Foo", "Foo"),
        (
            "(EngineCore_0 pid=123) INFO 07-10 09:00:00 [a.py:1] b",
            "INFO 07-10 09:00:00 [a.py:1] b",
        ),
        ("Jul 10 09:00:00 host vllm[123]: OS: x", "OS: x"),
        ("```text", ""),
        ("\x1b[1mGPU0\x1b[0m   ", "GPU0"),
        ("\ufffd[4mGPU0\ufffd[0m", "GPU0"),
        ("node   0   1   2   3", "node   0   1   2   3"),
    ],
)
def test_a_clean_line(line: str, text: str) -> None:
    assert clean_line(line) == text


def test_a_head_that_repeats_is_a_prefix() -> None:
    head = "INFO 07-10 09:00:00 [a.py:1] "
    assert [line.text for line in clean(f"{head}a\n{head}b\n{head}c").lines] == ["a", "b", "c"]
    assert clean(f"{head}a\n{head}b").lines[0].text == f"{head}a"


def test_numbers_of_lines_are_those_of_the_paste() -> None:
    lines = clean("a\r\n\r\nb\rc\nd").lines
    assert [(line.number, line.text) for line in lines] == [
        (1, "a"),
        (2, ""),
        (3, "b"),
        (4, "c"),
        (5, "d"),
    ]


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrst", "hf_abc"),
        ("export OPENAI_API_KEY=foo", "foo"),
        ("Authorization: Bearer abcdefghijk", "abcdefghijk"),
        ("vllm serve m --api-key abc123", "abc123"),
        ("{'api_key': 'xyz'}", "xyz"),
        ("https://user:pw@host/x", "pw"),
        ("AWS_SECRET_ACCESS_KEY='a b'", "a b"),
        ("DB_PASS=quux", "quux"),
        ("curl -H x nvapi-aaaaaaaaaaaaaaaaaaaa", "nvapi-a"),
    ],
)
def test_secrets_are_masked(text: str, secret: str) -> None:
    assert secret not in hidden(text)
    assert MASK in hidden(text)
    assert hidden(hidden(text)) == hidden(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=8192, tokenizer='meta/llama', tokenizer_mode=auto",
        "bos_token_id: 12345678",
        "api_key=None",
        "special_tokens_map.json",
        "nvidia-nccl-cu12==2.20.5 at file:///x/y",
    ],
)
def test_what_only_sounds_like_a_secret_stays(text: str) -> None:
    assert hidden(text) == text


def test_names_of_secret_variables() -> None:
    assert all(map(is_secret, ("HF_TOKEN", "WANDB_API_KEY", "DB_PASS", "SSH_AUTH_SOCK")))
    assert not any(map(is_secret, ("CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "PATH")))


@settings(max_examples=examples(200))
@given(st.text(max_size=400) | st.binary(max_size=400))
def test_cleaning_takes_any_text_and_is_final(text: str | bytes) -> None:
    report = clean(text)
    for parser in PARSERS:
        parser.parse(report)
    assert all(line.text == line.text.rstrip() for line in report.lines)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log_that_was_cut_invents_nothing(path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    whole = parse_report(path.read_bytes())
    known = {(one.vendor, one.index, one.name) for one in whole.accelerators}
    for stop in range(len(lines)):
        part = parse_report("\n".join(lines[:stop]))
        assert {(one.vendor, one.index, one.name) for one in part.accelerators} <= known
        assert {(one.component, one.version) for one in part.drivers} <= {
            (one.component, one.version) for one in whole.drivers
        }
