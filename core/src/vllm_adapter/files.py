"""Reading JSON that strangers wrote, and writing files whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import reprlib
import stat
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import InputError

MAX_DEPTH: Final = 64
"""Nesting that no file of ours comes near; deeper input would exhaust the stack of its readers."""

PACKAGE_BYTES: Final = 1 << 20
"""Bytes of a file in somebody's package that is read without being asked for."""
JSON_BYTES: Final = 1 << 24
"""Bytes of a JSON file that the caller names."""

MAX_TEXT: Final = 4096
"""Characters of a text of somebody's that we hand on; no path is longer."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: Any) -> str:
    """`repr`, cut short: a message stays one sentence whatever the file holds."""
    return _SHORT.repr(value)


def bounded(value: Any, limit: int = MAX_TEXT) -> Any:
    """A JSON value whose texts have at most `limit` characters; a longer one says how long it was.

    What strangers' files and plug-ins say goes through it before it is printed or kept.
    """
    if isinstance(value, str) and len(value) > limit:
        note = f"... ({len(value):,} characters)"
        return value[: limit - len(note)] + note
    if isinstance(value, dict):
        return {bounded(key, limit): bounded(one, limit) for key, one in value.items()}
    if isinstance(value, list):
        return [bounded(one, limit) for one in value]
    return value


def schema_version(tag: Any, name: str) -> tuple[int, int] | None:
    """(major, minor) of a "schema" value such as "vllm-adapter/manifest/1.0", or None."""
    if not isinstance(tag, str):
        return None
    found = re.fullmatch(rf"{re.escape(name)}/([0-9]{{1,4}})\.([0-9]{{1,4}})", tag)
    return (int(found[1]), int(found[2])) if found else None


def read_bounded(path: Path, limit: int, *, cut: bool = False) -> bytes:
    """The content of a regular file of at most `limit` bytes; with `cut`, its beginning.

    Never waits and never takes more memory, whatever the path leads to: a pipe, a device, a file
    without end.

    Raises:
        OSError: it cannot be read; `strerror` says why.
    """
    try:
        # By its kind first: opening a pipe would wait, and opening a device may change it.
        _refuse_irregular(os.stat(path).st_mode)
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        )
    except ValueError:
        raise OSError(errno.EINVAL, "its path holds a null character") from None
    try:
        state = os.fstat(handle)
        _refuse_irregular(state.st_mode)
        size, chunks, remaining = state.st_size, [], limit + 1
        while size <= limit and remaining > 0 and (chunk := os.read(handle, remaining)):
            chunks.append(chunk)
            remaining -= len(chunk)
        if cut and size > limit:
            chunks = [os.read(handle, limit)]
    finally:
        os.close(handle)
    content = b"".join(chunks)
    if not cut and max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes")
    return content[:limit]


def _refuse_irregular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def read_json(
    path: Path, what: str, error: type[InputError] = InputError, *, limit: int = JSON_BYTES
) -> Any:
    """The parsed JSON of a file; `what` names the file in the message, such as "the manifest".

    Refuses what JSON does not have (NaN, numbers beyond a float) and repeated keys, of which
    all but the last would be lost.

    Raises:
        error: missing, a folder, a pipe, larger than `limit` bytes, unreadable, not UTF-8, not
            JSON, or nested too deeply.
    """
    hint = f"give the path of {what}, a JSON file"
    try:
        text = read_bounded(path, limit).decode("utf-8-sig")
    except OSError as problem:
        raise error(
            f"cannot read {what} {path}: {problem.strerror or problem}", hint=hint
        ) from None
    except ValueError:
        raise error(f"cannot read {what} {path}: it is not UTF-8 text", hint=hint) from None
    try:
        raw = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        too_deep = _deeper_than(raw, MAX_DEPTH)
    except RecursionError:
        too_deep = True
    except ValueError as problem:
        raise error(
            f"{path} is not JSON: {problem}",
            hint="correct the file at that place; JSON knows no comments and no last comma",
        ) from None
    if too_deep:
        raise error(
            f"{path} is nested more than {MAX_DEPTH} levels deep",
            hint=f"{what} needs fewer than ten levels; was this file made by a program?",
        )
    return raw


def write_atomic(path: Path, text: str) -> None:
    """Writes a text file so that a reader sees the old content or all of the new.

    Raises:
        InputError: the folder cannot be written, or `path` is not a regular file.
    """
    hint = "give the path of a file in a folder that exists and can be written"
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is not a regular file", hint=hint)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as problem:
        raise InputError(
            f"cannot write {path}: {problem.strerror or problem}", hint=hint
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shown(twice)} appears twice in one object")
    return result


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _deeper_than(value: Any, limit: int) -> bool:
    layer = [value]
    for _ in range(limit):
        layer = [
            child
            for item in layer
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not layer:
            return False
    return True
