"""Writes what of the schemas is made from code: operators in the descriptor's, all of facts'."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import facts_schema

from vllm_adapter.contract.operators import OPERATORS, Fact, Operator

FILE = Path(__file__).parent.parent / "schemas/src/vllm_adapter_schemas/capability-1.0.json"
KINDS = {bool: "boolean", int: "integer", float: "number", str: "text"}


def limits(operator: Operator) -> dict[str, Any]:
    """What an entry's `limits` may say of the operator's facts."""
    return {
        "$ref": "#/$defs/entry",
        "properties": {
            "limits": {
                "type": "object",
                "propertyNames": {"enum": list(operator.facts)},
                "properties": {name: fact_rule(fact) for name, fact in operator.facts.items()},
            }
        },
    }


def fact_rule(fact: Fact) -> dict[str, str]:
    """The rule of one fact, by the type of its samples."""
    kind = "phase" if fact.step else KINDS[type(fact.samples[0])]
    return {"description": _sentence(fact.summary) + ".", "$ref": f"#/$defs/fact_{kind}"}


def entries(operator: Operator) -> dict[str, Any]:
    """One entry of an operator, or a list of them."""
    ref = {"$ref": f"#/$defs/{operator.name}"}
    return {
        "description": _sentence(operator.summary)
        + ": an entry, or a list of entries, tried in order.",
        "if": {"type": "array"},
        "then": {"minItems": 1, "items": ref},
        "else": ref,
    }


def render(schema: dict[str, Any]) -> str:
    """The schema with the operators there are now."""
    table = schema["properties"]["operators"]["properties"]
    for name in [name for name in table if name != "source"]:
        del table[name], schema["$defs"][name]
    source = table.pop("source")
    table |= {op.name: entries(op) for op in OPERATORS.values()} | {"source": source}
    schema["$defs"] |= {op.name: limits(op) for op in OPERATORS.values()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def main() -> int:
    """Writes the files, or with --check says whether they are up to date."""
    made = {
        FILE: render(json.loads(FILE.read_text(encoding="utf-8"))),
        facts_schema.FILE: facts_schema.render(),
    }
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
