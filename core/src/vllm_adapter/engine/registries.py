"""What a process keeps in registries of its own, and the one point where they begin anew.

Who serves a device, what is bound, what was said once: each registry names its way back here,
beside where it is made. What torch was given for the life of the process is none of them
(`kept.py`): overloads, the functions of a C library, and the numbers of handles stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vllm_adapter.broker import plugin
from vllm_adapter.hostfacts import vendor_files

_FORGET: Final[list[Callable[[], None]]] = [plugin.forget, vendor_files.forget]


def on_reset(forget: Callable[[], None]) -> Callable[[], None]:
    """Has `reset` call a function that empties a registry."""
    _FORGET.append(forget)
    return forget


def reset() -> None:
    """Empties every registry, as in a process that has opened no device. For tests."""
    for forget in _FORGET:
        forget()
