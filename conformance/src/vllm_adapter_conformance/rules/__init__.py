"""The rules. `register_all` imports every module here; each registers its rules in `RULES`."""

from __future__ import annotations

import importlib
import pkgutil


def register_all() -> None:
    """Imports every module of this package, in the order of their names; torch stays out."""
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        if not module.startswith("_"):
            importlib.import_module(f"{__name__}.{module}")
