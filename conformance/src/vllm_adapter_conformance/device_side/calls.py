"""What calls of operators have in common, wherever they are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WEIGHTS: Final[Mapping[str, int]] = {"linear": 1}
"""Which argument of an operator `prepare_weights` may change."""
