"""An adapter's `adapter.json`: read and matched without importing any of its code.

The checks here are plain Python, for `list`, `--help` and the vLLM broker; `vllm-adapter
validate` uses the JSON Schema. A property test shows that both agree.
"""

from __future__ import annotations

import itertools
import keyword
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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
MATCH_KEYS: Final = (
    "pci_vendor",
    "pci_device",
    "pci_class",
    "device_node",
    "machine",
    "os",
    "kernel_module",
    "device_name",
    "arch",
)
LIST_KEYS: Final = frozenset({"pci_device", "pci_class", "machine", "os", "device_name", "arch"})
NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
"""An adapter's name."""
TORCH_TYPE: Final = re.compile(r"[a-z][a-z_]*\Z")
"""A torch device type: in "acme:1" torch reads letters and low lines, and then the index."""
_DIGITS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DOTTED: Final = re.compile(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z", re.ASCII
)
"""`module:function` or `module:Class`."""
_GLOB = re.compile(r"([A-Za-z0-9_][\w.-]*/)*[\w.-]*\*?[\w.-]*\.json\Z", re.ASCII)
_STEM = re.compile(r"[A-Za-z0-9_][\w.-]*\Z", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z", re.ASCII)
_TERM = re.compile(r" *(>=|<=|==|!=|>|<) *([0-9]{1,4})(?:\.([0-9]{1,4}))? *\Z")
_HEX = re.compile(r"[0-9a-f]{4}\Z")
_CLASS = re.compile(r"0x[0-9a-f]{4}(?:[0-9a-f]{2})?\Z")
_NODE = re.compile(r"/dev/(?:[^/.][^/]*/){0,3}[^/.][^/]*\Z")
_FORMS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "pci_vendor": (_HEX, "four lower-case hexadecimal digits"),
    "pci_device": (_HEX, "four lower-case hexadecimal digits"),
    "pci_class": (_CLASS, "0x1200"),
    # A glob of anything else could walk the whole file system of whoever lists adapters.
    "device_node": (_NODE, "a glob in /dev, at most four levels deep, such as /dev/acme*"),
}


