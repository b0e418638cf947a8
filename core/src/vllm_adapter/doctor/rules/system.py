"""The system: the report's own faults, Android, CPUs, limits of a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding
from vllm_adapter.doctor.text_rule import TextRule


def _collector(box: Box) -> Iterator[Finding]:
    evidence = box.evidence(r'File ".*collect_env\w*\.py", line \d+')
    if evidence and box.says(r"^Traceback \(most recent call last\)"):
        yield finding(
            "VA1001",
            evidence[-1:],
            "the collector of this report raised an error before it was done; what it had printed "
            "was read",
            severity=Severity.WARNING,
        )


def _android(box: Box) -> Iterator[Finding]:
    hints = sorted({"android", "termux"} & set(box.facts.os.environment))
    if hints:
        yield finding(
            "VA1903",
            box.evidence(r"(?i)termux|android", f"environment: {', '.join(hints)}"),
            "an Android system gives applications no accelerator node",
            severity=Severity.WARNING,
        )


def _offline(box: Box) -> Iterator[Finding]:
    offline = box.facts.cpu.offline
    if offline:
        named = ", ".join(map(str, offline[:8])) + (", ..." if len(offline) > 8 else "")
        yield finding(
            "VA1904",
            box.evidence(r"(?i)^off-?line cpu", f"offline CPUs: {named}"),
            f"CPU {named} is offline: a binding that names it fails",
            severity=Severity.WARNING,
        )


def _slow_bfloat16(box: Box) -> Iterator[Finding]:
    flags = set(box.facts.cpu.flags)
    x86 = (box.facts.os.machine or "").lower() in ("x86_64", "amd64") or "sse2" in flags
    on_cpu = not box.facts.accelerators and (
        box.facts.torch is not None and (box.facts.torch.local or "").startswith("cpu")
    )
    if box.other_runtime:
        return
    if x86 and on_cpu and "avx2" in flags and not flags & {"avx512_bf16", "amx_bf16", "avx512f"}:
        yield finding(
            "VA1905",
            [Evidence("no avx512f, avx512_bf16 or amx_bf16 among the CPU's flags", "host facts")],
            f"{box.facts.cpu.model or 'this CPU'} has AVX2 only: bfloat16 is emulated, and the "
            "just-in-time matrix routines that need AVX-512 or AMX are not there",
            severity=Severity.NOTE,
        )


def _windows(box: Box) -> Iterator[Finding]:
    if box.facts.os.name == "Windows":
        yield finding(
            "VA1916",
            [Evidence(box.facts.os.distribution or "Windows", "host facts")],
            "this report is of Windows itself, for which vLLM has no build",
            severity=Severity.WARNING,
        )


RULES: Final = (
    Rule("VA1916", _windows),
    Rule("VA1001", _collector),
    Rule("VA1903", _android),
    Rule("VA1904", _offline),
    Rule("VA1905", _slow_bfloat16),
    TextRule(
        "VA1908",
        ("illegal instruction", "sigill", "does not support ", "signal 4"),
        r"(?i)\bIllegal instruction\b|\bSIGILL\b|\bSignal 4 \(ILL\)"
        r"|CPU does not support (?:AVX\w*|x86-64-v\d)",
        "a compiled library uses instructions that this CPU lacks: vLLM's CPU wheel and image "
        "need AVX-512 (or AVX2, by build), and virtual machines often hide them",
        "look at `lscpu` for avx512f and avx2; build vLLM here for this CPU (VLLM_CPU_DISABLE_"
        "AVX512=1 for AVX2), or let the hypervisor pass the host's CPU through",
        unless=(r"HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION",),
    ),
    TextRule(
        "VA1910",
        ("can't start new thread", "resource temporarily unavailable", "too many open files",
         "pthread_create", "eagain"),
        r"(?i)can't start new thread|pthread_create[^\n]*(?:failed|Resource temporarily|EAGAIN|"
        r"Operation not permitted)|fork[^\n]*Resource temporarily unavailable"
        r"|Too many open files",
        "a limit of this process or container is reached: threads (pids), or open files",
        "`ulimit -u` and `-n`; start the container with `--pids-limit -1 --ulimit nofile=65535` "
        "(old Docker with a new image: `--security-opt seccomp=unconfined`); OMP_NUM_THREADS=1",
    ),
    TextRule(
        "VA1912",
        ("mempolicy", "sched_setaffinity", "migrate_pages", "numactl", "libnuma", "mbind"),
        r"(?i)(?:[sg]et_mempolicy|mbind|numa_migrate_pages|migrate_pages|sched_setaffinity)"
        r"[^\n]*(?:failed|Operation not permitted|Invalid argument)"
        r"|numactl: (?:command )?not found|No such file or directory: 'numactl'"
        r"|libnuma: Warning: (?:cpu|node) argument \S+ is out of range",
        "this process may not bind itself to CPUs or memory nodes (a container's default), names "
        "one that it was not given, or numactl is not installed",
        "start the container with `--cap-add SYS_NICE --security-opt seccomp=unconfined`, bind "
        "within its cpuset, install numactl; the work goes on without binding, slower",
        Severity.WARNING,
    ),
    TextRule(
        "VA1905",
        ("could not create a primitive",),
        r"could not create a primitive(?: descriptor)?(?: for an? \w+ primitive)?",
        "oneDNN has no routine for this operation in this data type on this CPU, or no memory "
        "for it",
        "use --dtype float32 (or bfloat16 on a CPU with AVX-512 BF16 or AMX); upgrade torch",
    ),
    TextRule(
        "VA1917",
        ("no space left on device",),
        r"No space left on device(?::? '(?P<where>/(?!dev/)[^']+)')?(?![^\n]*(?:/dev/|psm_|shm))",
        "a disk is full {where}",
        "`df -h` shows which; point HF_HOME, VLLM_CACHE_ROOT and TMPDIR at a larger one",
        unless=(r"(?i)/dev/shm|shared memory",),
    ),
)  # fmt: skip
