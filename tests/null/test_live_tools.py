"""The vendors' tools as child processes: good ones, and ones that hang, flood, die or are locked.

The tools are small shell scripts on a PATH of their own; the machine is a fake tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.live import children
from vllm_adapter_doctor.live.children import run_all
from vllm_adapter_doctor.live.readers import VendorReader
from vllm_adapter_doctor.live.tools import ask_tools, asked_tools, find_program
from vllm_adapter_doctor.live.whole import collect_all

pytestmark = pytest.mark.null
REPORTS = Path(__file__).parent.parent / "data" / "reports"
TOPOLOGY = REPORTS / "topology-nvidia" / "06-2xa6000-nvlink-bridge.txt"
ASCEND = ("04-npu-smi-8x910b3.txt", "01-topo-8x910b3-hccs.txt")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A function that puts a tool on PATH; nothing else is on it but the shell's own programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}relative")
    (tmp_path / "none.py").touch()
    monkeypatch.setattr("vllm_adapter_doctor.live.tools._FUNCTION_CHILD", tmp_path / "none.py")
    readers = {}
    monkeypatch.setattr("vllm_adapter_doctor.live.tools.find_readers", lambda: (readers, []))

    def to_device(name: str, script: str, mode: int = 0o755) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        path.chmod(mode)
        return path

    def read(vendor: str, *lines: str) -> None:
        name = f"{vendor}_reader"
        (tmp_path / f"{name}.py").write_text("\n".join(f"print({line!r})" for line in lines))
        monkeypatch.syspath_prepend(str(tmp_path))
        readers[vendor] = VendorReader(vendor, name, "acme")

    to_device.reader = read
    return to_device


def ask(tmp_path: Path, *seen: str, timeout_s: float = 20.0) -> tuple[HostFacts, dict[str, str]]:
    tree = Tree(tmp_path / "root")
    facts = ask_tools(tree, seen, os.environ, timeout_s=timeout_s)
    return facts, dict(tree.unknown)


def test_no_tool_and_no_device_is_nothing_to_tell(tmp_path, tools):
    assert ask(tmp_path) == (HostFacts(), {})


def test_a_missing_tool_of_a_device_that_is_here_is_unknown_with_its_place(tmp_path, tools):
    _, unknown = ask(tmp_path, "ascend", "gaudi")
    assert unknown == {
        "tools.npu-smi": "npu-smi: not on PATH",
        "tools.hl-smi": "hl-smi: not on PATH",
    }


def test_a_tool_s_answer_is_read_as_a_report_is(tmp_path, tools):
    tools("nvidia-smi", f'case "$*" in "topo -m") cat {TOPOLOGY};; *) exit 0;; esac')
    facts, unknown = ask(tmp_path)
    (matrix,) = facts.links
    assert matrix.devices == ("GPU0", "GPU1")
    assert any(link.text == "NV4" for link in matrix.links)
    assert facts.report[0].text == "$ nvidia-smi"
    assert "$ nvidia-smi topo -m" in [line.text for line in facts.report]
    assert [line.number for line in facts.report] == list(range(1, len(facts.report) + 1))
    assert "tools.nvidia-smi" not in unknown


def test_a_tool_that_hangs_is_ended_with_its_children_and_the_others_count(tmp_path, tools):
    alive = tmp_path / "alive"
    tools("hl-smi", f"(sleep 60; touch {alive}) & echo $! > {tmp_path}/pid\nsleep 60")
    tools("cnmon", "echo CNMON")
    facts, unknown = ask(tmp_path, timeout_s=1.0)
    assert unknown["tools.hl-smi"] == "hl-smi gave no answer within 1 s and was ended"
    assert "CNMON" in [line.text for line in facts.report]
    grandchild = int((tmp_path / "pid").read_text())
    assert _ends(grandchild)


def test_a_tool_that_cannot_be_killed_holds_nobody_up(tmp_path, tools, monkeypatch):
    def hangs(self, timeout=None):
        raise subprocess.TimeoutExpired("npu-smi", timeout)

    tools("hl-smi", "exec sleep 60")
    monkeypatch.setattr(subprocess.Popen, "wait", hangs)
    _, unknown = ask(tmp_path, timeout_s=0.2)
    assert unknown == {
        "tools.hl-smi": "hl-smi gave no answer within 0.2 s and hangs in its driver"
    }


def _ends(pid: int) -> bool:
    """Whether a process ends; it was killed, and its new parent has yet to collect it."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_a_tool_that_prints_for_ever_is_ended(tmp_path, tools, monkeypatch):
    monkeypatch.setattr(children, "OUTPUT_BYTES", 1 << 20)
    tools("mx-smi", "yes MX-SMI")
    facts, unknown = ask(tmp_path)
    assert unknown["tools.mx-smi"] == "mx-smi printed more than 1 MiB and was ended"
    assert facts.accelerators == ()


