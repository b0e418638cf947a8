"""Finds the target of a run, and says what its level needs and this machine lacks."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.discovery.registry import find, host_for, located, scan
from vllm_adapter.errors import InputError, SettingError
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.settings import Settings
from vllm_adapter_conformance.base.emulation import LEVEL, emulated_record, emulator_of
from vllm_adapter_conformance.base.rule import MODELS, SERVING
from vllm_adapter_conformance.base.target import BUDGET_S, Target, with_device
from vllm_adapter_conformance.plan.readable import check_readable, check_whole
from vllm_adapter_conformance.plan.vllm_installed import need_platform, need_vllm

MOST_S: Final = 86400.0
"""The largest budget: a day."""


def fresh_seed() -> int:
    """A seed for one run: its cases are known to nobody before it."""
    return secrets.randbelow(1 << 31)


def find_target(
    name: str,
    level: str,
    *,
    device: int = 0,
    seed: int = 0,
    budget: float = BUDGET_S,
    emulate: str | None = None,
) -> Target:
    """The target of a run up to `level`. L0 neither probes the adapter nor needs its device.

    `emulate` is NAME or NAME:DESCRIPTOR: the adapter whose emulated device stands in, and which
    of this adapter's descriptors describes it; see `emulation`.

    Raises:
        AdapterError: no such adapter; it is incompatible or malformed, or files of it are missing;
            or the level needs a device and it cannot be used.
        InputError: as the registry; a device or seed that is not a number from zero up, or a
            budget that is none; the level needs transformers or vLLM, which is not there, or not
            of the tested version; vLLM has no platform for the device.
    """
    if not 0 < budget <= MOST_S:
        raise InputError(
            f"--budget is a number of seconds above 0 and up to {MOST_S:g}", hint="try --budget 60"
        )
    for option, number in (("--device", device), ("--seed", seed)):
        if number < 0:
            raise InputError(f"{option} is a number from zero up", hint=f"try {option} 0")
    if emulate is not None and level != LEVEL:
        raise InputError(
            f"an emulated device can be certified up to {LEVEL}, and {level} was asked for",
            hint=f"--level {LEVEL} with --emulate, or leave out --emulate",
        )
    if level == "L0" and device:
        raise InputError("L0 opens no device", hint="leave out --device, or certify L1")
    if level >= MODELS and not find_spec("transformers"):
        raise InputError(
            f"{level} runs models of transformers, which is not installed",
            hint="pip install 'vllm-adapter-conformance[models]', or certify L2",
        )
    if level >= SERVING:
        need_vllm()
    settings = Settings.from_environ()
    if settings.ops:
        raise SettingError(
            "VA_OPS is set, and a certificate judges the adapter's own kernels",
            hint="unset VA_OPS",
        )
    records = scan(settings)
    host = host_for(records)
    if emulate is not None:
        lender, _, descriptor = emulate.partition(":")
        emulator = emulator_of(find(lender, settings, host), settings)
        record = emulated_record(
            _located(records, name, settings, host), emulator, descriptor or None
        )
        return replace(with_device(record, host, device, seed), emulator=emulator, budget=budget)
    if level != "L0":
        record = find(name, settings, host)
        check_whole(record)
        if level >= SERVING:
            need_platform(record, level)
        return replace(with_device(record, host, device, seed), budget=budget)
    found = _located(records, name, settings, host)
    check_readable(found)
    check_whole(found)
    return Target(found, host, None, None, seed, budget)


def _located(
    records: Sequence[AdapterRecord], name: str, settings: Settings, host: HostFacts
) -> AdapterRecord:
    """The installed adapter of that name, not probed."""
    found = next((r for r in located(records, host) if r.name == name), None)
    if found is None:
        find(name, settings, host)  # raises: what is missing, and how to get it
        raise AssertionError(f"{name} was installed while we looked")
    return found