@dataclass(frozen=True, slots=True)
class DeviceSection:
    """How the adapter's device is reached.

    `torch_type` is torch's name for it, which torch itself or the import of `torch_module`
    brings. With `library`, a C library relative to the package, core makes a device of that name;
    where the manifest names none it is made of the adapter's, by `torch_type_of`.
    """

    torch_type: str
    torch_module: str | None = None
    library: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One adapter.json. `path` is the file; `device` is None for a kernels-only adapter.

    `tested_on` are the descriptors, by the stems of their files, whose device has run the
    conformance suite: empty if none has, None if the manifest does not say.
    """

    name: str
    vendor: str
    api: str
    path: Path
    device: DeviceSection | None = None
    match: Sequence[Mapping[str, Any]] = ()
    capabilities: str = "capabilities/*.json"
    plugin: str | None = None
    emulated: bool = False
    tested_on: tuple[str, ...] | None = None

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
    faults = check_manifest(raw) or check_torch_names(raw)
    if faults:
        raise ManifestError(
            f"{path}: {faults[0]}",
            hint="run `vllm-adapter validate` on the file to see every fault",
        )
    if is_newer_minor(raw["schema"]):
        warnings.warn(
            f"{path} has schema {raw['schema']}, newer than this release: new fields are ignored",
            NewerFormat,
            stacklevel=2,
        )
    device = raw.get("device")
    return Manifest(
        name=raw["name"],
        vendor=raw["vendor"],
        api=raw["api"],
        path=path,
        device=DeviceSection(
            **{"torch_type": torch_type_of(raw["name"])}
            | {k: device[k] for k in _DEVICE_KEYS if k in device}
        )
        if device
        else None,
        match=raw.get("match", ()),
        capabilities=raw.get("capabilities", "capabilities/*.json"),
        plugin=raw.get("plugin"),
        emulated=raw.get("emulated", False),
        tested_on=tuple(raw["tested_on"]) if "tested_on" in raw else None,
    )


_DEVICE_KEYS: Final = ("torch_type", "torch_module", "library")
_KEYS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "schema": lambda v: _check_schema(v),
    "name": lambda v: check_name(v),
    "vendor": lambda v: _is_text(v),
    "api": lambda v: _check_api(v),
    "device": lambda v: _check_device(v),
    "match": lambda v: check_match(v),
    "capabilities": lambda v: _check_pattern(v, _GLOB, "capabilities/*.json, inside the package"),
    "plugin": lambda v: _check_pattern(v, DOTTED, "module:Class"),
    "emulated": lambda v: None if isinstance(v, bool) else "must be true or false",
    "tested_on": lambda v: _check_tested_on(v),
}
_REQUIRED: Final = ("schema", "name", "vendor", "api")


def check_manifest(raw: Any) -> list[str]:
    """Every rule that parsed JSON breaks, one sentence each; an empty list is a good manifest."""
    if not isinstance(raw, dict):
        return ["the manifest is not a JSON object"]
    faults = [f"/{key} is missing" for key in _REQUIRED if key not in raw]
    newer = is_newer_minor(raw.get("schema"))
    for key, value in raw.items():
        check = _KEYS.get(key)
        if check is not None:
            fault = _check_device(value, newer) if key == "device" else check(value)
            if fault:
                faults.append(f"/{key} {fault}")
        elif not newer:
            faults.append(f"/{shown(key)[1:-1]} is not a key; keys: {', '.join(_KEYS)}")
    return faults


def check_name(name: Any) -> str | None:
    """Why a string cannot name an adapter (it becomes an overload's name), or None."""
    if not isinstance(name, str) or not NAME.match(name):
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
    return None if TORCH_TYPE.match(kind) else _not_a_type(kind)


def check_torch_names(raw: Mapping[str, Any]) -> list[str]:
    """What of a manifest without other faults torch would refuse, as `check_manifest`."""
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


def _not_a_type(kind: Any) -> str:
    form = torch_type_of(kind) if isinstance(kind, str) and NAME.match(kind) else "acme"
    return f"is {shown(kind)}; torch reads a device type as lower-case letters and _: {form}"


def check_match(match: Any) -> str | None:
    """Why a `match` list cannot be read, or None."""
    if not isinstance(match, list):
        return "must be a list of objects"
    for i, entry in enumerate(match):
        if not isinstance(entry, dict) or not entry:
            return f"entry {i} must be an object with at least one key"
        for key, value in entry.items():
            if key not in MATCH_KEYS:
                return f"entry {i} has the unknown key {shown(key)}; keys: {', '.join(MATCH_KEYS)}"
            values = value if key in LIST_KEYS else [value]
            if not isinstance(values, list) or not values:
                return f"entry {i}: {key} must be a list with at least one string"
            if not all(isinstance(v, str) and v for v in values):
                return f"entry {i}: {key} must hold strings that are not empty"
            pattern, form = _FORMS.get(key, (None, ""))
            if pattern and not all(pattern.match(v) for v in values):
                return f"entry {i}: {key} must be written as {form}"
    return None


def is_newer_minor(tag: Any) -> bool:
    """Whether a manifest's "schema" is a later minor of ours: read, with its new keys ignored.

    A key we do not know inside `match` stays a fault, because ignoring it would widen the match.
    """
    version = schema_version(tag, SCHEMA_NAME)
    return version is not None and version[0] == SCHEMA_VERSION[0] and version > SCHEMA_VERSION


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
    terms = [_TERM.match(part) for part in api.split(",")]
    return all(t is not None and tests[t[1]]((int(t[2]), int(t[3] or 0))) for t in terms)


def _check_schema(value: Any) -> str | None:
    version = schema_version(value, SCHEMA_NAME)
    if version is None:
        return f'is {shown(value)}, not "{SCHEMA_NAME}/MAJOR.MINOR"'
    if version[0] != SCHEMA_VERSION[0]:
        return f"is major version {version[0]}; this release reads {SCHEMA_VERSION[0]}"
    return None


def _check_api(value: Any) -> str | None:
    if not isinstance(value, str) or not all(map(_TERM.match, value.split(","))):
        return f'is {shown(value)}; write a range such as ">=1.0,<2"'
    return None


def _check_device(value: Any, newer: bool = False) -> str | None:
    if not isinstance(value, dict):
        return "must be an object"
    for key, item in value.items():
        if key not in _DEVICE_KEYS:
            if newer:
                continue
            return f"has the unknown key {shown(key)}; keys: {', '.join(_DEVICE_KEYS)}"
        if not isinstance(item, str) or not item:
            return f"has {key} that is not a string with text"
    if "torch_type" in value and not TORCH_TYPE.match(value["torch_type"]):
        return f"has a torch_type that {_not_a_type(value['torch_type'])}"
    if "torch_module" in value and not _MODULE.match(value["torch_module"]):
        return f"has torch_module {shown(value['torch_module'])}, which names no Python module"
    if "torch_type" not in value and "library" not in value:
        return "must have torch_type or library"
    if "library" in value and (value["library"][0] == "/" or ".." in value["library"].split("/")):
        return "has a library outside the package; name the file, relative to the package"
    return None


def _check_tested_on(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(v, str) and _STEM.match(v) for v in value):
        return None
    return "must be a list of descriptors, by their files' names without .json"


def _check_pattern(value: Any, pattern: re.Pattern[str], form: str) -> str | None:
    if not isinstance(value, str) or not pattern.match(value):
        return f"is {shown(value)}; write it as {form}"
    return None


def _is_text(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "must be a string with text"
