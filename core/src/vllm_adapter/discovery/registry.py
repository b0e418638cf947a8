"""Which adapters are installed, and which of them can be used on this machine.

`discover` reads manifests and imports nothing of any adapter; `probe` completes what it left open,
in a child process. A broken adapter becomes a record with a reason, and never an exception.
"""

from __future__ import annotations

import difflib
import importlib.util
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter import __version__
from vllm_adapter.contract.manifest import (
    API_VERSION,
    MAX_NAME,
    api_accepts,
    check_name,
    read_manifest,
    readable_api,
)
from vllm_adapter.contract.reading import revived
from vllm_adapter.discovery.distributions import EntryPoint, entry_points, satisfies
from vllm_adapter.discovery.probe import cache as probe_cache
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.errors import AdapterError, ManifestError
from vllm_adapter.files import PACKAGE_BYTES, read_json, shown
from vllm_adapter.hostfacts.known_vendors import adapters_for, how_to_serve, install_command
from vllm_adapter.hostfacts.match import match, why_not

if TYPE_CHECKING:
    from vllm_adapter.discovery.probe.isolation import ProbeFailure
    from vllm_adapter.hostfacts.facts import HostFacts
    from vllm_adapter.settings import Settings

__all__ = [
    "AdapterRecord",
    "DeviceRecord",
    "Status",
    "discover",
    "find",
    "host_for",
    "located",
    "probe",
    "scan",
    "unknown_names",
    "unserved",
    "with_cached_probes",
]

GROUP: Final = "vllm_adapter.adapters"
LIST_PROBE: Final = "vllm-adapter list --probe"


def discover(settings: Settings, host: HostFacts | None = None) -> tuple[AdapterRecord, ...]:
    """Every installed adapter, as its manifest and `host` (default: this machine) have it.

    A record without a status matches this host and waits for `probe`. The order is by name; of
    two adapters with one name the first is used.
    """
    records = scan(settings)
    return located(records, host or host_for(records))


def scan(settings: Settings) -> tuple[AdapterRecord, ...]:
    """The installed adapters by their metadata and manifests alone, before any host is known.

    Of several distributions with an adapter of one name, `vllm-adapter-NAME` wins, else the first
    by name: no order of folders or installation decides.
    """
    found = sorted(
        entry_points(GROUP, faulty=True),
        key=lambda p: (p.name, p.distribution != f"vllm-adapter-{p.name}", p.distribution),
    )
    records: list[AdapterRecord] = []
    for point in found:
        record = _guarded(_read, _record(point), point, settings)
        if records and records[-1].name == point.name:
            first = next(r for r in records if r.name == point.name)
            record = _ended(
                record,
                Status.SHADOWED,
                f"{first.distribution} has an adapter of the same name, which is used: "
                f"{first.path or first.package}",
                f"pip uninstall {point.distribution}",
            )
        elif record.status is None:
            record = _python_admits(record, point.requires_python)
        records.append(record)
    return tuple(records)


