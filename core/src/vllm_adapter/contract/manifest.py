"""An adapter's `adapter.json`: its types, and how it is read without importing any of its code."""

from __future__ import annotations

import itertools
import keyword
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from vllm_adapter.contract.reading import (
    CLOSED,
    LEFT_OUT,
    OURS,
    SOME,
    Fault,
    Text,
    form,
    read,
    tag,
)
from vllm_adapter.errors import ManifestError, NewerFormat
from vllm_adapter.files import PACKAGE_BYTES, read_json, schema_version, shown

SCHEMA_NAME: Final = "vllm-adapter/manifest"
SCHEMA_VERSION: Final = (1, 0)
API_VERSION: Final = (1, 0)
"""The plug-in interface of this core, that a manifest's `api` range is held against."""

RESERVED_NAMES: Final = frozenset(
    {"core", "conformance", "schemas", "template"}
    | {"op", "overloads", "default", "out", "selected", "torch"}
    | set(keyword.kwlist)
)
MAX_NAME: Final = 64
"""Characters of an adapter's name: it becomes the name of files and of overloads."""
MAX_DESCRIPTORS: Final = 256
NAME: Final = "[a-z][a-z0-9_]*"
"""An adapter's name, whole."""
_DIGITS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_MODULE: Final = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
_TERM: Final = r" *(>=|<=|==|!=|>|<) *([0-9]{1,4})(\.[0-9]{1,4})? *"
_API: Final = f"{_TERM}(,{_TERM})*"
_PART: Final = "[A-Za-z0-9_.-]*"

TorchType = Annotated[str, form("[a-z][a-z_]*", lambda kind: _type_form(kind), "acme")]
"""A torch device type: in "acme:1" torch reads letters and low lines, and then the index."""
Dotted = Annotated[
    str, form(f"{_MODULE}:{_MODULE}", "module:function or module:Class", "acme.plugin:Acme")
]
_Id = Annotated[str, form("[0-9a-f]{4}", "four lower-case hexadecimal digits")]
_Class = Annotated[str, form("0x[0-9a-f]{4}([0-9a-f]{2})?", "a PCI class such as 0x1200")]
_Module = Annotated[str, form(_MODULE, "the name of a Python module", "torch_acme")]
_Stem = Annotated[str, form(f"[A-Za-z0-9_]{_PART}", "a descriptor's file name without .json")]
# A glob of anything else could walk the whole file system of whoever lists adapters.
_Node = Annotated[
    str,
    form(
        "/dev/(?:[^/.][^/]*/){0,3}[^/.][^/]*",
        "a glob in /dev, at most four levels deep, such as /dev/acme*",
        "/dev/acme*",
    ),
]
_Inside = Annotated[
    str,
    Meta(
        pattern=r"^(?!/)(?!(?:[\s\S]*/)?\.\.(?:/|$(?!\n)))[\s\S]",
        examples=["libacme.so"],
        extra={"need": "the name of a file inside the package, relative to it"},
    ),
]
_Word = Annotated[str, Meta(min_length=1, extra={"need": "text that is not empty"})]


class Condition(TypedDict, total=False):
    """Conditions that must all hold.

    An unknown key is an error also in a newer minor version, because ignoring it would widen the
    match.
    """

    pci_vendor: Annotated[_Id, Meta(examples=["fff1"])]
    """PCI vendor id: four lower-case hexadecimal digits without 0x."""
    pci_device: Annotated[tuple[_Id, ...], SOME]
    """PCI device ids, any of which may hold: four lower-case hexadecimal digits each."""
    pci_class: Annotated[tuple[_Class, ...], SOME]
    """PCI classes, any of which may hold: 0x with four or six lower-case hexadecimal digits; four
    compare the class alone."""
    device_node: _Node
    """Glob of a device node that must exist, in /dev and at most four levels deep."""
    machine: Annotated[tuple[_Word, ...], SOME]
    """Machine types as uname reports them, any of which may hold."""
    os: Annotated[tuple[_Word, ...], SOME]
    """Operating systems as uname reports them, any of which may hold."""
    kernel_module: _Word
    """Name of a loaded kernel module."""
    device_name: Annotated[tuple[_Word, ...], Meta(min_length=1, examples=[["*H100 PCIe"]])]
    """Globs of the accelerator's name as its tools print it, any of which may hold; upper and
    lower case are alike."""
    arch: Annotated[tuple[_Word, ...], SOME]
    """Archs of which the accelerator must be one, as a descriptor's `identity.arch` writes
    them."""


CLOSED[Condition] = 1


