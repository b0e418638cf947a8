"""One selection for a tree of processes: the first process makes it, its children read it.

The file is named by VA_SELECTION. Where that is unset, the first process makes a file in the
temporary folder, exports its name to its children, and removes the file when it ends.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from vllm_adapter import selection
from vllm_adapter.errors import InputError
from vllm_adapter.files import read_json, write_atomic
from vllm_adapter.selection import Selection, settings_that_matter
from vllm_adapter.settings import Settings
from vllm_adapter.vllm_install import find_vllm

VARIABLE: Final = "VA_SELECTION"
SCHEMA: Final = "vllm-adapter/selection/1.0"


def shared_selection(settings: Settings) -> tuple[Selection, tuple[str, ...]]:
    """The selection of this process tree, and warnings: read if it was made, else made here.

    A file that cannot be used, or that was made under other settings, is made anew with a
    warning. Where no file can be written the selection is made in each process, with a warning.

    Raises:
        InputError: as `select`.
    """
    warnings: list[str] = []
    if settings.selection is not None and settings.selection.exists():
        try:
            return _read(settings.selection, settings), ()
        except InputError as error:
            warnings.append(f"{error.message}; the selection is made anew")
    chosen = selection.select(settings)
    try:
        _write(chosen, settings.selection or _new_file())
    except (InputError, OSError) as error:
        text = error.message if isinstance(error, InputError) else str(error)
        warnings.append(f"{text}; every process of this server chooses for itself")
    return chosen, tuple(warnings)


def _read(file: Path, settings: Settings) -> Selection:
    hint = f"delete it, or unset {VARIABLE}"
    raw = read_json(file, "the selection")
    if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
        raise InputError(f"{file} is no selection of this release", hint=hint)
    try:
        kept = Selection.from_json(raw)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{file} holds no selection", hint=hint) from None
    now = settings_that_matter(settings, find_vllm())
    changed = [name for name in now if kept.settings.get(name) != now[name]]
    if changed:
        raise InputError(
            f"{file} was made under another {' and '.join(changed)}",
            hint=hint,
        )
    return kept


def _write(chosen: Selection, file: Path) -> None:
    content: dict[str, Any] = {"schema": SCHEMA, **chosen.to_json()}
    write_atomic(file, json.dumps(content, indent=1) + "\n")


def _new_file() -> Path:
    """An own file, whose name is exported so that children inherit it."""
    handle, name = tempfile.mkstemp(prefix="vllm-adapter-selection-", suffix=".json")
    os.close(handle)
    os.environ[VARIABLE] = name
    atexit.register(_remove, Path(name), os.getpid())
    return Path(name)


def _remove(file: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked child inherits this handler, and must leave the file
        with suppress(OSError):
            file.unlink()
