"""Asks a C library before it is loaded here: one that crashes or hangs costs a child process.

First the file's header is read, then a child (`_library_child`) loads it and asks for
its table and devices, within a time limit. `open_library` loads one that passed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from vllm_adapter.c_abi.elf import check_file
from vllm_adapter.c_abi.library import Library, LibraryDevice, reproduce_command
from vllm_adapter.discovery.probe.isolation import describe_exit, kill_group
from vllm_adapter.errors import LibraryError
from vllm_adapter.hostfacts.time_given import FAR, TimeGiven, wait_for

LIMIT_S: Final = 20.0
"""Seconds that a library is given to load and to answer; a driver that wakes up takes several."""
_LINE: Final = 200
_LOADED: Final[dict[Path, Library]] = {}
_LOADING: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """What a C library says of itself. `functions` are those of its table that are not NULL."""

    path: Path
    vendor: str
    version: str
    abi_version: tuple[int, int]
    functions: tuple[str, ...]
    devices: tuple[LibraryDevice, ...]


def open_library(path: Path, *, limit_s: float = LIMIT_S) -> Library:
    """The library of a file, checked and loaded once a process.

    Raises:
        LibraryError: why it is not loaded.
    """
    with _LOADING:
        place = path.resolve()
        if place not in _LOADED:
            check_library(path, limit_s=limit_s)
            _LOADED[place] = Library(path)
        return _LOADED[place]


def check_library(path: Path, *, limit_s: float = LIMIT_S) -> LibraryFacts:
    """What a library says of itself, without loading it into this process.

    Raises:
        LibraryError: no such file, for another machine, not loadable, another ABI, a required
            function missing, a short table, or a crash, a hang or a failure while it was asked.
    """
    check_file(path)
    messages, how, hung = _ask(path, limit_s)
    last = messages[-1] if messages else []
    match last:
        case ["answer", dict(answer)]:
            return _facts(path, answer)
        case ["refused", str(message), str(hint)]:
            raise LibraryError(message, hint=hint)
        case ["step", str(words)]:
            error = LibraryError(
                f"{path}: a child process {how} when the library was {words}; it is not loaded",
                hint=f"run `{reproduce_command(path)}` to see where",
            )
            error.hung = hung
            raise error
    raise LibraryError(
        f"{path}: the child process that should ask it {how} before it began",
        hint=f"run `{reproduce_command(path)}` to see why",
    )


def _facts(path: Path, answer: dict[str, Any]) -> LibraryFacts:
    devices = tuple(
        LibraryDevice(**{**one, "capability": one["capability"] and tuple(one["capability"])})
        for one in answer["devices"]
    )
    return LibraryFacts(
        path=path,
        vendor=answer["vendor"],
        version=answer["version"],
        abi_version=tuple(answer["abi_version"]),
        functions=tuple(answer["functions"]),
        devices=devices,
    )


def _ask(path: Path, limit_s: float) -> tuple[list[Any], str, bool]:
    """The child's messages, how it ended, and whether it had to be ended."""
    hung = False
    # Files in memory, and no pipes: nobody has to read while the child runs, or if it hangs.
    with _memory_file("answers") as answers, _memory_file("said") as said:
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "vllm_adapter.discovery.probe._library_child"),
                    *(str(answers.fileno()), str(path), str(FAR * limit_s)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=(answers.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            raise LibraryError(
                f"{path} cannot be asked: no child process can be started: {error.strerror}",
                hint="check the limits on processes and memory of this account",
            ) from None
        given = TimeGiven(process.pid)
        try:
            how = describe_exit(wait_for(process, limit_s, given))
        except subprocess.TimeoutExpired:
            how, hung = given.no_answer(limit_s), not given.mostly_waited
        finally:
            kill_group(process)
        messages = [json.loads(line) for line in _content(answers).splitlines()]
        return messages, how + _last_output(_content(said)), hung


def _memory_file(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(f"vllm_adapter_{name}"), "w+b")


def _content(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


def _last_output(said: bytes) -> str:
    """What the library printed last before it died, without Python's own report."""
    own = said.decode(errors="replace").partition("Fatal Python error")[0]
    lines = [" ".join(line.split()) for line in own.splitlines() if line.strip()]
    return f" (it printed {lines[-1][:_LINE]!r})" if lines else ""