class DeviceSection(Struct, frozen=True):
    """How the device is reached: a torch device type, or a C library that core makes one of.

    Where a library's manifest names no type, it is made of the adapter's name by `torch_type_of`.
    """

    torch_type: TorchType = ""
    """Torch device type that the vendor's torch build or extension registers; beside a library,
    the name under which core registers it, by default made of the adapter's: acme2 gives acme_two.
    Lower-case letters and _: torch reads no digit in a device type. Beside a library, no name that
    torch keeps for itself."""
    torch_module: Annotated[_Module | None, LEFT_OUT] = None
    """Python module whose import registers the torch device type."""
    library: Annotated[_Inside | None, LEFT_OUT] = None
    """File name of a C library that implements vllm_adapter.h, relative to the package: neither
    absolute nor through a parent folder."""

    def __post_init__(self) -> None:
        if not self.torch_type and self.library is None:
            raise ValueError("must have torch_type or library")


class Manifest(Struct, frozen=True):
    """One adapter.json. `path` is the file; `device` is None for a kernels-only adapter.

    `tested_on` is empty if no descriptor's device has run the suite, None if nothing is said.
    """

    name: Annotated[
        str,
        Meta(
            max_length=MAX_NAME,
            pattern=rf"^{NAME}$(?!\n)",
            examples=["acme"],
            extra={
                "need": "a name of at most 64 lower-case letters, digits and _, a letter first"
            },
            extra_json_schema={"not": {"enum": sorted(filter(str.islower, RESERVED_NAMES))}},
        ),
    ]
    """The adapter's name: lower-case letters, digits and _, a letter first. It becomes the name of
    operator overloads, so words that Python, torch or vllm-adapter keep for themselves are
    refused."""
    vendor: Annotated[Text, Meta(examples=["Acme"])]
    """The vendor's name as people read it."""
    api: Annotated[str, form(_API, 'a range such as ">=1.0,<2"', ">=1.0,<2")]
    """Versions of the plug-in interface that the adapter works with: comparisons joined by commas,
    all of which must hold."""
    path: Annotated[Path, OURS] = field(default_factory=Path)
    device: Annotated[DeviceSection | None, LEFT_OUT] = None
    """How the device is reached: a torch device type, or a C library that core makes one of.
    Absent for an adapter of kernels only."""
    match: tuple[Condition, ...] = ()
    """The default probe: the adapter concerns a machine if any one entry holds. Absent or empty,
    it never matches by itself."""
    capabilities: Annotated[
        str,
        form(
            rf"([A-Za-z0-9_]{_PART}/)*{_PART}\*?{_PART}\.json",
            "a glob such as capabilities/*.json, inside the package",
            "capabilities/*.json",
        ),
    ] = "capabilities/*.json"
    """Glob of the capability descriptors, relative to the package; one star in the file's name.
    Default capabilities/*.json."""
    plugin: Annotated[
        Dotted | None, LEFT_OUT, Meta(examples=["vllm_adapter_acme.plugin:AcmePlugin"])
    ] = None
    """module:Class of the plug-in class, needed only for hooks. Importing it must load neither
    torch nor the vendor's SDK."""
    emulated: bool = False
    """True if the device is emulated in software; its certificates carry no badge. Default
    false."""
    tested_on: Annotated[
        tuple[_Stem, ...] | None,
        LEFT_OUT,
        Meta(examples=[["sm_90-h200"]]),
    ] = None
    """Descriptors, by their files' names without .json, whose device has run the conformance
    suite. An empty list says that nothing here was ever run on hardware."""
    schema: Annotated[str, tag("manifest")] = f"{SCHEMA_NAME}/1.0"

    def __post_init__(self) -> None:
        if self.name in RESERVED_NAMES:
            raise ValueError(f"/name {check_name(self.name)}")

    def library_file(self) -> Path | None:
        """The C library that is the adapter's device; None if it has none."""
        named = self.device and self.device.library
        return self.path.parent / named if named else None

    def capability_files(self) -> list[Path]:
        """The descriptors' files, in the order in which they are tried.

        One more than MAX_DESCRIPTORS says that there are too many; which these are is chance.
        """
        found = self.path.parent.glob(self.capabilities)
        return sorted(itertools.islice(found, MAX_DESCRIPTORS + 1))


def read_manifest(path: Path) -> Manifest:
    """Reads and checks an adapter.json.

    Raises:
        ManifestError: missing, not JSON, or the first rule that it breaks.
    """
    raw = read_json(path, "the manifest", ManifestError, limit=PACKAGE_BYTES)
    try:
        manifest = parse_manifest(raw)
        faults = check_torch_names(raw)
        if faults:
            raise Fault("", faults[0])
    except Fault as fault:
        raise ManifestError(
            f"{path}: {fault}",
            hint="run `vllm-adapter validate` on the file to see every fault",
        ) from None
    if is_newer_minor(raw["schema"]):
        warnings.warn(
            f"{path} has schema {raw['schema']}, newer than this release: new fields are ignored",
            NewerFormat,
            stacklevel=2,
        )
    return replace(manifest, path=path)


