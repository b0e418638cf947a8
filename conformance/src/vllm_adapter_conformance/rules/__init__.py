"""The rules. `register_all` imports every module here; each registers its rules in `RULES`.

A module whose name begins with `_` holds what several rules are written with.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from vllm_adapter_conformance.base.rule import RULES, Rule


def register_all() -> None:
    """Imports every module of this package, in the order of their names; torch stays out."""
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        if not module.startswith("_"):
            importlib.import_module(f"{__name__}.{module}")


def registered() -> Mapping[str, Rule]:
    """Every rule of the suite by its id."""
    register_all()
    return RULES