def test_a_tool_that_floods_stderr_is_ended_at_its_time(tmp_path, tools):
    tools("mx-smi", "yes >&2")
    _, unknown = ask(tmp_path, timeout_s=0.5)
    assert unknown["tools.mx-smi"] == "mx-smi gave no answer within 0.5 s and was ended"


def test_who_leaves_the_group_is_not_waited_for(tmp_path, tools):
    tools("mx-smi", f"setsid yes & echo $! > {tmp_path}/pid\necho MX-SMI")
    facts, _ = ask(tmp_path)
    assert facts.report[0].text == "$ mx-smi"
    assert _ends(int((tmp_path / "pid").read_text()))  # nobody reads its pipe any more


def test_a_tool_that_fails_says_why_and_its_words_stay(tmp_path, tools):
    tools(
        "nvidia-smi",
        "echo 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18",
    )
    facts, unknown = ask(tmp_path)
    assert unknown["tools.nvidia-smi"] == (
        "nvidia-smi ended with exit code 18: "
        "Failed to initialize NVML: Driver/library version mismatch"
    )
    assert any("version mismatch" in line.text for line in facts.report)


def test_half_an_answer_of_a_killed_tool_is_none(tmp_path, tools):
    tools("nvidia-smi", f"head -c 300 {TOPOLOGY}\nkill -SEGV $$")
    facts, unknown = ask(tmp_path)
    assert unknown["tools.nvidia-smi"].startswith("nvidia-smi was killed by SIGSEGV")
    assert facts.links == ()


def test_a_tool_that_may_not_be_started(tmp_path, tools):
    path = tools("cnmon", "", 0o644)
    _, unknown = ask(tmp_path)
    assert unknown == {"tools.cnmon": f"{path}: not executable for this user"}


def test_a_file_that_is_no_program(tmp_path, tools):
    path = tools("cnmon", "")
    path.write_bytes(b"\x7fELF\0\0")
    _, unknown = ask(tmp_path)
    assert unknown["tools.cnmon"].startswith("cnmon cannot be started: ")


def test_a_parser_that_breaks_hides_nothing_else(tmp_path, tools, monkeypatch):
    def broken(text):
        raise ZeroDivisionError

    monkeypatch.setattr("vllm_adapter_doctor.live.tools.parse_report", broken)
    tools("cnmon", "echo x")
    _, unknown = ask(tmp_path)
    assert unknown == {"tools.cnmon": "its answer cannot be read: ZeroDivisionError()"}


def test_amd_s_newer_tool_takes_the_place_of_the_older(tmp_path, tools):
    tools("amd-smi", "echo a")
    tools("rocm-smi", "echo b")
    facts, _ = ask(tmp_path)
    assert {line.text for line in facts.report if line.text.startswith("$")} == {
        *("$ amd-smi", "$ amd-smi version", "$ amd-smi list", "$ amd-smi topology"),
    }


