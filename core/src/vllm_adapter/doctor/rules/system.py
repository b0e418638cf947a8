"""The system and the network: ports, collectives, Android, CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, TextRule, finding


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
    others = ("torch-xla", "torch-npu", "torch-musa", "habana-torch-plugin")
    if any(box.facts.package(name) for name in others):
        return
    if x86 and on_cpu and "avx2" in flags and not flags & {"avx512_bf16", "amx_bf16", "avx512f"}:
        yield finding(
            "VA1905",
            [Evidence("no avx512f, avx512_bf16 or amx_bf16 among the CPU's flags", "host facts")],
            f"{box.facts.cpu.model or 'this CPU'} has AVX2 only: bfloat16 is emulated, and the "
            "just-in-time matrix routines that need AVX-512 or AMX are not there",
            severity=Severity.NOTE,
        )


RULES: Final = (
    Rule("VA1001", _collector),
    Rule("VA1903", _android),
    Rule("VA1904", _offline),
    Rule("VA1905", _slow_bfloat16),
    TextRule(
        "VA1901",
        r"\bEJ0003\b|\bEI0019\b|Failed to bind the IP port",
        "another job on this host holds the port that HCCL listens on",
        "set HCCL_IF_BASE_PORT to a free range (HCCL_NPU_SOCKET_PORT_RANGE for the NPU's own "
        "cards), or end the other job",
    ),
    TextRule(
        "VA1902",
        r"NCCL WARN .*(?:Connection (?:refused|timed out)|No (?:socket )?interface found)"
        r"|ibv_\w+ failed|EI0006|Bootstrap : no socket interface found",
        "the collective library could not reach its peers over the network that it chose",
    ),
    TextRule(
        "VA1405",
        r"ibv_reg_mr\w* failed.*Cannot allocate memory|RLIMIT_MEMLOCK",
        "the process may not lock as much memory as RDMA needs",
    ),
)
