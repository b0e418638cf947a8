"""Probes one adapter in this process: plug-in, torch device or C library, descriptors.

Runs in the child of `isolation`, since importing a vendor's code can end or hang a process.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from vllm_adapter.c_abi.library import reproduce_command
from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.reading import plain
from vllm_adapter.discovery.adapter import Adapter, library_command, one_line, probe_command
from vllm_adapter.discovery.descriptors import choose, live_values, load_all, narrowed
from vllm_adapter.discovery.library_devices import library_devices, library_file
from vllm_adapter.discovery.probe.isolation import LIMIT_S
from vllm_adapter.discovery.probe.library import check_library
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.discovery.torch_devices import torch_devices
from vllm_adapter.errors import AdapterError, LibraryError, VllmAdapterError
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, PciDevice
from vllm_adapter.hostfacts.known_vendors import matches_build
from vllm_adapter.hostfacts.match import Match, match
from vllm_adapter.settings import Settings

_LIBRARY_SHARE: Final = 0.75
"""A C library's part of the time: it has to be told before this process is given up."""
_BUILDS: Final[Mapping[str, str]] = {"cuda": "CUDA", "xpu": "XPU"}


class _ProbeRefused(Exception):
    """The probe's answer is a status other than ok."""

    def __init__(self, status: Status, reason: str, next_step: str, *, hung: bool = False) -> None:
        super().__init__(reason)
        self.hung = hung
        self.status = status
        self.next_step = next_step


@dataclasses.dataclass(frozen=True, slots=True)
class _ProbedDevice:
    """One device of the matched hardware.

    `named`: by the plug-in; `seen`: what torch or the C library says.
    """

    name: str
    arch: str | None = None
    evidence: tuple[str, ...] = ()
    pci: PciDevice | None = None
    named: bool = False
    seen: Accelerator | None = None


