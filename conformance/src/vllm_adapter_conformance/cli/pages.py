"""The rules' pages: what `vllm-adapter explain RULE` prints, and `docs/rules.md`.

`python -m vllm_adapter_conformance.cli.pages` prints the document; a test compares the two.
"""

from __future__ import annotations

import textwrap
from typing import Final

from vllm_adapter_conformance.base.rule import LEVELS, Rule
from vllm_adapter_conformance.plan.suite import in_order
from vllm_adapter_conformance.rules import registered

TITLES: Final = {
    "L0": "the package, without torch and without a device",
    "L1": "the runtime: device, memory, copies",
    "L2": "the operators",
    "L3": "whole models of transformers",
    "L4": "real vLLM on the adapter, against plain vLLM",
    "L5": "speed as a share of the device's own roofline, and a long load",
}
_INTRODUCTION: Final = """\
# Conformance rules

Made from the rules themselves by `python -m vllm_adapter_conformance.cli.pages`; do not edit.
`vllm-adapter explain RULE` prints one of these pages offline. A level needs every rule of it, and
of the levels below, to pass in every case that the descriptor declares; a rule that needs another
is not run where that one failed.
"""


def page(key: str) -> str | None:
    """The page of a rule as plain text; None if there is no such rule."""
    rule = registered().get(key)
    if rule is None:
        return None
    parts = [f"{rule.id}: {rule.summary}.", rule.why, _facts(rule)]
    return "\n\n".join(textwrap.fill(part, 90) for part in parts) + "\n"


def keys() -> list[str]:
    """Every rule that has a page, in order."""
    return sorted(registered())


def render() -> str:
    """`docs/rules.md`."""
    rules = in_order(registered().values())
    lines = [_INTRODUCTION]
    for level in LEVELS:
        lines.append(f"## {level}: {TITLES[level]}\n")
        for rule in sorted((r for r in rules if r.level == level), key=lambda rule: rule.id):
            why = textwrap.fill(rule.why, 110, break_on_hyphens=False)
            lines += [f"### {rule.id}\n", f"**{rule.summary}**\n", f"{why}\n", f"{_facts(rule)}\n"]
    return "\n".join(lines).rstrip() + "\n"


def _facts(rule: Rule) -> str:
    needs = ", ".join(f"`{need}`" for need in rule.needs) or "no other rule"
    preview = ""
    if rule.preview:
        preview = f" It is a preview since {rule.since}: reported, and"
        preview += " not counted. In the next minor release it counts, or is taken out."
    return f"Needs {needs}. A case may take {rule.seconds:g} s.{preview}"


if __name__ == "__main__":
    print(render(), end="")
