"""An error of one process, told to another: our own stay what they are, others keep their name."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter import errors
from vllm_adapter.discovery.adapter import one_line

_FRAMES: Final = 6
_OWN: Final = f"{Path(__file__).parent}/"
_TEXT: Final = 20_000


@dataclass(frozen=True, slots=True)
class Whence:
    """Where an error was raised there: file and line, and the last frames."""

    place: str
    frames: str


class ProcessEnded(Exception):
    """The process ended, or was ended, before it answered. `how` is what follows "the process".

    `hung`: it was ended, since its time was over; `words`: stacks, or its last lines. `limit` is
    for whoever asked: the seconds that there were in all.
    """

    limit = 0.0

    def __init__(self, how: str, words: str, *, hung: bool = False) -> None:
        super().__init__(f"the process {how}")
        self.how, self.words, self.hung = how, words, hung


class RemoteError(Exception):
    """An error that is not ours. `kinds` are the names of its class and of those it derives from.

    `str()` is its text, `name` its class.
    """

    def __init__(self, kinds: tuple[str, ...], text: str) -> None:
        super().__init__(text)
        self.kinds = kinds

    @property
    def name(self) -> str:
        """The class's own name."""
        return self.kinds[0].rpartition(".")[2] if self.kinds else "Exception"


def told(error: BaseException) -> dict[str, Any]:
    """An error as plain data."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_OWN)] or list(frames)
    place = f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""
    ours = isinstance(error, errors.VllmAdapterError)
    return {
        "kinds": [f"{c.__module__}.{c.__qualname__}" for c in type(error).__mro__],
        "text": str(getattr(error, "message", error) if ours else error)[:_TEXT],
        "hint": str(getattr(error, "hint", ""))[:_TEXT] if ours else "",
        "line": one_line(error),
        "place": place,
        "frames": "".join(traceback.format_list(theirs[-_FRAMES:])).rstrip()[:_TEXT],
    }


def raised(told: Mapping[str, Any]) -> Exception:
    """The error to raise here. What an adapter derives from one of ours is that one."""
    kinds = tuple(map(str, told["kinds"]))
    prefix = f"{errors.__name__}."
    name = next((kind.removeprefix(prefix) for kind in kinds if kind.startswith(prefix)), None)
    found: Any
    kind = getattr(errors, name, None) if name else None
    if isinstance(kind, type) and issubclass(kind, errors.VllmAdapterError):
        found = kind(str(told["text"]), hint=str(told["hint"]))
    else:
        found = RemoteError(kinds, str(told["text"]))
    found.whence = Whence(str(told["place"]), str(told["frames"]))
    error: Exception = found
    return error


def whence(error: BaseException) -> Whence | None:
    """Where an error of another process was raised there; None for one of this process."""
    found = getattr(error, "whence", None)
    return found if isinstance(found, Whence) else None
