"""Checks a certificate without its author: is it whole, and does it claim what it shows?

All of it works from the file and the suite alone. Whoever edits the file and computes the digest
anew is not caught here: a signature or a replay does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import AdapterError, CertificateError
from vllm_adapter.files import read_json, schema_version
from vllm_adapter_conformance.base.rule import LEVELS
from vllm_adapter_conformance.certificate import claims, mustpass
from vllm_adapter_conformance.certificate.document import digest
from vllm_adapter_conformance.certificate.fingerprint import core_digest, digests, suite_digest
from vllm_adapter_conformance.performance.section import section_faults

SCHEMA: Final = "vllm-adapter/certificate"
MOST: Final = 5
"""Faults of one kind that are listed; the rest is counted."""


def load(path: Path) -> dict[str, Any]:
    """The parsed certificate; its content is not judged yet.

    Raises:
        CertificateError: missing, not JSON, another kind of file, or another major version.
    """
    raw = read_json(path, "the certificate", CertificateError)
    tag = raw.get("schema") if isinstance(raw, dict) else None
    version = schema_version(tag, SCHEMA)
    if version is None or version[0] != 1:
        raise CertificateError(
            f"{path} is no certificate that this release reads: its schema is {tag!r}",
            hint="give the file that `vllm-adapter certify` wrote",
        )
    assert isinstance(raw, dict)
    return raw


def faults(document: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that is wrong; an empty list is a sound certificate."""
    from vllm_adapter.cli.checks import schema_faults

    newer = schema_version(document["schema"], SCHEMA) != (1, 0)
    by_schema, _ = schema_faults("certificate", document, newer=newer)
    if by_schema:
        return _first("it breaks its schema", map(str, by_schema))
    return [*_digest_faults(document), *_claim_faults(document)]


def notes(document: Mapping[str, Any]) -> list[str]:
    """What a reader should know, and no fault."""
    suite, found = document["suite"], []
    if suite["files_sha256"] != suite_digest():
        found.append(f"it is by other files of the suite ({suite['version']}) than these")
    if document["grade"] == "development":
        found.append("development grade: files were editable, or not as they were installed")
    if document["emulated"]:
        by = (document["device"] or {}).get("emulated_by")
        owner = f" by the library of {by['name']} {by['version']}" if by else ""
        found.append(f"the device was emulated{owner}")
    elif claims.is_stand_in(document):
        found.append("the CPU stood in for the device")
    return found


def against_installed(document: Mapping[str, Any]) -> list[str]:
    """How the installed adapter differs from the one that was tested.

    Raises:
        AdapterError: it is not installed.
    """
    from vllm_adapter.cli.packages import find_package

    tested = document["adapter"]
    try:
        installed = digests(find_package(tested["name"]))
    except OSError as problem:
        raise AdapterError(
            f"the files of adapter {tested['name']} cannot be read: {problem}",
            hint=f"pip install --force-reinstall {tested['dist']}=={tested['version']}",
        ) from None
    files = tested["files"]
    differing = [
        *(f"{path} is not installed" for path in sorted(files.keys() - installed.keys())),
        *(f"{path} was not tested" for path in sorted(installed.keys() - files.keys())),
        *(f"{p} differs" for p in sorted(files.keys() & installed) if files[p] != installed[p]),
    ]
    found = _first("the installed adapter is not the one that was tested", differing)
    core = document.get("core")
    if core is not None and core["files_sha256"] != core_digest():
        found.append(
            f"the core that was tested ({core['version']}) is not the one that is installed: its "
            "operators and kernels may differ"
        )
    return found


def _digest_faults(document: Mapping[str, Any]) -> Iterator[str]:
    if digest(document) != document["digest"]:
        yield "its digest does not fit its content: it was edited after it was written"


def _claim_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Every claim that its own rules do not support."""
    rules, asked = document["rules"], document["level_asked"]
    if asked not in LEVELS:
        yield f"it asks for {asked}; this suite knows {', '.join(LEVELS)}"
        return
    for what, ids in (
        ("rule", [rule["rule"] for rule in rules]),
        *((f"case of {rule['rule']}", [c["case"] for c in rule["cases"]]) for rule in rules),
    ):
        if len(set(ids)) != len(ids):
            yield f"it lists one {what} twice"
    strange = mustpass.unknown_or_missing(document)
    yield from strange[:MOST]
    own = mustpass.listed(document["suite"]["mustpass_sha256"])
    if own is None:
        return
    derived = {
        "level_reached": claims.level_reached(rules, asked, own),
        "counts": claims.counts(rules),
        "coverage": claims.coverage(rules),
        "emulated": claims.emulated(document),
        "badge": claims.badge(document),
    }
    if document["suite"]["files_sha256"] == suite_digest():
        yield from section_faults(document)
        # Prose: another release of the suite words it in its own way.
        derived["headline"] = claims.headline(document)
    for key, value in derived.items():
        if document[key] != value:
            yield f"its {key} is {document[key]!r}, and its own rules give {value!r}"
    if document["adapter"]["editable"] and document["grade"] != "development":
        yield "its adapter was editable, and its grade is not development"


def _first(what: str, found: Any) -> list[str]:
    items = list(found)
    if not items:
        return []
    more = f", and {len(items) - MOST} more" if len(items) > MOST else ""
    return [f"{what}: {'; '.join(items[:MOST])}{more}"]
