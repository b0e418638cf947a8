"""Where an adapter's tuning tables lie, and which of them are of its present files."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import LIBRARY
from vllm_adapter.contract.tuning import SUFFIX, TuningTable, read_table
from vllm_adapter.discovery.probe.cache import folder
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.errors import InputError
from vllm_adapter.files import PACKAGE_BYTES, read_bounded

SHIPPED: Final = "tuning"
"""The folder in an adapter's package."""
_MAX_FILES: Final = 10_000
_MAX_TABLES: Final = 100
_log = logging.getLogger("vllm_adapter.ops")


def tables_of(record: AdapterRecord, capability: Capability) -> tuple[TuningTable, ...]:
    """This user's table and those that the adapter ships; what is of other files is left out.

    A file that cannot be read is no reason not to open a device: it is logged.
    """
    found = []
    now: str | None = None
    for file in _files(record):
        now = now or digest_of(record, capability)
        try:
            table = read_table(file)
        except InputError as error:
            _log.warning("%s", error.message)
            continue
        if table.adapter == record.name and table.digest == now:
            found.append(table)
        else:
            _log.info("%s is of other files of %s, and not used", file, record.name)
    return tuple(found)


def cache_file(record: AdapterRecord) -> Path | None:
    """Where this user's own table is kept; None where there is no home."""
    base = folder()
    place = sha256(f"{sys.prefix}\0{record.path}".encode()).hexdigest()[:12]
    return base and base / f"tuning-{record.name}-{place}.json"


def digest_of(record: AdapterRecord, capability: Capability) -> str:
    """SHA-256 of the adapter's modules and of those that its entries name, core's left out."""
    folders = [] if record.path is None else [record.path]
    folders += [place for name in _packages(capability) if (place := _folder(name)) is not None]
    digest = sha256(f"{record.version}\0".encode())
    for root in dict.fromkeys(folders):
        for file in sorted(islice(root.rglob("*.py"), _MAX_FILES)):
            content = read_bounded(file, PACKAGE_BYTES)
            digest.update(f"{file.relative_to(root)}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _files(record: AdapterRecord) -> Iterator[Path]:
    own = cache_file(record)
    if own is not None and own.is_file():
        yield own
    if record.path is not None:
        yield from sorted(islice((record.path / SHIPPED).glob(SUFFIX), _MAX_TABLES))


def _packages(capability: Capability) -> Iterable[str]:
    """Top-level packages of the functions that a descriptor's entries name."""
    runs = (e.run for entries in capability.operators.values() for e in entries if e.run)
    named = {run.partition(":")[0].partition(".")[0] for run in runs if not _is_library(run)}
    return sorted(named - {"vllm_adapter"})


def _is_library(run: str) -> bool:
    return run.startswith(LIBRARY)


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    places = None if spec is None else spec.submodule_search_locations
    return Path(places[0]) if places else None
