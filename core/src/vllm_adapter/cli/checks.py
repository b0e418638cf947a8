"""Every fault of a file of ours, by its JSON Schema and the rules that a schema cannot say."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter.contract import capability
from vllm_adapter.contract.manifest import check_torch_names
from vllm_adapter.contract.reading import escaped
from vllm_adapter.errors import InputError
from vllm_adapter.files import PACKAGE_BYTES, read_json, schema_version, shown

KINDS: Final = ("manifest", "capability", "certificate")
_TYPE_WORDS: Final = {"object": "an object", "array": "a list", "string": "text", "null": "null"}


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """One broken rule: where, what was seen, what was expected, what the field means."""

    pointer: str
    got: str
    expected: str
    description: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: got {self.got}, expected {self.expected}"


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A file, its kind, its faults, and what is ignored because the file is of a newer minor.

    `notes` are no faults: what its author may want to know.
    """

    path: str
    kind: str
    faults: tuple[SchemaFault, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


def check_file(path: Path) -> FileCheck:
    """Checks a manifest, descriptor or certificate.

    Raises:
        InputError: the file cannot be read, or its "schema" names no kind of ours.
    """
    return check_document(read_document(path), str(path))


def read_document(path: Path) -> Any:
    """The parsed JSON of a file of ours; one of a package only if discovery would read it.

    Raises:
        InputError: it cannot be read, or is larger than discovery takes.
    """
    raw = read_json(path, "the file")
    tag = raw.get("schema") if isinstance(raw, dict) else None
    if any(schema_version(tag, f"vllm-adapter/{kind}") for kind in ("manifest", "capability")):
        return read_json(path, "the file", limit=PACKAGE_BYTES)
    return raw


def check_document(raw: Any, origin: str) -> FileCheck:
    """Checks parsed JSON; `origin` names it in messages. Raises as `check_file`."""
    kind, newer = _kind(raw, origin)
    faults, ignored = schema_faults(kind, raw, newer=newer)
    if kind == "manifest" and not faults:
        faults = [_in_words(fault) for fault in check_torch_names(raw)]
    if kind == "capability" and not faults:
        faults = [*_lost_sources(raw, origin), *_twins(raw)]
    return FileCheck(origin, kind, tuple(faults), tuple(ignored))


def schema_faults(
    kind: str, raw: Any, *, newer: bool = False
) -> tuple[list[SchemaFault], list[str]]:
    """Faults by the schema alone, and the pointers of unknown keys that `newer` ignores."""
    from jsonschema import Draft202012Validator

    import vllm_adapter_schemas

    schema = vllm_adapter_schemas.load(kind)
    faults: list[SchemaFault] = []
    ignored: list[str] = []
    for error in Draft202012Validator(schema).iter_errors(raw):
        pointer = "".join(f"/{escaped(str(part))}" for part in error.absolute_path)
        path = list(error.absolute_schema_path)
        if error.validator == "additionalProperties" and error.validator_value is False:
            known = error.schema["properties"]
            for key in error.instance.keys() - known.keys():
                at = f"{pointer}/{escaped(key)}"
                if newer:
                    ignored.append(at)
                    continue
                near = difflib.get_close_matches(key, known, n=1)
                wanted = f"the key {near[0]}" if near else f"one of the keys: {', '.join(known)}"
                meaning = _description(schema, [*path[:-1], "properties", *near])
                faults.append(SchemaFault(at, f"the unknown key {shown(key)}", wanted, meaning))
        elif error.validator == "required":
            base = path[: path.index("allOf")] if "allOf" in path else path[:-1]
            for key in error.validator_value:
                # jsonschema reports each missing key by itself, and names it only in its message
                if key not in error.instance and error.message.startswith(repr(key)):
                    meaning = _description(schema, [*base, "properties", key])
                    faults.append(
                        SchemaFault(f"{pointer}/{key}", "nothing", f"the key {key}", meaning)
                    )
        else:
            got = shown(error.instance)
            if "propertyNames" in path:
                pointer, got = f"{pointer}/{escaped(error.instance)}", f"the key {got}"
            faults.append(SchemaFault(pointer, got, _expected(error), _description(schema, path)))
    return sorted(faults, key=lambda fault: fault.pointer), sorted(ignored)


def _kind(raw: Any, origin: str) -> tuple[str, bool]:
    import vllm_adapter_schemas

    tag = raw.get("schema") if isinstance(raw, dict) else None
    for kind in KINDS:
        version = schema_version(tag, f"vllm-adapter/{kind}")
        if version is None:
            continue
        if version[0] != 1:
            raise InputError(
                f"{origin} has {tag}; this release reads vllm-adapter/{kind}/1.0",
                hint="upgrade vllm-adapter, or take the adapter's release for this one",
            )
        newest = vllm_adapter_schemas.versions(kind)[-1]
        return kind, version > tuple(map(int, newest.split(".")))
    if isinstance(raw, dict) and "device_type" in raw:
        hint = f"it looks like the older format: vllm-adapter validate --convert {origin}"
    else:
        hint = 'its "schema" must be one of: ' + ", ".join(f"vllm-adapter/{k}/1.0" for k in KINDS)
    seen = f'its "schema" is {shown(tag)}' if tag is not None else 'it has no "schema"'
    raise InputError(f"{origin} is no file of vllm-adapter: {seen}", hint=hint)


def _expected(error: Any) -> str:
    """What a schema's keyword asks for, in words."""
    rule = error.validator_value
    if error.validator == "type":
        names = rule if isinstance(rule, list) else [rule]
        words = [_TYPE_WORDS.get(name, f"a {name}".replace("a i", "an i")) for name in names]
        return " or ".join(words)
    if error.validator in ("enum", "const"):
        values = rule if isinstance(rule, list) else [rule]
        return "one of: " + ", ".join(json.dumps(v) if v is None else str(v) for v in values)
    if error.validator == "pattern":
        examples = error.schema.get("examples")
        form = rule.replace("(?!\\n)", "")
        text = "text that is not blank" if form == "\\S" else f"text of the form {form}"
        return f"{text}, such as {examples[0]}" if examples else text
    if error.validator == "oneOf" and all("required" in branch for branch in rule):
        keys = " and ".join(branch["required"][0] for branch in rule)
        return f"exactly one of the keys {keys}"
    if error.validator == "not":
        words = rule.get("enum")
        return f"none of: {', '.join(words)}" if words else f"text unlike {rule.get('pattern')}"
    bounds = {
        "minimum": "a number of at least {}",
        "exclusiveMinimum": "a number above {}",
        "maximum": "a number of at most {}",
        "minItems": "a list of at least {}",
        "maxItems": "a list of at most {}",
        "minLength": "text of at least {} character",
        "maxLength": "text of at most {} characters",
        "minProperties": "an object with at least {} key",
    }
    if error.validator in bounds:
        return bounds[error.validator].format(rule)
    if error.validator == "uniqueItems":
        return "a list without repetition"
    return str(error.message)


def _description(schema: Mapping[str, Any], path: Iterable[Any]) -> str:
    """The nearest description on the way to the keyword that failed.

    jsonschema's paths leave out the `$ref`s that they go through, so each step may start at a
    node or at any target of its references.
    """
    nodes: list[Any] = [schema]
    found = str(schema.get("description", ""))
    for part in path:
        nodes = [
            node[part]
            for node in nodes
            if (isinstance(node, dict) and part in node) or isinstance(node, list)
        ]
        for node in nodes:
            if isinstance(node, dict) and "$ref" in node:
                nodes.append(schema["$defs"][node["$ref"].rpartition("/")[2]])
        texts = [node.get("description") for node in nodes if isinstance(node, dict)]
        found = next((text for text in texts if isinstance(text, str)), found)
    return found


def _in_words(fault: str) -> SchemaFault:
    pointer, _, seen = fault.partition(" ")
    return SchemaFault(
        pointer,
        f"what {seen}",
        "a name that torch has no use for",
        "Core registers a C library's device in torch under a name of lower-case letters and _.",
    )


def _lost_sources(raw: Mapping[str, Any], origin: str) -> Iterator[SchemaFault]:
    """`sources` must name what is in the file: a misspelt pointer would have no effect."""
    parsed = capability.parse_capability(dict(raw), origin)
    for pointer in raw.get("sources", {}):
        try:
            parsed.source(pointer)
        except InputError:
            yield SchemaFault(
                f"/sources/{escaped(pointer)}",
                f"the pointer {shown(pointer)}",
                "the pointer of a field of this file",
                "Sources of single figures by their JSON pointer.",
            )


def _twins(raw: Mapping[str, Any]) -> Iterator[SchemaFault]:
    """Kernels of one operator are overloads, distinguished by `variant`."""
    for name, entries in raw.get("operators", {}).items():
        seen: dict[Any, str] = {}
        for i, entry in enumerate(entries if isinstance(entries, list) else []):
            if entry["support"] not in ("full", "versioned"):
                continue
            variant = entry.get("variant")
            if seen.setdefault(variant, entry["run"]) != entry["run"]:
                yield SchemaFault(
                    f"/operators/{name}/{i}/variant",
                    "nothing" if variant is None else shown(variant),
                    "a variant of its own, because its `run` differs from an earlier entry's",
                    "Suffix of the overload's name, where one operator has several kernels.",
                )