def unknown_names(records: Iterable[AdapterRecord], settings: Settings) -> list[str]:
    """A sentence for each name in VA_ADAPTERS that no installed adapter has."""
    installed = dict.fromkeys(record.name for record in records)
    found = []
    for name in (*settings.adapters.order, *sorted(settings.adapters.denied)):
        if name not in installed:
            near = difflib.get_close_matches(name, installed, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            found.append(
                f"VA_ADAPTERS names {name}, and no adapter of that name is installed{meant}"
            )
    return found


def host_for(records: Iterable[AdapterRecord]) -> HostFacts:
    """This machine's facts, with the device nodes that the adapters' manifests ask for."""
    from vllm_adapter.hostfacts.live import collect

    return collect(node_globs=node_globs(records))


def node_globs(records: Iterable[AdapterRecord]) -> list[str]:
    """The device nodes that the adapters' manifests look for, as globs, sorted."""
    globs = {
        entry["device_node"]
        for record in records
        if record.manifest is not None
        for entry in record.manifest.match
        if "device_node" in entry
    }
    return sorted(globs)


def located(records: Iterable[AdapterRecord], host: HostFacts) -> tuple[AdapterRecord, ...]:
    """The records held against a host: its torch, and the hardware that manifests match."""
    return tuple(r if r.status is not None else _guarded(_located, r, host) for r in records)


def with_cached_probes(
    records: Iterable[AdapterRecord], host: HostFacts
) -> tuple[AdapterRecord, ...]:
    """The records completed with what the last probe of each found, if that is still good."""
    return tuple((r.status is None and _kept(r, host)) or r for r in records)


def probe(
    records: Iterable[AdapterRecord],
    host: HostFacts | None = None,
    *,
    fresh: bool = False,
    limit_s: float | None = None,
) -> tuple[AdapterRecord, ...]:
    """The records, each without a status completed by a probe in a child process.

    A kept answer is used if it is `ok`, or if the adapter hung for at least as long as it would
    have now, and says so: whatever else was found may have been mended outside of what we can
    see. `fresh` asks every adapter again.

    Raises:
        InputError: no child process can be started on this system.
    """
    from vllm_adapter.discovery.probe.isolation import LIMIT_S, run_isolated

    records = tuple(records)
    host = host or host_for(records)
    limit = LIMIT_S if limit_s is None else limit_s
    done: dict[str, AdapterRecord] = {}
    for record in records:
        kept = None if fresh or record.status is not None else _still(record, host, limit)
        if kept is not None:
            done[record.name] = kept
    waiting = {r.name: r for r in records if r.status is None and r.name not in done}
    if waiting:
        order = {
            "host": host.to_json(),
            "records": {name: record.to_json() for name, record in waiting.items()},
        }
        for name, ended in run_isolated(list(waiting), order, limit_s=limit).items():
            answer = ended if isinstance(ended, Mapping) else _failure_record(waiting[name], ended)
            done[name] = _completed(waiting[name], answer)
            if isinstance(ended, Mapping) or ended.begun:
                kept_for = {"hung_s": limit if answer.get("hung") else None}
                probe_cache.store(waiting[name], host, {**answer, **kept_for})
    return tuple(r if r.status is not None else done[r.name] for r in records)


def find(
    name: str,
    settings: Settings,
    host: HostFacts | None = None,
    *,
    accept: Sequence[Status] = (Status.OK,),
) -> AdapterRecord:
    """The adapter of that name, probed if it matches, with one of the statuses in `accept`.

    Raises:
        AdapterError: it is not installed (though its device may be seen), it is broken, or it has
            another status; the hint is the next command.
        InputError: as `probe`.
    """
    records = scan(settings)
    host = host or host_for(records)
    records = located(records, host)
    record = next((r for r in records if r.name == name), None)
    if record is None:
        raise _not_installed(name, records, host)
    (record,) = probe([record], host)
    if record.status in accept:
        return record
    unknown = "; ".join(["", *unknown_names(records, settings)])
    state = "but broken" if record.status is Status.BROKEN else f"but {record.status_text} here"
    raise AdapterError(
        f"adapter {name} ({record.distribution} {record.version}) is installed {state}: "
        f"{record.reason}{unknown if record.status is Status.BLOCKED else ''}",
        hint=f"run `{record.next_step or LIST_PROBE}`",
    )


def unserved(records: Iterable[AdapterRecord], host: HostFacts) -> dict[str, str]:
    """Adapters that are not installed though the host has a device for them: name -> sentence."""
    installed = {record.name for record in records}
    return {
        name: f"{device}: {vendor}, and no adapter for it is installed"
        for name, (vendor, device) in adapters_for(host.pci).items()
        if name not in installed
    }


def _not_installed(name: str, records: Sequence[AdapterRecord], host: HostFacts) -> AdapterError:
    seen = unserved(records, host).get(name)
    if seen:
        command = install_command(name)
        return AdapterError(seen, hint=f"run `{command}`" if command else how_to_serve(name))
    installed = list(dict.fromkeys(record.name for record in records))
    near = difflib.get_close_matches(name, installed, n=1)
    meant = f"did you mean {near[0]}? Otherwise " if near else ""
    command = install_command(name)
    return AdapterError(
        f"no adapter named {name} is installed; installed: {', '.join(installed) or 'none'}",
        hint=f"{meant}run `{command}`" if command else f"{meant}{how_to_serve(name)}",
    )


def _ended(
    record: AdapterRecord, status: Status, reason: str, next_step: str = ""
) -> AdapterRecord:
    return replace(record, status=status, reason=reason, next_step=next_step)


def _guarded(
    step: Callable[..., AdapterRecord], record: AdapterRecord, *arguments: Any
) -> AdapterRecord:
    """A step of discovery: what nobody foresaw in one package is that package's alone."""
    try:
        return step(record, *arguments)
    except Exception as error:  # any, of files that anybody wrote
        return _ended(
            record,
            Status.BROKEN,
            f"reading its files failed: {type(error).__name__}: {shown(str(error))}",
            f"pip install --force-reinstall {record.distribution}",
        )


def _record(point: EntryPoint) -> AdapterRecord:
    return AdapterRecord(
        name=point.name if len(point.name) <= MAX_NAME else f"{point.name[:MAX_NAME]}...",
        distribution=point.distribution,
        version=point.version,
        package=point.value,
        editable=point.editable,
        requires_torch=point.requires_torch,
    )


def _read(record: AdapterRecord, point: EntryPoint, settings: Settings) -> AdapterRecord:
    """The record with its package's folder and manifest, or the status that prevents them."""
    blocked = settings.adapters.blocks(record.name)
    if blocked:
        return _ended(record, Status.BLOCKED, blocked, "unset VA_ADAPTERS")
    reinstall = f"pip install --force-reinstall {record.distribution}"
    if point.fault:
        return _ended(record, Status.BROKEN, point.fault, reinstall)
    named = check_name(point.name)
    if named:
        return _ended(record, Status.BROKEN, f"the name of its entry point {named}", reinstall)
    if not record.package.isidentifier():
        return _ended(
            record,
            Status.BROKEN,
            f"its entry point is {shown(record.package)}, and must be the name of a top-level "
            "package without dot or colon: finding anything deeper would import its parent",
            reinstall,
        )
    try:
        spec = importlib.util.find_spec(record.package)
    except Exception as error:  # an editable install's own finder may raise anything
        return _ended(
            record, Status.BROKEN, f"finding {record.package} failed: {error}", reinstall
        )
    if spec is None or not spec.submodule_search_locations:
        return _ended(
            record,
            Status.BROKEN,
            f"its entry point names the package {record.package}, which is not there",
            reinstall,
        )
    path = Path(spec.submodule_search_locations[0])
    return _with_manifest(replace(record, path=path), path / "adapter.json")


def _with_manifest(record: AdapterRecord, file: Path) -> AdapterRecord:
    try:
        manifest = read_manifest(file)
    except ManifestError as error:
        # A manifest for another core may break our rules, and that is not its fault.
        api = _declared_api(file)
        if api is None or api_accepts(api):
            return _ended(record, Status.BROKEN, error.message, f"vllm-adapter validate {file}")
    else:
        api = manifest.api
        record = replace(record, manifest=manifest)
        if manifest.name != record.name:
            return _ended(
                record,
                Status.BROKEN,
                f"its entry point is named {record.name} and its manifest {manifest.name}; both "
                "must be the adapter's name",
                f"vllm-adapter validate {file}",
            )
    if not api_accepts(api):
        ours = ".".join(map(str, API_VERSION))
        return _ended(
            record,
            Status.INCOMPATIBLE,
            f"it needs a plug-in interface {api}, and vllm-adapter-core {__version__} has {ours}",
            f"pip install --upgrade vllm-adapter-core {record.distribution}",
        )
    return record


def _declared_api(file: Path) -> str | None:
    """The `api` range of a manifest that breaks other rules; None if it has no readable one."""
    try:
        raw = read_json(file, "the manifest", ManifestError, limit=PACKAGE_BYTES)
    except ManifestError:
        return None
    return readable_api(raw)


def _python_admits(record: AdapterRecord, specifier: str) -> AdapterRecord:
    python = ".".join(map(str, sys.version_info[:3]))
    if satisfies(python, specifier):
        return record
    return _ended(
        record,
        Status.INCOMPATIBLE,
        f"{record.distribution} {record.version} needs Python {specifier}, and this is {python}",
        f"pip install --upgrade {record.distribution}",
    )


def _located(record: AdapterRecord, host: HostFacts) -> AdapterRecord:
    version = host.torch.version if host.torch else None
    for bound in record.requires_torch:
        if host.torch is None or (version is not None and not satisfies(version, bound)):
            return _ended(
                record,
                Status.INCOMPATIBLE,
                f"{record.distribution} {record.version} needs torch {bound}, and torch "
                f"{f'is {version}' if host.torch else 'is not installed'}",
                f"pip install {shlex.quote(f'torch{bound}')}",
            )
    assert record.manifest is not None
    if match(record.manifest.match, host) is None:
        reason = why_not(record.manifest.match, host)
        by_pci = any("pci_vendor" in entry for entry in record.manifest.match)
        return _ended(record, Status.ABSENT, reason, "lspci -nn" if by_pci else "uname -a; lsmod")
    return record


def _kept(record: AdapterRecord, host: HostFacts) -> AdapterRecord | None:
    answer = probe_cache.load(record, host)
    try:
        return None if answer is None else _completed(record, answer)
    except (KeyError, TypeError, ValueError):  # a file of another release, or edited
        return None


def _still(record: AdapterRecord, host: HostFacts, limit_s: float) -> AdapterRecord | None:
    """The record with the kept answer, if that need not be asked for again."""
    kept = _kept(record, host)
    if kept is None or kept.status is Status.OK:
        return kept
    hung_s = (probe_cache.load(record, host) or {}).get("hung_s")
    if not isinstance(hung_s, (int, float)) or hung_s < limit_s:
        return None
    reason = f"{kept.reason}; that was an earlier probe, and `{LIST_PROBE}` asks again"
    return replace(kept, reason=reason, next_step=LIST_PROBE)


def _completed(record: AdapterRecord, answer: Mapping[str, Any]) -> AdapterRecord:
    return replace(
        record,
        status=Status(answer["status"]),
        reason=str(answer["reason"]),
        next_step=str(answer["next_step"]),
        evidence=tuple(map(str, answer["evidence"])),
        devices=revived(answer["devices"], tuple[DeviceRecord, ...]),
    )


def _failure_record(record: AdapterRecord, death: ProbeFailure) -> dict[str, Any]:
    from vllm_adapter.discovery.adapter import probe_command

    return {
        "status": Status.BROKEN.value,
        "reason": f"its probe {death.how}",
        "next_step": probe_command(record.name),
        "evidence": [f"stderr: {line}" for line in death.words],
        "devices": [],
        "hung": death.hung,
    }
