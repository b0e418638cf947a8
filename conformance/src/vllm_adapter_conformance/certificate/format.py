"""The certificate's format: the types from which its JSON Schema is made.

The schema judges every certificate, as it does for third parties; a property test holds what
these types take against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from vllm_adapter.contract.reading import LEFT_OUT, OPEN, Text, form, tag
from vllm_adapter_conformance.certificate.performance import Performance

VERSION: Final = (1, 1)
"""1.1: the distributions, the loaded files and the device's drivers, which a replay compares."""
TAG: Final = "vllm-adapter/certificate/1.1"
Level = Literal["L0", "L1", "L2", "L3", "L4", "L5"]
_Digest = Annotated[str, form("[0-9a-f]{64}", "a SHA-256 in lower-case hexadecimal digits")]
_Count = Annotated[int, Meta(ge=0)]
_Calls = Annotated[int, Meta(ge=1)]
_Share = Annotated[float, Meta(ge=0)]
_Key = Annotated[str, Meta(min_length=1)]
_Pointer = Annotated[str, Meta(pattern=r"^(/|$(?!\n))", extra={"need": "a JSON pointer"})]
_Name = Annotated[str, form("[a-z][a-z0-9_]*", "an adapter's name")]
_RuleId = Annotated[str, form(r"L[0-5](\.[a-z0-9_]+)+", "a rule's id", "L2.rms_norm.correct")]
_Day = Annotated[str, form("[0-9]{4}-[0-9]{2}-[0-9]{2}", "a day: YYYY-MM-DD")]
_Moment = Annotated[
    str,
    form(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|\+00:00)",
        "a moment in UTC by ISO 8601",
        "2026-01-31T12:00:00Z",
    ),
]


class TestedAdapter(Struct, frozen=True):
    """The adapter that was tested, as it was imported."""

    name: _Name
    """Its name in the manifest."""
    dist: Text
    """The distribution that brings it."""
    version: Text
    """The distribution's version."""
    files: Mapping[_Key, _Digest]
    """SHA-256 of every file of the package, by its path inside the package."""
    editable: bool
    """Whether it was an editable install or a dirty tree, whose files may change; the grade is
    then development."""
    emulated: bool
    """Whether the manifest says that the device is emulated."""
    tested_on: Annotated[tuple[_Key, ...] | None, LEFT_OUT] = None
    """Descriptors whose device has run the suite, as the manifest has them; an empty list says
    that none was ever run on hardware."""


class Suite(Struct, frozen=True):
    """The conformance suite that ran."""

    version: Text
    """Version of vllm-adapter-conformance."""
    files_sha256: _Digest
    """SHA-256 over the digests of all files of the suite."""
    mustpass_sha256: _Digest
    """SHA-256 of the committed list: rules, their cores, known cases, waivers."""


class Core(Struct, frozen=True):
    """The core that ran the cases: a descriptor may name kernels that are core's own."""

    version: Text
    """Version of vllm-adapter-core."""
    files_sha256: _Digest
    """SHA-256 over the digests of all files of core."""


class TestedDistribution(Struct, frozen=True):
    """One distribution that took part."""

    version: Text
    """Its version."""
    loaded: Mapping[_Key, _Digest]
    """SHA-256 of each of its files that the device's process had loaded, by its path in RECORD."""
    files_sha256: Annotated[_Digest | None, LEFT_OUT] = None
    """SHA-256 over the digests of all files of its package; of the suite's own distributions and
    the adapter's."""


class UsedDescriptor(Struct, frozen=True):
    """The capability descriptor from which the cases were made."""

    path: Text
    """Its path inside the package, or the file that VA_CAPABILITY named."""
    sha256: _Digest
    """SHA-256 of the file."""


class Host(Struct, frozen=True):
    """The machine: machine type, os, cpu, PCI devices and what else was collected."""

    machine: str
    """Machine type as uname reports it."""
    os: str
    """Operating system and release."""
    cpu: str | None = None
    """Name of the CPU; null when unknown."""


class EmulatedBy(Struct, frozen=True):
    """Whose C library stood in for the device."""

    name: str
    """Name of the adapter that lent it."""
    dist: str
    """Its distribution."""
    version: str
    """Its version."""
    library_sha256: _Digest
    """SHA-256 of the library's file."""


class SeenLibrary(Struct, frozen=True):
    """A C library, as its own table names it."""

    vendor: str
    """Who made it."""
    version: str
    """Its version, as its vendor writes it."""


