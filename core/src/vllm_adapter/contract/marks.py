"""The descriptor entries that `@implementation` left on functions, for who resolves a case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from vllm_adapter.contract.decision import OperatorEntry
from vllm_adapter.errors import AdapterError

ATTRIBUTE: Final = "__vllm_adapter_entry__"


def entry_of(function: Callable[..., Any]) -> tuple[str, OperatorEntry] | None:
    """The operator and entry that `@implementation` left on a function, if any."""
    found: tuple[str, OperatorEntry] | None = getattr(function, ATTRIBUTE, None)
    return found


def entries_of(
    adapter: str, functions: Iterable[Callable[..., Any]]
) -> list[tuple[str, OperatorEntry]]:
    """The operators and entries of what an adapter's `implementations` hook gives.

    Raises:
        AdapterError: one of them is not marked.
    """
    found = []
    for function in functions:
        mark = entry_of(function)
        if mark is None:
            raise AdapterError(
                f"{adapter} gives {function!r}, which is not marked by @implementation",
                hint="decorate it, or name it in the descriptor",
            )
        found.append(mark)
    return found
