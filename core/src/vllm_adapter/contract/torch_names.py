"""Names that torch keeps: its own device types, and what it has under a name already.

For those who check a name without torch; a test holds the lists against the installed torch. A
device from Python gets torch.NAME, Tensor.NAME, Tensor.is_NAME, Module.NAME and the like
(torch/utils/backend_registration.py), and torch refuses a name that is there already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_TEXT: Final = Path(__file__).with_name("torch_names.txt").read_text("utf-8")
_PARTS: Final = [part.partition("\n")[2].split() for part in _TEXT.split("# ")[1:]]

TORCH: Final = _PARTS[0][0]
"""The release that these lists are from."""
DEVICE_TYPES: Final = tuple(_PARTS[1])
"""The device types that torch's own parser of device names knows, in its order."""
TAKEN: Final = frozenset(_PARTS[2])
"""What a device of any other name could collide with, of those that could name a device."""