class SeenDevice(Struct, frozen=True):
    """What the run saw of the device, apart from what the adapter says."""

    name: str | None
    """The device's own name: torch's, or the C library's; null where there is none."""
    arch: str | None
    """The arch that the C library gives; null where the device is torch's own."""
    total_bytes: _Count | None
    """Bytes of memory; null where the device does not say."""
    library: SeenLibrary | None
    """The C library behind the device; null where the device is torch's own."""
    nodes: tuple[_Key, ...]
    """Device nodes that the process had open or mapped, without those that any process has. Where
    there is none the device is the host's own memory and CPU."""


class UsedDevice(Struct, frozen=True):
    """The device that ran the cases."""

    name: str
    """The device's name."""
    torch: str | None
    """The torch device, such as cuda:0."""
    arch: str | None = None
    """The descriptor's arch."""
    vendor: Annotated[str | None, LEFT_OUT] = None
    """The vendor in the descriptor's identity. Older certificates lack it."""
    torch_type: Annotated[str | None, LEFT_OUT] = None
    """The torch device type in the descriptor's identity, empty where it has none. Older
    certificates lack it."""
    seen: Annotated[SeenDevice | None, LEFT_OUT] = None
    """What the run saw of the device; absent where it could not be opened."""
    reported_name: Annotated[str | None, LEFT_OUT] = None
    """The name that the device gave itself."""
    memory_bytes: Annotated[_Count | None, LEFT_OUT] = None
    """Its memory, as its runtime has it; absent where that cannot say."""
    drivers: Annotated[Mapping[_Key, str] | None, LEFT_OUT] = None
    """Versions of the machine's drivers and toolkits, by component."""
    emulated_by: Annotated[EmulatedBy | None, LEFT_OUT] = None
    """Whose C library stood in for the device; absent where the device was the adapter's own."""


OPEN.update((Host, UsedDevice))


class Counts(Struct, frozen=True):
    """Cases by outcome, over all rules."""

    passed: _Count = field(name="pass")
    """Cases that passed."""
    fail: _Count
    """Cases that failed."""
    not_declared: _Count
    """Cases that the descriptor does not declare: listed, and not run."""
    waived: _Count
    """Failures that a waiver covers."""
    blocked: _Count
    """Cases that were not run, because a rule they need failed."""


class UsedWaiver(Struct, frozen=True):
    """The waiver that covers a failure."""

    issue: Text
    """The issue that tracks the failure."""
    expires: _Day
    """The day on which the waiver ends: YYYY-MM-DD."""
    reason: str | None = None
    """Why the failure is accepted until then."""


class RanCase(Struct, frozen=True):
    """One case: one pytest item."""

    case: Text
    """The case's id, unique in its rule."""
    outcome: Literal["pass", "fail", "waived", "blocked"]
    """pass, fail, waived, or blocked by the failure of a rule that it needs."""
    seconds: _Share | None
    """Wall-clock seconds; null if it was not run."""
    share: _Share | None
    """Observed error as a share of the budget: 1 is the limit. Null where nothing was compared, or
    the error was not finite."""
    pointer: _Pointer | None
    """JSON pointer to what declared the case in the descriptor."""
    message: str | None
    """What was expected and what was seen; null for a pass."""
    waiver: UsedWaiver | None
    """The waiver that covers the failure; null if none."""
    blocked_by: str | None
    """The rule whose failure blocks this case; null if none."""

    def __post_init__(self) -> None:
        if self.outcome == "waived" and self.waiver is None:
            raise ValueError("/waiver is null, and the case is waived")
        if self.outcome == "blocked" and self.blocked_by is None:
            raise ValueError("/blocked_by is null, and the case is blocked")


class NotDeclared(Struct, frozen=True):
    """One case that is not declared."""

    case: Text
    """The case's id."""
    pointer: _Pointer | None
    """JSON pointer to what refused it in the descriptor; null if the operator is absent."""
    reason: Text
    """Why it is not declared."""


class RanRule(Struct, frozen=True):
    """One rule."""

    rule: _RuleId
    """The rule's id; explain prints its page."""
    level: Level
    """The level it belongs to."""
    preview: bool
    """Whether the rule is new and does not count for the level yet."""
    cases: tuple[RanCase, ...]
    """The cases that were collected."""
    not_declared: tuple[NotDeclared, ...]
    """Cases that the descriptor does not declare."""


class OperatorDraws(Struct, frozen=True):
    """One operator's draws."""

    draws: _Count
    """Points of its space: each settles facts, sizes, layouts, values and history."""
    pairs_met: _Count
    """Pairs of classes of two dimensions that took effect in some draw."""
    pairs: _Count
    """All such pairs that can: no length does in an empty batch. Some of them the descriptor
    refuses, or they are too large for the budget."""
    not_visited: tuple[_Key, ...]
    """Values, as dimension=value, that the descriptor admits and no draw had, such as
    "pool=66000"; a larger budget visits more."""