def examine(record: AdapterRecord, host: HostFacts, *, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Probes one matched adapter: its status, reason, next step, evidence and devices.

    `hung` says that it is broken because something of it took all of its time.
    """
    hung = False
    evidence: list[str] = []
    devices: list[DeviceRecord] = []
    try:
        devices = _probe(record, host, evidence, limit_s)
        status, (reason, next_step) = Status.OK, _unmet_requirement(record, devices)
    except _ProbeRefused as refusal:
        status, reason, next_step = refusal.status, str(refusal), refusal.next_step
        hung = refusal.hung
    except AdapterError as error:
        status = Status.BROKEN
        reason = error.message.removeprefix(f"adapter {record.name}: ")
        next_step = library_command(error.__cause__) or probe_command(record.name)
    except VllmAdapterError as error:
        status, reason = Status.BROKEN, error.message
        next_step = f"vllm-adapter validate {record.path}"
    return {
        "status": status.value,
        "reason": reason,
        "next_step": next_step,
        "evidence": evidence,
        "devices": plain(tuple(devices)),
        "hung": hung,
    }


def _unmet_requirement(record: AdapterRecord, devices: Sequence[DeviceRecord]) -> tuple[str, str]:
    """What an adapter in order still lacks, and the next step; empty if nothing."""
    manifest = record.manifest
    if manifest is not None and manifest.device is None and not manifest.capability_files():
        return (
            "it brings kernels only, and no capability descriptor says for which devices: nothing "
            "of it is used",
            f"vllm-adapter validate {record.path}",
        )
    bare = [device.torch for device in devices if device.capability_file is None]
    if not bare:
        return "", ""
    return (
        f"its device answers, but no capability descriptor of its own is for {', '.join(bare)}: "
        "nothing can be run there until VA_CAPABILITY=FILE names one",
        f"vllm-adapter validate {record.path}",
    )


def _probe(
    record: AdapterRecord, host: HostFacts, evidence: list[str], limit_s: float
) -> list[DeviceRecord]:
    manifest = record.manifest
    assert manifest is not None, "only matched adapters are probed, and they have a manifest"
    seen = match(manifest.match, host) or Match(())
    evidence += seen.evidence
    adapter = Adapter(record)
    found = _found(adapter, host, seen)
    for facts in found:
        evidence += facts.evidence
    if manifest.device is None:
        return []
    described = load_all(manifest)
    kind = manifest.device.torch_type
    file = library_file(manifest, Settings.from_environ())
    if file is not None:
        shown = _library_devices(record, file, evidence, _LIBRARY_SHARE * limit_s)
        count = len(shown)
    else:
        count = _torch_count(record, kind, manifest.device.torch_module, evidence)
        shown = [] if kind == "cpu" else torch_devices(record.name, _torch(), kind, count)
    if len(found) != count:  # a visible-devices variable: only the runtime knows which are left
        found = [_common(found, manifest.vendor)] * count
    found = [
        _joined(facts, shown[i] if shown else None, seen, host) for i, facts in enumerate(found)
    ]
    return [_device(adapter, host, described, kind, i, facts) for i, facts in enumerate(found)]


def _found(adapter: Adapter, host: HostFacts, seen: Match) -> list[_ProbedDevice]:
    """What the plug-in's `probe` found, or by default one device for each matched PCI function."""
    record = adapter.record
    given = adapter.call("probe", host=host)
    if given is None:
        assert record.manifest is not None
        name = record.manifest.vendor
        return [_ProbedDevice(f"{name} at {pci.bdf}", pci=pci) for pci in seen.pci] or [
            _ProbedDevice(name)
        ]
    try:
        found = [
            _ProbedDevice(
                str(device["name"]),
                device.get("arch"),
                tuple(device.get("evidence", ())),
                named=True,
            )
            for device in given
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise AdapterError(
            f"adapter {record.name}: its hook `probe` gave {given!r}, which is no list of objects "
            "with a name",
            hint="return a list such as [{'name': 'Acme A1', 'arch': 'a1'}]",
        ) from error
    if not found:
        raise _ProbeRefused(
            Status.ABSENT,
            "its own probe says that the matched hardware is none of its devices",
            "vllm-adapter list --probe --json",
        )
    return found


def _common(found: Sequence[_ProbedDevice], vendor: str) -> _ProbedDevice:
    """The facts that hold for whichever of the devices it is."""
    archs = {facts.arch for facts in found}
    names = {facts.name for facts in found}
    alike = len(names) == 1
    return _ProbedDevice(
        names.pop() if alike else vendor,
        archs.pop() if len(archs) == 1 else None,
        named=alike and found[0].named,
    )


def _joined(
    facts: _ProbedDevice, seen: Accelerator | None, by_pci: Match, host: HostFacts
) -> _ProbedDevice:
    """One device with what torch or its library says of it; a plug-in's own words win.

    Torch's order need not be PCI's: the PCI function is the one that torch names, or any of the
    matched ones if all are alike.
    """
    if seen is None or (seen.name, seen.arch, seen.memory_total_bytes) == (None, None, None):
        return facts
    pci = next((one for one in host.pci if one.bdf == seen.bdf), None)
    if pci is None and len({(one.vendor, one.device) for one in by_pci.pci}) == 1:
        pci = by_pci.pci[0]
    name = seen.name if seen.name is not None and not facts.named else facts.name
    return dataclasses.replace(facts, name=name, arch=facts.arch or seen.arch, pci=pci, seen=seen)


def _device(
    adapter: Adapter,
    host: HostFacts,
    described: Sequence[Capability],
    kind: str,
    index: int,
    facts: _ProbedDevice,
) -> DeviceRecord:
    chosen = choose(described, narrowed(host, facts.pci, facts.seen), facts.arch)
    torch_name = "cpu" if kind == "cpu" else f"{kind}:{index}"
    live = _json_values(adapter.record, adapter.call("describe", device=torch_name, host=host))
    if not live and chosen is not None and facts.seen is not None:
        live = live_values(
            chosen,
            units=facts.seen.compute_units,
            memory_bytes=facts.seen.memory_total_bytes,
        )
    device = DeviceRecord(
        index=index,
        torch=torch_name,
        name=facts.name,
        arch=facts.arch or (chosen.identity.arch if chosen else None),
        capability_file=Path(chosen.origin) if chosen else None,
        live=live,
    )
    if chosen is not None and device.live:
        adapter.capability(device, Settings())  # raises where the live values do not fit
    return device


def _json_values(record: AdapterRecord, live: Any) -> dict[str, Any]:
    """What `describe` gave, as JSON values."""
    try:
        plain = json.loads(json.dumps({} if live is None else live, allow_nan=False))
    except (TypeError, ValueError) as error:
        plain, problem = None, one_line(error)
    else:
        problem = f"{live!r} is not an object"
    if not isinstance(plain, dict):
        raise AdapterError(
            f"adapter {record.name}: what its hook `describe` gave cannot be used: {problem}",
            hint="return the fields of a descriptor that were read live, as JSON values",
        )
    return plain


def _library_devices(
    record: AdapterRecord, file: Path, evidence: list[str], limit_s: float
) -> list[Accelerator]:
    """What a C library shows; never nothing. It is asked in a process of its own."""
    try:
        facts = check_library(file, limit_s=limit_s)
    except LibraryError as error:
        look = reproduce_command(file) if file.exists() else f"ls -l {shlex.quote(str(file))}"
        more = "" if look in error.hint else f"; {error.hint}"
        raise _ProbeRefused(Status.BROKEN, error.message + more, look, hung=error.hung) from error
    version = f" {facts.version}" if facts.version else ""
    count = len(facts.devices)
    if not count:
        raise _ProbeRefused(
            Status.ABSENT,
            f"its library {file.name}{version} shows no device",
            reproduce_command(file),
        )
    evidence.append(f"{file.name}{version} shows {count} device{'s' * (count > 1)}")
    return library_devices(record.name, facts.devices)


def _torch_count(record: AdapterRecord, kind: str, module: str | None, evidence: list[str]) -> int:
    """How many devices of a type torch shows; never zero."""
    if importlib.util.find_spec("torch") is None:
        raise _ProbeRefused(
            Status.INCOMPATIBLE,
            f"this adapter needs PyTorch for its {kind} device, and it is not installed",
            "pip install torch",
        )
    torch = _imported("torch", record)
    evidence.append(f"torch {torch.__version__}")
    if module is not None:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise _ProbeRefused(
                Status.INCOMPATIBLE,
                f"this adapter needs the module {module}, which is not installed",
                f"pip install --upgrade {record.distribution}",
            )
        _imported(module, record)
    if kind == "cpu":
        return 1
    backend: Any = getattr(torch, kind, None)
    build = _missing_build(record, torch, kind, backend)
    if build is not None:
        raise _ProbeRefused(
            Status.INCOMPATIBLE,
            f"torch {torch.__version__} is built without {build} support; this adapter needs "
            f"a {build} build",
            _other_build(record, build, str(torch.__version__)),
        )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            count = int(backend.device_count()) if backend.is_available() else 0
        except Exception as error:
            raise _ProbeRefused(
                Status.BROKEN,
                f"torch.{kind} failed while it counted devices: {one_line(error)}",
                f'python -c "import torch; print(torch.{kind}.device_count())"',
            ) from error
    if not count:
        # a caught warning's message is typed as text, and is a Warning
        why = f": {one_line(said[-1].message)}" if said else ""  # type: ignore[arg-type]
        raise _ProbeRefused(
            Status.ABSENT,
            f"torch {torch.__version__} shows no {kind} device{why}",
            f"python -c \"import torch; torch.zeros(1, device='{kind}')\"",
        )
    evidence.append(f"torch.{kind} shows {count} device{'s' * (count > 1)}")
    return count


def _torch() -> Any:
    return importlib.import_module("torch")


def _imported(module: str, record: AdapterRecord) -> Any:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise _ProbeRefused(
            Status.BROKEN,
            f"importing {module} failed: {type(error).__name__}: {one_line(error)}",
            library_command(error) or f'python -c "import {module}"',
        ) from error


def _missing_build(record: AdapterRecord, torch: Any, kind: str, backend: Any) -> str | None:
    """What this torch was not built for, or None. AMD's builds call their devices cuda, too."""
    assert record.manifest is not None
    amd = matches_build(record.manifest.match, "hip")
    if kind == "cuda" and amd:
        return "ROCm" if torch.version.hip is None else None
    if backend is None or not getattr(backend, "_is_compiled", lambda: True)():
        return _BUILDS.get(kind, kind)
    return None


def _other_build(record: AdapterRecord, build: str, version: str) -> str:
    plain = version.partition("+")[0]
    if build == "XPU":  # from torch's own index of XPU builds, which the box must be set to
        return f"pip install --force-reinstall torch=={plain}+xpu"
    if build == "CUDA":  # what PyPI has for Linux is a CUDA build
        return f"pip install --force-reinstall torch=={plain}"
    return f"pip install --upgrade {record.distribution}"
