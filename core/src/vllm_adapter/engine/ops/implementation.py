"""`@implementation`: the in-code form of a descriptor entry, for extra providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from vllm_adapter.contract.entries import parse_entries
from vllm_adapter.contract.marks import ATTRIBUTE
from vllm_adapter.contract.operators import operator
from vllm_adapter.contract.reading import Fault
from vllm_adapter.errors import CapabilityError

F = TypeVar("F", bound=Callable[..., Any])


def implementation(
    *,
    op: str,
    dtypes: Sequence[str],
    limits: Mapping[str, Any] | None = None,
    form: str = "kernel",
    variant: str | None = None,
) -> Callable[[F], F]:
    """Marks a function as an implementation of `op`, with the words of a descriptor entry.

    A plug-in's `implementations()` hook returns the marked functions. Where the descriptor
    names the same function, conformance checks that both declare the same.

    Raises:
        CapabilityError: a word that a descriptor would not allow either.
    """

    def mark(function: F) -> F:
        where = f"{function.__module__}:{function.__qualname__}"
        entry = {
            "support": "full",
            "dtypes": list(dtypes),
            "limits": dict(limits or {}),
            "form": form,
            "run": where,
        } | ({"variant": variant} if variant else {})
        try:
            (checked,) = parse_entries(operator(op).name, entry)
        except Fault as fault:
            raise CapabilityError(
                f"@implementation of {where}: {fault}",
                hint="use the words of a descriptor's operator entry",
            ) from None
        setattr(function, ATTRIBUTE, (op, replace(checked, pointer=f"@{where}")))
        return function

    return mark
