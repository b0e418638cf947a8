"""vLLM's tables of out-of-tree classes: `cls.__name__` -> the class that is made in its place."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any, Final

_log = logging.getLogger("vllm_adapter.integrations")
PREFIX: Final = "Portable"


def replace(registry: ModuleType, kind: str, base: type, ours: type) -> None:
    """Has vLLM make `ours`, a subclass of `base`, where it makes `base`; once.

    `registry` is the module of the table, `kind` the class there that registers (CustomOp or
    PluggableLayer). A class that somebody else replaced already stays theirs.
    """
    known = registry.op_registry_oot.get(base.__name__)
    if known is not None:
        if not known.__name__.startswith(PREFIX):
            _log.warning("vLLM keeps %s, which replaces %s", known.__qualname__, base.__name__)
        return
    named: Any = vars(base).get("name") or getattr(base, "name", None)
    getattr(registry, kind).register_oot(name=base.__name__)(ours)
    # upstream: vllm@0.32 custom_op.py:352 overwrites it, and +silu_and_mul would no longer match
    if named is not None:
        ours.name = named  # type: ignore[attr-defined] # vLLM's, which is not typed


def subclass(base: type, members: dict[str, Any]) -> Any:
    """A subclass of one of vLLM's classes, named after it."""
    return type(f"{PREFIX}{base.__name__}", (base,), {"__module__": __name__, **members})
