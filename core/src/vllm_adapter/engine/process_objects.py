"""What outlives this package's modules, because what torch knows of us does.

torch keeps registrations for the life of a process. A notebook may import this package a second
time in it (after `del sys.modules[...]`, or by `importlib.reload`): new modules, new classes, and
the old ones where somebody still holds a model of theirs. So what torch was given is remembered
with torch, as plain data, and torch is given stand-ins: the newest import's functions run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

Fn = Callable[..., Any]
_PLACE: Final = "_vllm_adapter_kept"
T = TypeVar("T")


def process_object(name: str, make: Callable[[], T]) -> T:
    """The process's own object of that name, made once."""
    held: dict[str, Any] = torch.__dict__.setdefault(_PLACE, {})
    if name not in held:
        held[name] = make()
    found: T = held[name]
    return found


def stand_in(place: tuple[object, ...], run: Fn) -> Fn | None:
    """Puts `run` in a place; gives what to register with torch there, once: then None."""
    places: dict[tuple[object, ...], list[Fn]] = process_object("places", dict)
    if place in places:
        places[place][0] = run
        return None
    now = places[place] = [run]
    return lambda *args, **kwargs: now[0](*args, **kwargs)
