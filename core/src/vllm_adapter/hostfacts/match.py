"""Holds `match` entries of a manifest or a descriptor against host facts.

Any one entry suffices; all keys of an entry must hold, and its PCI keys on the same device.
Pure: works on facts of this machine and of a pasted report alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from vllm_adapter.contract.manifest import Condition
from vllm_adapter.contract.reading import Fault, read
from vllm_adapter.errors import ManifestError
from vllm_adapter.hostfacts.facts import HostFacts, PciDevice
from vllm_adapter.hostfacts.known_vendors import BY_PCI

_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_PCI_KEYS: Final = ("pci_vendor", "pci_device", "pci_class")
_LISTED: Final = 4
"""More ids than this are counted in a sentence, and not listed."""


@dataclass(frozen=True, slots=True)
class Match:
    """Hardware that was found: a sentence for each thing seen, and each PCI function once."""

    evidence: tuple[str, ...]
    pci: tuple[PciDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    """One condition of an entry: whether it holds, what was seen, and what was looked for."""

    holds: bool
    evidence: tuple[str, ...]
    sought: str = ""
    fault: str | None = None
    """What is wrong, in words that make sense where the PCI device itself was seen."""


@dataclass(frozen=True, slots=True)
class _MatchEntry:
    """One entry, held against the facts."""

    keys: tuple[_Key, ...]
    pci: tuple[PciDevice, ...]

    @property
    def holds(self) -> bool:
        return all(key.holds for key in self.keys)


def match(entries: Sequence[Mapping[str, Any]], host: HostFacts) -> Match | None:
    """What of the entries is on this host, from every entry that holds; None if none does.

    Raises:
        ManifestError: an unknown key, or a value that is not of the manifest's form.
    """
    found = [entry for entry in _held(entries, host) if entry.holds]
    if not found:
        return None
    evidence = [line for entry in found for key in entry.keys for line in key.evidence]
    devices = {device.bdf: device for entry in found for device in entry.pci}
    return Match(tuple(dict.fromkeys(evidence)), tuple(devices[bdf] for bdf in sorted(devices)))


def why_not(entries: Sequence[Mapping[str, Any]], host: HostFacts) -> str:
    """One sentence: what was looked for and not seen, or which part of a seen device is amiss.

    A PCI device that is seen while another key of its entry fails, or while its device node may
    not be opened by this user, is named first. Errors as `match`.
    """
    held = _held(entries, host)
    if not held:
        return "the manifest names no hardware to look for"
    for entry in held:
        faults = [key.fault for key in entry.keys if key.fault]
        if entry.pci and faults:
            return f"{entry.pci[0]}: seen on PCI, but {' and '.join(faults)}"
    if any(entry.holds for entry in held):
        return "everything that one entry looks for is here"
    sought = dict.fromkeys(
        " and ".join(key.sought for key in entry.keys if not key.holds) for entry in held
    )
    return f"looked for {'; or for '.join(sought)}"


def _held(entries: Sequence[Mapping[str, Any]], host: HostFacts) -> list[_MatchEntry]:
    # a descriptor's entries come here unchecked, so that an entry may be no object at all
    try:
        read(
            [dict(e) if isinstance(e, Mapping) else e for e in entries],
            list[Condition],
            at="/match",
        )
    except Fault as fault:
        raise ManifestError(
            str(fault), hint="run `vllm-adapter validate` on the adapter's files"
        ) from None
    return [_hold(entry, host) for entry in entries]


def _hold(entry: Mapping[str, Any], host: HostFacts) -> _MatchEntry:
    pci = {key: _values(entry[key]) for key in _PCI_KEYS if key in entry}
    devices = tuple(d for d in host.pci if all(_on_device(k, v, d) for k, v in pci.items()))
    reported = _reported_without_pci(pci, host)
    keys = [reported or _pci_key(pci, devices, host)] if pci else []
    for key in entry:
        if key not in pci:
            if reported and key == "device_node" and host.report and not host.nodes:
                continue  # a tool that lists the device has opened its node
            keys.append(_TESTS[key](_values(entry[key]), host))
    return _MatchEntry(tuple(keys), devices if pci else ())


def _reported_without_pci(pci: Mapping[str, tuple[str, ...]], host: HostFacts) -> _Key | None:
    """A vendor's own tool is evidence of its device where no list of PCI devices is known.

    A device id cannot be proved that way, so that an entry with one does not hold.
    """
    if host.pci or "pci_vendor" not in pci or "pci_device" in pci:
        return None
    rows = [row for value in pci["pci_vendor"] if (row := BY_PCI.get(value))]
    names = {row.adapter: row.name for row in rows}
    seen = [one for one in host.accelerators if one.vendor in names]
    if not seen:
        return None
    sources = dict.fromkeys((one.source, names[one.vendor]) for one in seen)
    return _Key(True, tuple(f"{source} lists a device of {name}" for source, name in sources))


def _values(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _on_device(key: str, values: tuple[str, ...], device: PciDevice) -> bool:
    if key == "pci_class":  # four digits leave the programming interface open
        return device.class_code.startswith(values)
    return (device.vendor if key == "pci_vendor" else device.device) in values


def _pci_key(
    wanted: Mapping[str, tuple[str, ...]], devices: tuple[PciDevice, ...], host: HostFacts
) -> _Key:
    words = {"pci_vendor": "vendor", "pci_device": "device", "pci_class": "class"}
    named = ", ".join(f"{words[key]} {_or(values)}" for key, values in wanted.items())
    place = host.where("pci")
    seen = f"{place} cannot be read" if place else f"not among {len(host.pci)} PCI devices"
    return _Key(bool(devices), tuple(str(d) for d in devices), f"a PCI device of {named} ({seen})")


def _or(values: tuple[str, ...]) -> str:
    return " or ".join(values) if len(values) <= _LISTED else f"among {len(values)} known ones"


def _node_key(values: tuple[str, ...], host: HostFacts) -> _Key:
    pattern = values[0]
    nodes = [node for node in host.nodes if _globs(node.path, pattern)]
    if not nodes:
        fault = f"{pattern} is not there: container started without the device?"
        return _Key(False, (), f"a device node {pattern} (not there)", fault)
    usable = [node for node in nodes if node.readable and node.writable]
    best = (usable or nodes)[0]
    said = f"device node {best.path} exists"
    if usable:
        return _Key(True, (said,))
    verb = "written" if best.readable else "read"
    refusal = f"may not be {verb} by this user: missing from the node's group?"
    return _Key(True, (f"{said}, but {refusal}",), fault=f"{best.path} {refusal}")


def _globs(path: str, pattern: str) -> bool:
    # with as many slashes on both sides no star can have crossed a folder
    return fnmatchcase(path, pattern) and path.count("/") == pattern.count("/")


def _os_key(values: tuple[str, ...], host: HostFacts) -> _Key:
    name = host.os.name or ""
    return _plain("system", values, name, name.casefold() in map(str.casefold, values))


def _machine_key(values: tuple[str, ...], host: HostFacts) -> _Key:
    machine = host.os.machine or ""
    return _plain("machine", values, machine, _machine(machine) in map(_machine, values))


def _machine(name: str) -> str:
    folded = name.casefold()
    return _MACHINES.get(folded, folded)


def _module_key(values: tuple[str, ...], host: HostFacts) -> _Key:
    name = values[0].replace("-", "_")  # as the kernel does
    if name in host.modules:
        return _Key(True, (f"kernel module {name} is loaded",))
    if place := host.where("modules"):
        unread = f"kernel module {name} ({place} cannot be read)"
        return _Key(False, (), unread, f"{place} cannot be read for kernel module {name}")
    return _Key(
        False, (), f"kernel module {name} (not loaded)", f"kernel module {name} is not loaded"
    )


def _plain(what: str, values: tuple[str, ...], got: str, holds: bool) -> _Key:
    seen = f"this {what} is {got or 'unknown'}"
    wanted = " or ".join(values)
    return _Key(
        holds, (seen,), f"{what} {wanted} ({seen})", None if holds else f"{seen}, not {wanted}"
    )


def _name_key(values: tuple[str, ...], host: HostFacts) -> _Key:
    names = [one.name for one in host.accelerators if one.name]
    patterns = [value.casefold() for value in values]
    found = [n for n in names if any(fnmatchcase(n.casefold(), p) for p in patterns)]
    return _accelerator_key("name", values, names, found)


def _arch_key(values: tuple[str, ...], host: HostFacts) -> _Key:
    archs = [one.arch for one in host.accelerators if one.arch]
    return _accelerator_key("arch", values, archs, [arch for arch in archs if arch in values])


def _accelerator_key(
    what: str, values: tuple[str, ...], seen: Sequence[str], found: Sequence[str]
) -> _Key:
    evidence = tuple(f"an accelerator's {what} is {value}" for value in dict.fromkeys(found))
    reported = f"seen: {', '.join(dict.fromkeys(seen))}" if seen else f"no {what} was reported"
    return _Key(
        bool(found), evidence, f"an accelerator of {what} {' or '.join(values)} ({reported})"
    )


_TESTS: Final = {
    "device_name": _name_key,
    "arch": _arch_key,
    "device_node": _node_key,
    "machine": _machine_key,
    "os": _os_key,
    "kernel_module": _module_key,
}
