"""One selection for a tree of processes: the first process makes it, its children read it.

The file is named by VA_SELECTION. Where that is unset, the first process makes a file in the
temporary folder, and removes it when it ends. Either way it exports the file's name, and a mark
by which its children know that the file is of their own tree: what an earlier server left behind
may be of another state of the machine, and is made anew.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from vllm_adapter.broker import selection
from vllm_adapter.broker.selection import Selection, selection_settings
from vllm_adapter.broker.vllm_install import find_vllm
from vllm_adapter.errors import InputError
from vllm_adapter.files import read_json, write_atomic
from vllm_adapter.settings import Settings

VARIABLE: Final = "VA_SELECTION"
MARK: Final = "_VA_SELECTION_OF_THIS_TREE"
"""In the environment: the file that a process above this one, or this one, has written."""
SCHEMA: Final = "vllm-adapter/selection/1.0"
_HINT: Final = f"delete it, or unset {VARIABLE}"


def operators_folder(file: Path) -> Path:
    """Beside a selection: where the processes of its tree write who runs which operator."""
    return file.with_name(f"{file.name}.operators")


def shared_selection(settings: Settings) -> tuple[Selection, tuple[str, ...]]:
    """The selection of this process tree, and warnings: read if it was made, else made here.

    A file that cannot be read, or that was made under other settings, is made anew with a
    warning. Where no file can be written each process makes its own, with a warning.

    Raises:
        InputError: as `select`.
    """
    warnings: list[str] = []
    file = settings.selection
    if file is not None and file.exists():
        try:
            kept = _read(file)
            if os.environ.get(MARK) == str(file):
                return _fitting(kept, file, settings), ()
        except InputError as error:
            warnings.append(f"{error.message}; a new selection is made")
    chosen = selection.select(settings)
    try:
        _write(chosen, _new_file() if file is None else file.absolute())
    except (InputError, OSError) as error:
        text = error.message if isinstance(error, InputError) else str(error)
        warnings.append(f"{text}; every process of this server chooses for itself")
    return chosen, tuple(warnings)


def _read(file: Path) -> Selection:
    raw = read_json(file, "the selection")
    if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
        raise InputError(f"{file} is no selection of this release", hint=_HINT)
    try:
        return Selection.from_json(raw)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{file} holds no selection", hint=_HINT) from None


def _fitting(kept: Selection, file: Path, settings: Settings) -> Selection:
    now = selection_settings(settings, find_vllm())
    changed = [name for name in now if kept.settings.get(name) != now[name]]
    if changed:
        raise InputError(f"{file} was made under another {' and '.join(changed)}", hint=_HINT)
    return kept


def _write(chosen: Selection, file: Path) -> None:
    content: dict[str, Any] = {"schema": SCHEMA, **chosen.to_json()}
    write_atomic(file, json.dumps(content, indent=1) + "\n")
    os.environ[VARIABLE] = os.environ[MARK] = str(file)


def _new_file() -> Path:
    """A file of this process."""
    handle, name = tempfile.mkstemp(prefix="vllm-adapter-selection-", suffix=".json")
    os.close(handle)
    atexit.register(_remove, Path(name), os.getpid())
    return Path(name)


def _remove(file: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked child inherits this handler, and must leave the file
        with suppress(OSError):
            file.unlink()
        shutil.rmtree(operators_folder(file), ignore_errors=True)
