"""A command's line in the overview, read from its module's source: nothing of it is imported.

A package of anybody's may bring a command, and what its import does (end the process, print,
wait) must not be what `--help` shows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from vllm_adapter.cli.output import clean
from vllm_adapter.contract.dotted import find_module
from vllm_adapter.discovery.distributions import EntryPoint
from vllm_adapter.files import PACKAGE_BYTES, read_bounded

MAX_LINE: Final = 120
_ASSIGNED: Final = re.compile(r"HELP *(:[^=\n]{0,60})?=(?!=)")
_LINES: Final = 12
"""Source lines that the text of one line may take."""
_COLUMNS: Final = 10_000


def help_line(point: EntryPoint) -> str:
    """The HELP of the command's module, or in brackets why there is none."""
    try:
        spec = find_module(point.value)
    except Exception as error:  # a finder of some editable install may raise anything
        return _fault(f"finding {point.value} failed: {error}")
    if spec is None:
        return _fault(f"there is no module {point.value}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return _fault("its help is not in Python source")
    try:
        source = read_bounded(Path(spec.origin), PACKAGE_BYTES)
    except OSError as error:
        return _fault(f"{spec.origin} cannot be read: {error.strerror}")
    text = _help(source.decode("utf-8", "replace").splitlines())
    return _fault("it says no HELP as a plain text") if text is None else _short(text)


def _help(lines: list[str]) -> str | None:
    """What the last HELP at the start of a line is given, if that is a text."""
    for at in reversed([i for i, line in enumerate(lines) if _ASSIGNED.match(line)]):
        value = _value(lines[at : at + _LINES])
        if value is not None:
            return value
    return None


def _value(lines: Iterable[str]) -> str | None:
    so_far = ""
    for line in lines:
        so_far += f"{line[:_COLUMNS]}\n"
        try:
            statement = ast.parse(so_far).body[0]
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # not yet at its end
            continue
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        text = value.value if isinstance(value, ast.Constant) else None
        return text if isinstance(text, str) else None
    return None


def _fault(why: str) -> str:
    return f"({_short(why)})"


def _short(text: str) -> str:
    line = " ".join(clean(text).split())
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}..."
