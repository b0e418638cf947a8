"""Whether the torch build has code for a device's architecture, as verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter_doctor.devices.verdict import DeviceVerdict, Outcome
from vllm_adapter_doctor.vendor_data.driver_tables import (
    capability_number,
    rocm_targets,
    runtime_of,
    serves,
    wheel_archs,
)

NO_CODE: Final = "VA1203"
OLD_DEVICE: Final = "VA1108"


def code_verdicts(arch: str | None, host: HostFacts, vendor: str = "") -> Iterator[DeviceVerdict]:
    """What the build means for an arch; nothing where its list or the arch is not known."""
    arch = (arch or "").partition(":")[0]
    if not arch:
        return
    row, number = VENDORS.get(vendor), capability_number(arch)
    if row is not None and number is not None and number < row.code_floor:
        yield DeviceVerdict(
            Outcome.REFUSE,
            "build",
            OLD_DEVICE,
            f"no torch build that we serve has code for {arch}",
            arch,
            f"sm_{row.code_floor}",
            "/identity/arch",
            "use a newer GPU, or the CPU",
        )
        return
    if row is not None and number is not None and number < row.vllm_floor:
        yield DeviceVerdict(
            Outcome.REFUSE,
            "build",
            OLD_DEVICE,
            f"vLLM's own kernels start at sm_{row.vllm_floor}, and this is {arch}",
            arch,
            f"sm_{row.vllm_floor}",
            "/identity/arch",
            "use a newer GPU, the CPU, or a program that has kernels for it (llama.cpp)",
        )
    built, sure = build_archs(host)
    torch = host.torch
    if torch is None or serves(built, arch) is not False:
        targets = rocm_targets(torch.hip) if torch and torch.hip else None
        if targets is not None and arch.startswith("gfx") and arch not in targets:
            yield DeviceVerdict(
                Outcome.NOTE,
                "build",
                "",
                f"AMD's matrix of ROCm {torch.hip if torch else ''} does not list {arch}: it may "
                "work, and AMD does not support it",
                arch,
                ", ".join(targets),
                "/identity/arch",
            )
        return
    yield DeviceVerdict(
        Outcome.REFUSE if sure else Outcome.NOTE,
        "build",
        NO_CODE,
        f"{f'torch {torch.version}' if torch.version else 'torch'} was built for "
        f"{', '.join(built)}, and none of it runs on {arch}",
        arch,
        ", ".join(built),
        "/identity/arch",
        f"install a torch build with {arch}",
    )


def build_archs(host: HostFacts) -> tuple[tuple[str, ...], bool]:
    """(archs that torch was built for, whether that is sure): its own word, else its wheel's."""
    torch = host.torch
    if torch is None:
        return (), True
    if torch.archs or not torch.version:
        return torch.archs, True
    kind, runtime = runtime_of(torch)
    version, _, named = torch.version.partition("+")
    local = named or torch.local or ""
    if not local and torch.cuda and kind == "cuda" and runtime:
        # upstream's wheel on PyPI has no local part: `cuda` is its build's own word
        local = f"cu{''.join(runtime.split('.')[:2])}"
    machine = host.os.machine or "x86_64"
    archs, sure = wheel_archs(f"{version}+{local}" if local else version, machine) or ((), True)
    return archs, sure and bool(named)
