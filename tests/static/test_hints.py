"""A hint is a next step as it can be typed: no word of it is left to be filled in."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    p for part in ("core", "conformance") for p in (ROOT / part / "src").rglob("*.py")
)
KEYWORDS = {"hint", "next_step"}
CHOSEN = {"FILE"}
"""What only the reader can choose, outside of a command in backticks."""


def text_of(node):
    """The literal parts of a text, `{}` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            "{}" if isinstance(v, ast.FormattedValue) else text_of(v) for v in node.values
        )
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body)} {text_of(node.orelse)}"
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ""


def hints_and_metavars():
    hints, metavars = [], {"NAME", "ADAPTER", "COMMAND"}
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_bytes())):
            if not isinstance(node, ast.keyword):
                continue
            if node.arg in KEYWORDS:
                hints.append(
                    (f"{file.relative_to(ROOT)}:{node.value.lineno}", text_of(node.value))
                )
            elif node.arg == "metavar" and isinstance(node.value, ast.Constant):
                metavars.add(node.value.value)
    return hints, {word for word in metavars if re.fullmatch("[A-Z_]{2,}", word)}


def unfilled(hint, metavars):
    """The placeholders that a hint holds; the chosen ones only inside of a command."""
    inside = " ".join(re.findall("`([^`]*)`", hint))
    word = r"(?<![\w{{.])({})(?![\w.])"
    found = re.findall(word.format("|".join(metavars - CHOSEN)), hint)
    return found + re.findall(word.format("|".join(CHOSEN)), inside)


def test_no_hint_holds_a_placeholder():
    hints, metavars = hints_and_metavars()
    assert len(hints) > 200 and {"NAME", "VENDOR", "OP"} <= metavars
    assert {where: bad for where, hint in hints if (bad := unfilled(hint, metavars))} == {}


@pytest.mark.parametrize(
    ("hint", "bad"),
    [
        ("run `python -m x NAME` to see", ["NAME"]),
        ("give another place with --output FILE", []),
        ("run `vllm-adapter validate FILE`", ["FILE"]),
        ("run `python -m x {}`", []),
        ("name one with VA_CAPABILITY=FILE", []),
    ],
)
def test_what_a_placeholder_is(hint, bad):
    assert unfilled(hint, {"NAME", "FILE"}) == bad
