"""Who would be asked on this machine where an adapter's descriptor is in use, for `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_adapter.cli.decisions import Question
from vllm_adapter.cli.output import warn
from vllm_adapter.contract.capability import Capability, load_capability
from vllm_adapter.contract.decision import Reject, library_refusal
from vllm_adapter.contract.dotted import may_implement
from vllm_adapter.contract.manifest import Manifest
from vllm_adapter.contract.operators import Operator
from vllm_adapter.contract.resolve import Check, KernelCandidate, Provider
from vllm_adapter.discovery.adapter import Adapter
from vllm_adapter.discovery.kernels_only import additional_providers, descriptor_for, provider_of
from vllm_adapter.discovery.library_devices import library_file
from vllm_adapter.discovery.probe.library import LibraryFacts, check_library
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.discovery.registry import discover, host_for, scan, with_cached_probes
from vllm_adapter.errors import AdapterError, LibraryError
from vllm_adapter.settings import AdapterFilter, Settings


@dataclass(frozen=True)
class Subject:
    """The adapter that is explained. `record` is None for a folder that is not installed."""

    manifest: Manifest
    record: AdapterRecord | None

    @classmethod
    def at(cls, folder: Path, manifest: Manifest) -> Subject:
        """The adapter of a package folder."""
        records = scan(Settings())
        same = (r for r in records if r.path is not None and r.path.samefile(folder))
        return cls(manifest, next(same, None))

    def provider(self, capability: Capability) -> Provider:
        """The adapter as `bind` would ask it."""
        name, only = self.manifest.name, self.manifest.device is None
        plain = Provider.of(name, capability, kernels_only=only)
        plugin = self.manifest.plugin
        if plugin is None or (self.record and not may_implement(plugin, "implementations")):
            return plain
        if self.record is None:
            warn(f"{name} is not installed: what its plug-in implements is not asked")
            return plain
        try:
            return provider_of(Adapter(self.record), capability)
        except AdapterError as error:
            warn(f"what the plug-in of {name} implements is not asked: {error.message}")
            return plain


def questions(
    subject: Subject, capability: Capability, settings: Settings
) -> Iterator[tuple[str, Question]]:
    """Where a descriptor is in use, in words, and who is asked there.

    A kernels-only adapter serves the devices of others; where none here is for it, it is asked
    alone.
    """
    mine = subject.provider(capability)
    section = subject.manifest.device
    check = _library_check(subject.manifest, capability, settings)
    if section is not None:
        yield "", _question(mine.name, mine, capability, section.torch_type, settings, check)
        return
    found = False
    for owner, own in _owners(subject, capability, settings):
        assert owner.manifest is not None and owner.manifest.device is not None
        kind = owner.manifest.device.torch_type
        found = True
        provider = Subject(owner.manifest, owner).provider(own)
        theirs = _library_check(owner.manifest, own, settings)
        question = _question(owner.name, provider, own, kind, settings, theirs, mine)
        yield f"for {kind} devices of {owner.name}", replace(question, adapter=mine.name)
    if not found:
        alone = replace(settings, adapters=AdapterFilter())
        yield "no device here is for it", Question(mine.name, [mine], alone)


def _question(
    owner: str,
    provider: Provider,
    capability: Capability,
    kind: str,
    settings: Settings,
    check: Check | None,
    also: Provider | None = None,
) -> Question:
    """`also` is the kernels-only adapter that is explained, which need not be installed."""
    others = additional_providers(capability, kind, settings)
    for sentence in others.faults:
        warn(sentence)
    rest = [one for one in others.providers if also is None or one.name != also.name]
    # The explained adapter is asked although VA_ADAPTERS may block it, which was said.
    asked = replace(settings, adapter=owner, adapters=AdapterFilter())
    kernels = sorted([*rest, *([also] if also else [])], key=lambda one: one.name)
    return Question(owner, [provider, *kernels], asked, kind, check)


def _owners(
    subject: Subject, capability: Capability, settings: Settings
) -> Iterator[tuple[AdapterRecord, Capability]]:
    """The adapters of this machine whose device a kernels-only adapter's descriptor is for."""
    records = discover(settings)
    for record in with_cached_probes(records, host_for(records)):
        if record.manifest is None or record.manifest.device is None:
            continue
        files = {d.capability_file for d in record.devices if d.capability_file is not None}
        for file in sorted(files):
            own = load_capability(file)
            chosen = descriptor_for(subject.manifest, own, record.manifest.device.torch_type)
            if chosen is not None and chosen.origin == capability.origin:
                yield record, own


def _library_check(manifest: Manifest, capability: Capability, settings: Settings) -> Check | None:
    """Whether an adapter's C library has what entries name; it is asked in a child, once."""
    entries = [entry for found in capability.operators.values() for entry in found]
    file = library_file(manifest, settings)
    if file is None or all(entry.library_function is None for entry in entries):
        return None
    try:
        facts: LibraryFacts | None = check_library(file)
    except LibraryError as error:
        warn(f"the library of {manifest.name} cannot be used: {error.message}")
        facts = None

    def check(candidate: KernelCandidate, declared: Operator) -> Reject | None:
        if candidate.provider != manifest.name:
            return None
        has = None if facts is None else facts.functions.__contains__
        return library_refusal(candidate.entry, declared.name, file.name, has)

    return check
