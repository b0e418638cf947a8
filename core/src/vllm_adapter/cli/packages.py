"""From what a user names (an adapter, a package folder) to files."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Final

from vllm_adapter.contract.manifest import NAME
from vllm_adapter.errors import AdapterError, InputError

MANIFEST: Final = "adapter.json"


def find_package(name: str) -> Path:
    """The package folder of an installed adapter, whatever its status.

    Raises:
        AdapterError: none of that name is installed, or its package cannot be located.
    """
    from vllm_adapter.discovery.registry import scan
    from vllm_adapter.settings import Settings

    records = scan(Settings())
    paths = {r.name: r.path for r in reversed(records) if r.path is not None}
    if name in paths:
        return paths[name]
    broken = next((r for r in records if r.name == name), None)
    if broken is not None:
        raise AdapterError(
            f"the package of adapter {name} cannot be located: {broken.reason}",
            hint=f"run `{broken.next_step or f'pip install --force-reinstall {name}'}`",
        )
    near = difflib.get_close_matches(name, paths, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise AdapterError(
        f"no adapter {name} is installed",
        hint=f"{meant}installed: {', '.join(sorted(paths)) or 'none'}",
    )


def resolve(text: str) -> Path:
    """An existing path as it is; otherwise the package folder of the adapter of that name.

    Raises:
        AdapterError: it looks like a name, and no such adapter is installed.
        InputError: it looks like a path, and nothing is there.
    """
    path = Path(text)
    try:
        if path.exists():
            return path
    except (OSError, ValueError) as error:  # too long, or with a null character
        raise InputError(f"{text[:80]!r} is no path: {error}", hint="give a path") from None
    if re.fullmatch(NAME, text):
        return find_package(text)
    raise InputError(
        f"there is no file or folder {text}",
        hint="give a path that exists, or the name of an installed adapter",
    )


def manifest_in(folder: Path) -> Path:
    """The adapter.json of a package folder.

    Raises:
        InputError: it has none; the hint names one below it, if there is.
    """
    path = folder / MANIFEST
    if path.exists():
        return path
    below = next(
        (p for glob in ("*", "src/*") for p in sorted(folder.glob(f"{glob}/{MANIFEST}"))), None
    )
    raise InputError(
        f"the folder {folder} has no {MANIFEST}",
        hint=f"did you mean {below.parent}?"
        if below
        else f"give the adapter's top-level package, which holds {MANIFEST}",
    )
