"""Whether compiled Python is that of its source: what is imported is the .pyc, not the text.

A .pyc says by its header which source it is of, and its code may be another's all the same. So the
source is compiled anew, and the two codes are compared.
"""

from __future__ import annotations

import marshal
import os
import warnings
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from types import CodeType
from typing import Final

_HEADER: Final = 16
_LEVELS: Final = {"": 0, "1": 1, "2": 2}
"""Optimisation by the tag in a file's name, and as `compile` counts it."""


def faults_below(folder: str) -> Iterator[str]:
    """One sentence for each .pyc of this interpreter below a folder that is not its source's.

    Those of other interpreters and of pytest's rewriting are passed over: nothing here loads them.
    """
    for at, folders, names in os.walk(folder):
        folders.sort()
        if os.path.basename(at) == "__pycache__":
            continue
        for name in sorted(names):
            if name.endswith(".py"):
                yield from faults_of(os.path.join(at, name))


def faults_of(source: str) -> Iterator[str]:
    """The same for the compiled files of one source."""
    for tag, level in _LEVELS.items():
        cached = cache_from_source(source, optimization=tag)
        try:
            compiled = Path(cached).read_bytes()
            text = Path(source).read_bytes()
            state = os.stat(source)
        except OSError:
            continue  # none, or no source: then nothing imports it from __pycache__
        if _would_load(compiled, text, state) and not _same(compiled, text, source, level):
            yield f"{os.path.basename(cached)} is not the code of {os.path.basename(source)}"


def _would_load(compiled: bytes, text: bytes, state: os.stat_result) -> bool:
    """Whether the interpreter would take it; a stale one is compiled anew."""
    if len(compiled) < _HEADER or compiled[:4] != MAGIC_NUMBER:
        return False
    flags = int.from_bytes(compiled[4:8], "little")
    if flags & 0b1:
        return not flags & 0b10 or compiled[8:16] == source_hash(text)
    time, size = (int.from_bytes(compiled[at : at + 4], "little") for at in (8, 12))
    return (time, size) == (int(state.st_mtime) & 0xFFFFFFFF, state.st_size & 0xFFFFFFFF)


def _same(compiled: bytes, text: bytes, source: str, level: int) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a stranger's source: the import has said it
            expected = compile(text, source, "exec", dont_inherit=True, optimize=level)
    except (SyntaxError, ValueError):
        return False
    body = compiled[_HEADER:]
    if body == marshal.dumps(expected):
        return True
    try:
        found = marshal.loads(body)
    except (EOFError, ValueError, TypeError):
        return False
    return isinstance(found, CodeType) and found == expected
