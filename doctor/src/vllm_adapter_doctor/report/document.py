"""Host facts as a JSON document that is mailed and read on another machine, by other releases."""

from __future__ import annotations

import json
import re
import warnings
from typing import Any, Final

from vllm_adapter.errors import InputError, NewerFormat
from vllm_adapter.files import schema_version, shown
from vllm_adapter.hostfacts.facts import HostFacts

FORMAT: Final = "vllm-adapter/facts"
VERSION: Final = (1, 0)
SCHEMA: Final = f"{FORMAT}/{VERSION[0]}.{VERSION[1]}"
_BEGIN: Final = re.compile(r'\s*\{\s*"schema"\s*:\s*"vllm-adapter/(\w+)/')


def to_document(facts: HostFacts) -> dict[str, Any]:
    """The facts as a JSON object that says its format."""
    return {"schema": SCHEMA, **facts.to_json()}


def from_document(raw: dict[str, Any]) -> HostFacts:
    """The facts of such an object; one without `schema` is read as this release's.

    A newer minor version is read with a warning, and what is new in it is left out.

    Raises:
        InputError: a newer or unknown format, or a value that does not fit.
    """
    if "schema" not in raw:
        return HostFacts.from_json(raw)
    values = {key: value for key, value in raw.items() if key != "schema"}
    version = schema_version(raw["schema"], FORMAT)
    if version is None:
        raise InputError(
            f"the facts are of format {shown(raw['schema'])}, not {SCHEMA}",
            hint="give a file that `vllm-adapter facts` or `doctor --bundle` wrote",
        )
    if version[0] != VERSION[0]:
        raise InputError(
            f"the facts are of format {version[0]}.{version[1]}, and this release reads "
            f"{VERSION[0]}.x",
            hint="pip install --upgrade vllm-adapter-core, or write the file with this release",
        )
    if version <= VERSION:
        return HostFacts.from_json(values)
    warnings.warn(
        f"the facts are of format {version[0]}.{version[1]}, newer than this release: "
        "what is new in it is ignored",
        NewerFormat,
        stacklevel=2,
    )
    return HostFacts.from_json(values, newer=True)


def from_text(text: str) -> HostFacts | None:
    """The facts in a text that `facts` or `doctor --bundle` wrote; None for any other text.

    Raises:
        InputError: as `from_document`.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(raw, dict) and isinstance(raw.get("facts"), dict):
        raw = raw["facts"]
    if not isinstance(raw, dict):
        return None
    ours = isinstance(raw.get("schema"), str) and raw["schema"].startswith(f"{FORMAT}/")
    return from_document(raw) if ours or ("os" in raw and "pci" in raw) else None


def refuse_other_documents(text: str) -> None:
    """Refuses a document of ours that `from_text` took for none: no tool's parser reads it.

    Raises:
        InputError: facts or a bundle that are cut or damaged, or another kind of file of ours.
    """
    begin = _BEGIN.match(text)
    if begin is None:
        return
    if begin[1] in ("facts", "bundle"):
        try:
            json.JSONDecoder().raw_decode(text.lstrip())
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"the file of {begin[1]} is cut or damaged: {error}",
                hint="take the whole file that `vllm-adapter facts` or `doctor --bundle` wrote",
            ) from None
        return  # whole, with another text after it
    raise InputError(
        f"this is a {begin[1]}, a file of this project, and describes no machine",
        hint="give a tool's output, or the file that `vllm-adapter facts` wrote",
    )
