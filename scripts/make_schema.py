"""Makes the JSON Schemas from the types that declare the file formats.

msgspec gives the rules of the types; their docstrings, and those below the fields, give the
descriptions. Here is what neither says: the published form, and rules across fields.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.manifest import Manifest
from vllm_adapter.contract.reading import CLOSED, OPEN, fields_of, tag
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_conformance.certificate.format import Certificate
from vllm_adapter_schemas import versions

FOLDER: Final = Path(__file__).parent.parent / "schemas/src/vllm_adapter_schemas"
HEADS: Final[Mapping[str, tuple[type, str, str]]] = {
    "manifest": (
        Manifest,
        "Adapter manifest",
        "adapter.json in an adapter's top-level package: who the adapter is and which hardware "
        "it is for. It is read without importing any of the adapter's code.",
    ),
    "capability": (
        Capability,
        "Capability descriptor",
        "What one arch can do, with the source of its figures. Figures are plain numbers with "
        "the unit in the name; unknown is null, never a guess.",
    ),
    "certificate": (
        Certificate,
        "Conformance certificate",
        "The report of one conformance run: what was tested, where, and how it went. The digest "
        "catches an edited file; only a signature or a replay catches a recomputed one.",
    ),
    "facts": (
        HostFacts,
        "Host facts",
        "What `vllm-adapter facts` prints: one machine, collected live or read from a pasted "
        "report. A key that is left out takes its default. Sizes are bytes; what nobody could "
        "read is null or an empty list, and `unknown` says where it would have come from.",
    ),
}
"""Kind: its type, its title, and what such a file is."""


def _when(key: str, value: Any, **then: Any) -> dict[str, Any]:
    """A rule for objects in which one field has a value."""
    return {"if": {"properties": {key: {"const": value}}, "required": [key]}, "then": then}


ACROSS: Final[Mapping[str, Mapping[str, Any]]] = {
    "DeviceSection": {"anyOf": [{"required": ["torch_type"]}, {"required": ["library"]}]},
    "OperatorEntry": {
        "allOf": [
            _when("support", "full", required=["dtypes", "run"]),
            _when("support", "versioned", required=["dtypes", "run", "first_version"]),
        ]
    },
    "RanCase": {
        "allOf": [
            _when("outcome", "waived", properties={"waiver": {"type": "object"}}),
            _when("outcome", "blocked", properties={"blocked_by": {"type": "string"}}),
        ]
    },
    "Certificate": {
        "allOf": [
            _when("emulated", True, properties={"badge": {"type": "null"}}),
            _when("grade", "development", properties={"badge": {"type": "null"}}),
        ]
    },
}
"""Rules across the fields of a type, which its reader checks in code."""


def render(kind: str) -> str:
    """The text of one schema."""
    root, title, text = HEADS[kind]
    (_,), parts = msgspec.json.schema_components(
        [root], schema_hook=lambda _: {}, ref_template="#/$defs/{name}"
    )
    types = {one.__name__: one for one in _types(root)}
    defs = {name: _object(part, types[name], kind) for name, part in parts.items()}
    body = defs.pop(root.__name__)
    form = msgspec.json.schema(Annotated[str, tag(kind)])
    body["properties"].pop("schema", None)
    body["properties"] = {"schema": {"description": TAG} | form} | body["properties"]
    needed = [name for name in body.get("required", ()) if name != "schema"]
    body["required"] = ["schema", *needed]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:vllm-adapter:{kind}:{versions(kind)[-1]}",
        "title": title,
        **body,
        "description": text,
    }
    schema["$defs"] = dict(sorted(defs.items()))
    _inline(schema)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _inline(schema: dict[str, Any]) -> None:
    """Puts what is referred to once in its place: a reader looks in one place less."""
    uses: dict[str, list[dict[str, Any]]] = {}
    for node in _nodes(schema):
        if "$ref" in node:
            uses.setdefault(node["$ref"].rpartition("/")[2], []).append(node)
    for name, (node, *more) in uses.items():
        if not more:
            own = {key: value for key, value in node.items() if key != "$ref"}
            node.clear()
            node |= schema["$defs"].pop(name) | own
    if not schema["$defs"]:
        del schema["$defs"]


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, (dict, list)):
            yield from _nodes(item)


def _types(root: type) -> Iterator[type]:
    """Every type with fields that a file may hold."""
    waiting, seen = [root], set()
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        yield kind
        for hint in (fields_of(kind) or {}).values():
            waiting += [one for one in _leaves(hint) if fields_of(one)]


def _leaves(hint: Any) -> Iterator[Any]:
    args = getattr(hint, "__args__", ())
    yield from (leaf for part in args for leaf in _leaves(part))
    if not args:
        yield hint


def _object(part: dict[str, Any], kind: type, file: str) -> dict[str, Any]:
    """The published form of a type: described fields, and no other keys."""
    texts = _texts(kind)
    properties = {}
    for name in fields_of(kind) or ():
        form = _form(part["properties"][name])
        text = form.pop("description", None) or texts.get(name) or _sentence(name)
        if file == "capability" and _nullable(form) and "ull" not in text:
            text += " Null when unknown."
        properties[name] = {"description": text} | form
    result: dict[str, Any] = {"type": "object", "properties": properties}
    if says := kind.__dict__.get("__doc__"):
        # the first part says what the type is, the next what its reader does
        result = {"description": " ".join(says.split("\n\n")[0].split())} | result
    if required := [name for name in properties if name in part["required"]]:
        result["required"] = required
    if kind in CLOSED:
        result["propertyNames"] = {"enum": list(properties)}
        result |= {"minProperties": CLOSED[kind]} if CLOSED[kind] else {}
    elif kind not in OPEN:
        result["additionalProperties"] = False
    rules = [ACROSS[one.__name__] for one in kind.__mro__ if one.__name__ in ACROSS]
    return result | dict(rules[0] if rules else {})


def _form(field: Any) -> Any:
    """One field as people write schemas: no defaults, and types in the place of alternatives."""
    if isinstance(field, list):
        return [_form(one) for one in field]
    if not isinstance(field, dict):
        return field
    left_out = field.get("x-left-out", False)
    found = {
        key: _form(value)
        for key, value in field.items()
        if key not in ("default", "title", "x-left-out", "anyOf")
    }
    options = [_form(one) for one in field.get("anyOf", ())]
    null = {"type": "null"} in options and not left_out
    options = [one for one in options if one != {"type": "null"}]
    if len(options) == 2 and any(one.get("type") == "array" for one in options):
        lists = next(one for one in options if one.get("type") == "array")
        other = next(one for one in options if one is not lists)
        found |= {"if": {"type": "array"}, "then": lists, "else": other}
    elif len(options) == 1:
        found = options[0] | found
        if null and "enum" in found:
            found["enum"] = [*found["enum"], None]
        elif null and "$ref" in found:
            found["anyOf"] = [{"$ref": found.pop("$ref")}, {"type": "null"}]
        elif null:
            found["type"] = [found["type"], "null"]
    elif options:
        raise ValueError(f"no published form of {field}")
    return found


def _nullable(form: Mapping[str, Any]) -> bool:
    return "null" in form.get("type", ()) or None in form.get("enum", ())


def _texts(kind: type) -> dict[str, str]:
    """The strings below the fields of a class and of those that it is made of."""
    found: dict[str, str] = {}
    names = (getattr(kind, f"__struct_{what}__", ()) for what in ("fields", "encode_fields"))
    spelt = dict(zip(*names, strict=True))
    for one in reversed(kind.__mro__):
        try:
            (node,) = ast.parse(inspect.getsource(one)).body
        except (OSError, TypeError):  # made by a function, not written
            continue
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                key = spelt.get(field.target.id, field.target.id)
                found[key] = " ".join(ast.literal_eval(text.value).split())
    return found


TAG: Final = (
    "Kind and version of this file. A reader refuses another major version, and ignores the "
    "unknown keys of a newer minor one."
)


def _sentence(name: str) -> str:
    """What a name says that has its unit in it."""
    return name.replace("_", " ").capitalize() + "."


def main() -> int:
    """Writes the files, or with --check says whether they are up to date."""
    made = {FOLDER / f"{kind}-{versions(kind)[-1]}.json": render(kind) for kind in HEADS}
    stale = [
        path
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if "--check" in sys.argv:
            print(f"{path.name} is out of date; run `make docs`")
        else:
            path.write_text(made[path], encoding="utf-8")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