@pytest.mark.parametrize(
    ("seen", "asked"),
    [(("kunlunxin",), "$ xpu-smi"), (("xpu",), "$ xpu-smi topology -m")],
)
def test_two_makers_tools_of_one_name(tmp_path, tools, seen, asked):
    tools("xpu-smi", "echo nothing")
    facts, _ = ask(tmp_path, *seen)
    assert [line.text for line in facts.report if line.text.startswith("$")] == [asked]


def test_a_tool_in_its_package_s_folder_is_found_without_path(tmp_path, tools):
    tool = next(tool for tool in asked_tools() if tool.program == "nvidia-smi")
    path = tmp_path / "root/usr/lib/wsl/lib/nvidia-smi"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    assert find_program(Tree(tmp_path / "root"), tool, os.environ) == (str(path), None)


def test_nothing_of_the_working_folder_is_run(tmp_path, tools, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relative").mkdir()
    tools("cnmon", "echo x").rename(tmp_path / "relative/cnmon")
    assert ask(tmp_path) == (HostFacts(), {})


def test_a_tool_speaks_english_and_reads_nothing(tmp_path, tools):
    tools("cnmon", 'echo "$LC_ALL" "$(cat)" end')
    facts, _ = ask(tmp_path)
    assert "C  end" in [line.text for line in facts.report]


def test_another_kind_of_system_asks_no_tool_and_says_so(tmp_path, tools, monkeypatch):
    monkeypatch.setattr("vllm_adapter_doctor.live.tools._POSIX", False)
    tools("cnmon", "echo x")
    facts, unknown = ask(tmp_path)
    assert facts == HostFacts()
    assert list(unknown) == ["tools"]


def test_each_end_is_told(tmp_path, tools):
    tools("npu-smi", "echo x")
    steps = []
    ask_tools(
        Tree(tmp_path), (), os.environ, timeout_s=20, on_progress=lambda *step: steps.append(step)
    )
    assert steps == [(1, 3), (2, 3), (3, 3)]


DEVICE = '{"index": 0, "bus": "00000000:3B:00.0", "arch": "sm_90", "source": "libnvidia-ml.so.1"}'
TABLE = """
| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA H200                    On  |   00000000:3B:00.0 Off |                    0 |
| N/A   33C    P0            110W /  700W |       0MiB / 143771MiB |      0%      Default |
"""


def test_a_driver_s_library_completes_what_the_tool_tells(tmp_path, tools):
    version = '{"component": "nvml", "version": "13.580", "source": "libnvidia-ml.so.1"}'
    tools.reader("cuda", DEVICE, version, "a banner", "3")
    tools("nvidia-smi", f"cat <<'END'{TABLE}END")
    facts, _ = ask(tmp_path, "cuda")
    (only,) = facts.accelerators
    assert (only.source, only.name, only.arch) == ("nvidia-smi", "NVIDIA H200", "sm_90")
    assert facts.driver("nvml").version == "13.580"


def test_a_driver_s_library_alone_tells_of_devices(tmp_path, tools):
    tools.reader("cuda", DEVICE)
    facts, unknown = ask(tmp_path, "cuda")
    assert [(one.bdf, one.arch) for one in facts.accelerators] == [("0000:3b:00.0", "sm_90")]
    assert unknown == {"tools.nvidia-smi": "nvidia-smi: not on PATH"}


def test_a_library_of_another_maker_completes_nothing_of_nvidia_s(tmp_path, tools):
    tools.reader("cuda", DEVICE)
    tools("nvidia-smi", f"sed 's/NVIDIA H200/PPU-ZW810E /' <<'END'{TABLE}END")
    facts, _ = ask(tmp_path, "cuda")
    assert [(one.vendor, one.arch) for one in facts.accelerators] == [("thead", None)]


def test_a_reader_completes_each_instance_of_mig(tmp_path, tools):
    """The table has its numbers alone; a process is given it by its UUID."""
    instance = (
        '{"index": 0, "die": 0, "uuid": "MIG-4c1f2d3e", "partition": "1g.18gb", "arch": "sm_90"}'
    )
    table = """
|   0    7   0   0  |      11MiB / 16384MiB    | 16      0 |  1   0    1    0    1 |
"""
    text = TABLE + "| MIG devices: |" + table
    tools.reader("cuda", DEVICE, instance)
    tools("nvidia-smi", f"cat <<'END'{text}END")
    facts, _ = ask(tmp_path, "cuda")
    found = [(one.die, one.uuid, one.partition) for one in facts.accelerators]
    assert (0, "MIG-4c1f2d3e", "1g.18gb") in found and len(found) == 2


def test_lines_that_break_the_format_are_not_believed(tmp_path, tools):
    tools.reader("cuda", DEVICE, '{"index": 1, "temperature_c": "hot"}')
    facts, unknown = ask(tmp_path, "cuda")
    assert facts.accelerators == ()
    assert unknown["tools.cuda_reader"] == (
        'libnvidia-ml.so.1: line 2: /temperature_c should be a number, and is "hot"'
    )


def test_a_function_of_a_library_tells_a_version(tmp_path, tools):
    (tmp_path / "none.py").write_text(
        """print('a banner {"number": 1}'); print('{"number": 13010}')"""
    )
    facts, _ = ask(tmp_path, "cuda")
    assert (facts.driver("cuda").version, facts.driver("cuda").source) == ("13.1", "libcuda.so.1")


def test_an_interrupt_ends_all_of_them(tmp_path):
    pids = tmp_path / "pids"

    def interrupt():
        raise KeyboardInterrupt

    commands = [
        ["/bin/sh", "-c", f"echo $$ >> {pids}; sleep 60"],
        ["/bin/sh", "-c", f"while ! [ -s {pids} ]; do sleep 0.01; done"],
    ]
    with pytest.raises(KeyboardInterrupt):
        run_all(commands, timeout_s=30, environ={"PATH": "/usr/bin:/bin"}, done=interrupt)
    assert all(_ends(int(pid)) for pid in pids.read_text().split())


def test_all_of_a_fake_machine_at_once(tmp_path, tools):
    root = tmp_path / "root"
    gpu = root / "sys/bus/pci/devices/0000:3b:00.0"
    gpu.mkdir(parents=True)
    for name, text in (
        *(("vendor", "0x10de"), ("device", "0x2235")),
        *(("class", "0x030200"), ("numa_node", "1")),
    ):
        (gpu / name).write_text(f"{text}\n")
    facts = collect_all(root, timeout_s=5)
    assert facts.where("tools.nvidia-smi") == "nvidia-smi: not on PATH"
    assert facts.where("numa") == "/sys/devices/system/node/node*"
    assert facts.package("vllm-adapter-core")
    assert HostFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


AS_NOBODY = """
import os, sys
sys.path[:] = {path!r}
from vllm_adapter.cli.main import main
# once as root, so that all modules are loaded: another user may not read this Python's folders
stdout, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 1)
main(["facts"])
os.dup2(stdout, 1)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(["facts"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_with_a_home_that_cannot_be_written(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    done = subprocess.run(
        [sys.executable, "-B", "-c", AS_NOBODY.format(path=sys.path)],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    facts = json.loads(done.stdout)
    assert facts["schema"] == "vllm-adapter/facts/1.0"
    assert facts["memory"]["total_bytes"]
    assert list(home.iterdir()) == []


def test_tables_of_one_tool_are_read_together(tmp_path, tools):
    table, matrix = (REPORTS / "ascend" / name for name in ASCEND)
    tools(
        "npu-smi",
        f'case "$*" in info) cat {table};; "info -t topo") cat {matrix};; *) exit 3;; esac',
    )
    facts, unknown = ask(tmp_path, "ascend")
    assert unknown == {"tools.npu-smi info -m": "npu-smi info -m ended with exit code 3"}
    assert [one.index for one in facts.accelerators] == list(range(8))
    assert {one.health.status for one in facts.accelerators} == {"OK"}
    assert all(one.cpus for one in facts.accelerators)
    assert facts.links[0].devices == tuple(f"NPU{n}" for n in range(8))
