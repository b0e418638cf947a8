"""What must stay as it was when a model was adapted, checked at each step: microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

CONFIGURED: Final = ("is_causal", "sliding_window", "layer_types")
"""What transformers' masks read from the configuration while running."""
_GLOBAL: Final = {
    name: value
    for name, value in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and name.endswith("_hooks") and isinstance(value, dict)
}


@dataclass(eq=False)
class BindingSnapshot:
    """Names and what they were bound to."""

    _noted: dict[str, tuple[Mapping[str, Any], str, Any, str]] = field(default_factory=dict)

    def note(self, space: Mapping[str, Any], name: str, value: Any, shown: str) -> None:
        """`space[name]` (or its absence, None) must stay `value`."""
        # A class's namespace is a fresh proxy at each look: `shown` tells them apart.
        self._noted[shown] = (space, name, value, shown)

    def changed(self) -> str | None:
        """The first name that is bound to something else now, or None."""
        for space, name, value, shown in self._noted.values():
            if space.get(name) is not value:
                return shown
        return None


def global_hooks() -> str | None:
    """The kind of torch's hooks for all modules that somebody registered, or None."""
    for name, registered in _GLOBAL.items():
        if registered:
            return name.removeprefix("_global_").replace("_", " ")
    return None


def configured(config: Any) -> tuple[Any, ...]:
    """The values of `CONFIGURED`."""
    return tuple(getattr(config, name, None) for name in CONFIGURED)
