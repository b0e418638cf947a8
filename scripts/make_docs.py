"""Writes the pages that are made from code: codes, settings, file formats, operators, rules.

`python scripts/make_docs.py --check` writes nothing and exits 1 if a page is out of date.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from device_page import devices

from vllm_adapter.contract.codes import CODES
from vllm_adapter.contract.hooks import NOT_CALLED
from vllm_adapter.contract.hookspecs import HOOKS, AdapterSpec
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.settings import VARIABLES
from vllm_adapter_doctor.live.reader_lines import DEVICE, FAULT, VERSION
from vllm_adapter_schemas import KINDS, load

DOCS = Path(__file__).parent.parent / "docs"


def codes() -> str:
    lines = ["# Codes", "", "`vllm-adapter explain CODE` prints one of these, offline.", ""]
    for code in CODES.values():
        lines += [f"## {code.code}: {code.title}", "", code.meaning, ""]
        lines += [f"What to do: {code.action}", ""]
    return "\n".join(lines)


def troubleshooting() -> str:
    lines = [
        "# Troubleshooting",
        "",
        "Made from the register of codes. `vllm-adapter doctor` finds these on the box itself or",
        "in a pasted report; `vllm-adapter explain CODE` prints the whole page.",
        "",
    ]
    lines += ["| what you see | cause | what to do | code |", "|---|---|---|---|"]
    for code in CODES.values():
        if code.symptom:
            cells = (code.symptom, f"{code.title}. {code.meaning}", code.action)
            lines.append(f"| {' | '.join(map(_cell, cells))} | {code.code} |")
    return "\n".join([*lines, ""])


def settings() -> str:
    lines = [
        "# Settings",
        "",
        "Environment variables, read once. A value that cannot be read is an error.",
        "",
    ]
    lines += ["| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(text)} |" for name, text in VARIABLES.items()]
    return "\n".join([*lines, ""])


def operators() -> str:
    lines = [
        "# Operators",
        "",
        "A descriptor's `limits` name these facts. A feature that an entry does not name is",
        "declared off; a size that it does not name may have any value.",
        "",
        "Arguments may lie in any way: with any strides, from any element on, beside memory that",
        "is not theirs, and two that are read may be one tensor. A result has memory of its own,",
        "shares none with an argument, and is contiguous: compiled code reads it as the",
        "operator's fake describes it.",
        "",
    ]
    for op in OPERATORS.values():
        lines += [f"## {op.name}", "", f"{op.summary}.", ""]
        if op.composed_of:
            lines += [f"Served by the vendor's `{op.composed_of}` where it is not declared.", ""]
        lines += ["| fact | what | kind | tried by conformance |", "|---|---|---|---|"]
        for name, fact in op.facts.items():
            kind = "step" if fact.step else "size" if fact.off is None else f"off: {fact.off}"
            tried = ", ".join(map(str, fact.samples))
            lines.append(f"| `{name}` | {_cell(fact.summary)} | {kind} | {tried} |")
        lines.append("")
    return "\n".join(lines)


def formats() -> str:
    lines = ["# File formats", "", "Made from the JSON Schemas, which `validate` checks.", ""]
    for kind in KINDS:
        schema = load(kind)
        lines += [f"## {schema['title']}", "", schema["description"], ""]
        lines += ["| field | what |", "|---|---|"]
        for pointer, text in _fields(schema, schema, "", 0):
            lines.append(f"| `{pointer}` | {_cell(text)} |")
        lines.append("")
    return "\n".join([*lines, *_reader_lines()])


_READER = """\
## Lines of a health reader

How devices are at this moment, their library knows best, and the vendor's own Python binding asks
it. An adapter of anybody's may bring a module that does: an entry point of group
`vllm_adapter.health`, whose name is the adapter's and whose value a module of its package.
`doctor`, `facts` and `serve` run it as `python -m MODULE` in a child process, end it after five
seconds, and ask the vendor's tool where there is no such module or it says nothing. A reader
counts only in the distribution that brings the adapter of that name; the names of this project's
adapters are reserved to them. It imports neither torch nor core; rule
[L0.package.health](rules.md#l0packagehealth) runs it. `vllm_adapter_cuda.health` is an example.

It prints JSON objects, one a line; other lines are passed over. Of an object with `index`, which
is a device, all other fields may be left out: what is not known is. One that breaks the table
makes the whole reading void.
"""


def _reader_lines() -> Iterator[str]:
    yield _READER
    for fields in (DEVICE, VERSION, FAULT):
        yield from ("| field | holds | what |", "|---|---|---|")
        for name, field in fields.items():
            yield f"| `{name}` | {_cell(field.kind)} | {_cell(field.meaning)} |"
        yield ""


def _fields(
    root: Mapping[str, Any], schema: Mapping[str, Any], at: str, depth: int
) -> Iterator[tuple[str, str]]:
    for name, field in schema.get("properties", {}).items():
        found = _resolved(root, field)
        text = field.get("description") or found.get("description", "")
        yield f"{at}/{name}", text
        if depth < 1:
            yield from _fields(root, found, f"{at}/{name}", depth + 1)


def _resolved(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    target = schema.get("$ref")
    if target is None:
        return schema
    found: Any = root
    for part in target.removeprefix("#/").split("/"):
        found = found[part]
    return _resolved(root, found)


HOOKS_HEAD = """\
# Hooks

Most adapters are a manifest, descriptors and kernels, and have no hook. A plug-in class answers
what files cannot: the manifest names it (`"plugin": "vllm_adapter_acme.plugin:AcmePlugin"`), it is
imported in a child process first, and no hook runs per token. Importing it must not import torch
or a vendor's SDK: do that inside the hooks.

```python
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_adapter import AdapterSpec, HostFacts, hookimpl


class AcmePlugin(AdapterSpec):
    @hookimpl
    def describe(self, device: str, host: HostFacts) -> Mapping[str, Any]:
        return {"memory": {"capacity_bytes": 64 << 30}}
```

All hooks are optional. Deriving from `AdapterSpec` is, too: mypy then holds the types of arguments
and results to those below, and `typing.override` the names. A class that does not derive may take
fewer arguments than a hook has, which is how hooks grow. A name or an argument that no hook has is
refused when the plug-in is registered: `list --probe` shows it.
"""


def hooks() -> str:
    lines = [HOOKS_HEAD]
    for name in HOOKS:
        function = getattr(AdapterSpec, name)
        said = inspect.signature(function)
        known = [one for one in said.parameters.values() if one.name != "self"]
        arguments = [f"{one.name}: {one.annotation}" for one in known]
        returns = said.return_annotation
        waits = f" It waits for {NOT_CALLED[name]}." if name in NOT_CALLED else ""
        lines += [f"## {name}", "", f"`{name}({', '.join(arguments)}) -> {returns}`", ""]
        lines += [f"{inspect.getdoc(function)}{waits}", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES = {
    "codes.md": codes,
    "troubleshooting.md": troubleshooting,
    "settings.md": settings,
    "operators.md": operators,
    "formats.md": formats,
    "hooks.md": hooks,
    "devices.md": devices,
}


def main() -> int:
    """Writes or checks every page."""
    stale = []
    for name, render in PAGES.items():
        path, text = DOCS / name, render()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
