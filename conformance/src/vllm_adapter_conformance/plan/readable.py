"""Whether an installed adapter can be judged at all: for this core, readable, and whole."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

from vllm_adapter.discovery.records import AdapterRecord, Status
from vllm_adapter.errors import AdapterError

_REFUSED: Final = (Status.BROKEN, Status.INCOMPATIBLE, Status.BLOCKED)
MOST: Final = 3
"""Missing files that are named."""


def check_readable(record: AdapterRecord) -> None:
    """Refuses an adapter that discovery found incompatible, malformed or denied.

    Raises:
        AdapterError: the reason, and the command to run next.
    """
    if record.status not in _REFUSED and record.path is not None:
        return
    state = "broken" if record.status is Status.BROKEN else record.status_text
    step = record.next_step or "vllm-adapter list"
    raise AdapterError(f"{_who(record)} is {state}: {record.reason}", hint=f"run `{step}`")


def check_whole(record: AdapterRecord) -> None:
    """Refuses a package that lacks files which its wheel had, or every descriptor.

    Raises:
        AdapterError: what is missing.
    """
    missing = missing_files(record)
    if missing:
        more = f", and {len(missing) - MOST} more" if len(missing) > MOST else ""
        raise AdapterError(
            f"{_who(record)} is not whole: its wheel had {', '.join(missing[:MOST])}{more}, "
            f"which {'are' if len(missing) > 1 else 'is'} not installed",
            hint=f"run `pip install --force-reinstall {record.distribution}`",
        )
    manifest = record.manifest
    if manifest is not None and record.path is not None and not list(manifest.capability_files()):
        raise AdapterError(
            f"{_who(record)} has no descriptor: nothing in {record.path} matches "
            f"{manifest.capabilities}",
            hint="write one as docs/first-adapter.md shows, and ship it as package data",
        )


def missing_files(record: AdapterRecord) -> list[str]:
    """Files of the package that its distribution's RECORD lists and that are not there."""
    import importlib_metadata

    if record.path is None:
        return []
    try:
        distribution = importlib_metadata.distribution(record.distribution)
        lines = (distribution.read_text("RECORD") or "").splitlines()
    except (importlib_metadata.PackageNotFoundError, OSError, UnicodeDecodeError):
        return []
    folder = record.path.resolve()
    # Not `distribution.files`: that leaves out what is missing.
    named = (row[0] for row in csv.reader(lines) if row and "__pycache__" not in row[0])
    return sorted(
        name
        for name in named
        if (place := Path(str(distribution.locate_file(name))).resolve()).is_relative_to(folder)
        and not place.exists()
    )


def _who(record: AdapterRecord) -> str:
    return f"adapter {record.name} ({record.distribution} {record.version})"
