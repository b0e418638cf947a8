"""One file for a bug report: the machine's facts, our packages, adapters and settings."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

from vllm_adapter.discovery.distributions import read_headers
from vllm_adapter.errors import InputError
from vllm_adapter.files import write_atomic
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.document import to_document
from vllm_adapter_doctor.report.private import masker, own_names, public, public_json
from vllm_adapter_doctor.report.secrets import is_secret

SCHEMA: Final = "vllm-adapter/bundle/1.0"
_OURS: Final = "vllm-adapter"


def write_bundle(path: Path, facts: HostFacts, *, force: bool = False) -> None:
    """Writes the bundle whole or not at all; `--report` takes the file as the machine's facts.

    Raises:
        InputError: the file is there and `force` is not given, or it cannot be written.
    """
    if not force:
        refuse_to_replace(path)
    write_atomic(path, json.dumps(make_bundle(facts), indent=2, allow_nan=False) + "\n")


def refuse_to_replace(path: Path) -> None:
    """Raises InputError where a file of that name is there already."""
    if os.path.lexists(path):
        raise InputError(
            f"{path} is there already and was not touched",
            hint="give another name, or --force to write over it",
        )


def make_bundle(facts: HostFacts) -> dict[str, Any]:
    """The bundle as JSON values; no adapter is imported or probed for it."""
    from vllm_adapter.discovery import registry
    from vllm_adapter.settings import PREFIX, Settings

    mask = masker(own_names(), os.environ.get("HOME", ""))
    settings = Settings.from_environ()
    records = registry.with_cached_probes(registry.located(registry.scan(settings), facts), facts)
    rest = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": {
            "version": sys.version,
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
            "path": sys.path,
        },
        "packages": _our_packages(),
        "adapters": [record.to_json() for record in records],
        "settings": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(PREFIX) and not is_secret(name)
        },
    }
    said: dict[str, Any] = public_json(rest, mask)
    return {"schema": SCHEMA, **said, "facts": to_document(public(facts, mask))}


def _our_packages() -> dict[str, str]:
    """Versions of this project's distributions, and of adapters that others named alike."""
    from importlib_metadata import distributions

    found: dict[str, str] = {}
    for distribution in distributions():
        headers = read_headers(distribution)
        name, version = (headers.get(key, [""])[0] for key in ("name", "version"))
        if name.lower().replace("_", "-").startswith(_OURS):
            found.setdefault(name, version)
    return dict(sorted(found.items()))