class Sampling(Struct, frozen=True):
    """What was drawn of the operators' spaces by the seed, within the budget."""

    budget_s: Annotated[float, Meta(gt=0)]
    """Seconds of one core that the drawn cases were to take, by estimate: `certify --budget`."""
    operators: Mapping[_Key, OperatorDraws]
    """By declared operator."""


class Certificate(Struct, frozen=True):
    """The report of one conformance run."""

    schema: Annotated[str, tag("certificate")]
    adapter: TestedAdapter
    """The adapter that was tested, as it was imported."""
    level_asked: Level
    """The level that was asked for."""
    level_reached: Level | None
    """The highest level of which every rule, and every rule of the levels below, has held, and
    the core has run; null if none."""
    grade: Literal["release", "development"]
    """release: every file as its wheel's RECORD has it; development: an editable install, changed
    files, or imported files that no RECORD has."""
    emulated: bool
    """Whether the run was on an emulated device, or on one with nothing but the host behind it;
    there is no badge then."""
    badge: str | None
    """Text of the badge that this certificate earns, such as L2; null for an emulated device, for
    a CPU that stood in for another device, for a development grade or no level."""
    created: _Moment
    """When the run ended: ISO 8601 in UTC."""
    suite: Suite
    """The conformance suite that ran."""
    descriptor: UsedDescriptor | None
    """The capability descriptor from which the cases were made; null if none could be read."""
    host: Host
    """The machine: machine type, os, cpu, PCI devices and what else was collected."""
    device: UsedDevice | None
    """The device that ran the cases; null where no level needed one."""
    environment: Annotated[
        Mapping[str, str], Meta(extra_json_schema={"required": ["python", "core"]})
    ]
    """Versions of what ran: python, torch, core and others, as text."""
    settings: Mapping[Annotated[str, Meta(pattern="^VA_")], str]
    """The VA_* variables that were in force."""
    seed: _Count
    """The seed of all samples; a replay uses it."""
    headline: Text
    """One sentence: level, device and coverage."""
    coverage: Mapping[str, Mapping[str, Literal["pass", "fail", "not_declared", "waived"]]]
    """By operator, then by dtype: pass, fail, not_declared or waived."""
    counts: Counts
    """Cases by outcome, over all rules."""
    rules: tuple[RanRule, ...]
    """Every rule of the levels up to the one asked for, with its cases."""
    digest: _Digest
    """SHA-256 of this file's canonical JSON (sorted keys, no spaces, UTF-8) without this key."""
    core: Annotated[Core | None, LEFT_OUT] = None
    """The core that ran the cases: a descriptor may name kernels that are core's own."""
    contract: Annotated[Text | None, LEFT_OUT] = None
    """Version of the plug-in interface between core and adapters; since format 1.1, as the next
    four."""
    distributions: Annotated[Mapping[_Key, TestedDistribution] | None, LEFT_OUT] = None
    """The distributions that took part, by their normalised names: the suite, its own
    distributions, the adapter, and any other of which a file was loaded, but for torch, pytest and
    what else the suite itself needs."""
    outside: Annotated[Mapping[_Key, _Digest] | None, LEFT_OUT] = None
    """SHA-256 of loaded files of no distribution that are not the operating system's, by path."""
    changed: Annotated[tuple[Text, ...] | None, LEFT_OUT] = None
    """What was not as it was installed, one sentence each; then the grade is development."""
    start_up: Annotated[tuple[Text, ...] | None, LEFT_OUT] = None
    """Code that Python ran at each process's start: sitecustomize, and hooks in .pth files."""
    sampling: Annotated[Sampling | None, LEFT_OUT] = None
    """What was drawn of the operators' spaces by the seed, within the budget; from L2 on.
    Certificates of suites that had fixed samples lack it."""
    performance: Annotated[Performance | None, LEFT_OUT] = None
    """What L5 measured: the device's own rates, operators' shares of them, the load; only where
    that level was asked for."""
    counters: Annotated[
        Mapping[_Key, Mapping[str, Mapping[str, Mapping[str, _Calls]]]] | None, LEFT_OUT
    ] = None
    """Calls of the adapter's operators in vLLM's own processes, by the case that counted them,
    then by process, operator and provider; only where such a case passed."""

    def __post_init__(self) -> None:
        for name in ("python", "core"):
            if name not in self.environment:
                raise ValueError(f"/environment/{name} is missing")
        if self.badge is not None and (self.emulated or self.grade == "development"):
            raise ValueError("/badge must be null for an emulated device or a development grade")