def parse_manifest(raw: Any) -> Manifest:
    """The manifest in parsed JSON, by the file's own rules alone: without torch's names.

    Raises:
        Fault: the first rule that it breaks.
    """
    if isinstance(raw, dict) and "schema" not in raw:
        raise Fault("/schema", "is missing")
    tag = raw["schema"] if isinstance(raw, dict) else None
    manifest = read(raw, Manifest, newer=is_newer_minor(tag))
    device = manifest.device
    if device is None or device.torch_type:
        return manifest
    return replace(manifest, device=replace(device, torch_type=torch_type_of(manifest.name)))


def check_name(name: Any) -> str | None:
    """Why a string cannot name an adapter (it becomes an overload's name), or None."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        return f"is {shown(name)}; a name is lower-case letters, digits and _, a letter first"
    if len(name) > MAX_NAME:
        return f"is {shown(name)}; a name has at most {MAX_NAME} characters, and not {len(name)}"
    if name in RESERVED_NAMES:
        return f"is {name!r}, a name that Python, torch or vllm-adapter keeps for itself"
    return None


def torch_type_of(name: str) -> str:
    """The torch device type of a C library whose manifest names none: `acme2` is `acme_two`."""
    spelt = re.sub("[0-9]", lambda digit: f"_{_DIGITS[int(digit[0])]}_", name)
    return re.sub("__+", "_", spelt).rstrip("_") if spelt != name else name


def check_torch_type(kind: str) -> str | None:
    """Why no C library's manifest may say that its device is of this type, or None.

    A type of torch's own belongs to the vendor whose device it is, even where torch would lend it
    to a library, as a simulated device that stands in for that vendor's needs it.
    """
    from vllm_adapter.contract.torch_names import DEVICE_TYPES, TAKEN, TORCH

    fault = check_type_spelling(kind)
    if fault:
        return fault
    if kind in DEVICE_TYPES or kind in TAKEN:
        return f"is {kind!r}, a name that torch {TORCH} keeps for itself"
    return None


def check_type_spelling(kind: str) -> str | None:
    """Why torch cannot read this as a device type, or None."""
    if re.fullmatch("[a-z][a-z_]*", kind):
        return None
    return f"is {shown(kind)}; write {_type_form(kind)}"


def check_torch_names(raw: Mapping[str, Any]) -> list[str]:
    """What torch would refuse of a manifest without other faults, one sentence each."""
    from vllm_adapter.contract.torch_names import DEVICE_TYPES

    name, device = raw["name"], raw.get("device") or {}
    library, kind = device.get("library"), device.get("torch_type")
    if name in DEVICE_TYPES and (library or kind != name):
        return [
            f"/name is {name!r}, which is a device type of torch's own: only the adapter of that "
            f'device may be called so, and it says "device": {{"torch_type": "{name}"}}'
        ]
    fault = check_torch_type(kind or torch_type_of(name)) if library else None
    if fault and kind:
        return [f"/device/torch_type {fault}"]
    if fault:
        return [f"/device has no torch_type, and the one made of the adapter's name {fault}"]
    return []


def _type_form(kind: Any) -> str:
    form = torch_type_of(kind) if isinstance(kind, str) and re.fullmatch(NAME, kind) else "acme"
    return f"a device type as torch reads it, of lower-case letters and _: {form}"


def is_newer_minor(tag: Any) -> bool:
    """Whether a manifest's "schema" is a later minor of ours: read, with its new keys ignored.

    A key we do not know inside `match` stays a fault, because ignoring it would widen the match.
    """
    version = schema_version(tag, SCHEMA_NAME)
    return version is not None and version[0] == SCHEMA_VERSION[0] and version > SCHEMA_VERSION


def readable_api(raw: Any) -> str | None:
    """The `api` range of parsed JSON, whatever else is wrong with it; None if there is none."""
    api = raw.get("api") if isinstance(raw, dict) else None
    return api if isinstance(api, str) and re.fullmatch(_API, api) else None


def api_accepts(api: str, version: tuple[int, int] = API_VERSION) -> bool:
    """Whether an `api` range such as ">=1.0,<2" admits a version."""
    tests: Mapping[str, Callable[[tuple[int, int]], bool]] = {
        ">=": lambda bound: version >= bound,
        "<=": lambda bound: version <= bound,
        "==": lambda bound: version == bound,
        "!=": lambda bound: version != bound,
        ">": lambda bound: version > bound,
        "<": lambda bound: version < bound,
    }
    terms = [re.fullmatch(_TERM, part) for part in api.split(",")]
    return all(t is not None and tests[t[1]]((int(t[2]), int((t[3] or ".0")[1:]))) for t in terms)
