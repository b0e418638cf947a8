"""Checks a certificate without its author: is it whole, and does it claim what it shows?

All of it works from the file and the suite alone. Whoever edits the file and computes the digest
anew is not caught here: a signature or a replay does that.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import CertificateError
from vllm_adapter.files import read_json, schema_version
from vllm_adapter_conformance.base.rule import LEVELS
from vllm_adapter_conformance.certificate import claims, format, mustpass
from vllm_adapter_conformance.certificate.document import digest
from vllm_adapter_conformance.certificate.parts import (
    CORE,
    OURS,
    SUITE,
    suite_digest,
    suite_version,
)
from vllm_adapter_conformance.certificate.records import normal
from vllm_adapter_conformance.performance.section import section_faults

SCHEMA: Final = "vllm-adapter/certificate"
CLOCKS: Final = datetime.timedelta(minutes=10)
"""By how much two machines' clocks may differ."""
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
    return form_faults(document) or content_faults(document)


def form_faults(document: Mapping[str, Any]) -> list[str]:
    """How it breaks its schema; what it says can be looked at only where it does not."""
    return first("it breaks its schema", _schema_faults(document))


def content_faults(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with one that keeps its schema."""
    return [
        *_digest_faults(document),
        *_moment_faults(document),
        *_file_faults(document),
        *_claim_faults(document),
    ]


def older(document: Mapping[str, Any]) -> bool:
    """Whether it is of a format that does not say which files took part."""
    return _version(document) < (1, 1)


def of_other_files(document: Mapping[str, Any]) -> bool:
    """Whether it says that it is by this version of the suite, and its suite has other files."""
    suite = document["suite"]
    return bool(suite["version"] == suite_version() and suite["files_sha256"] != suite_digest())


def doubt(document: Mapping[str, Any]) -> str:
    """What the first line adds, where the suite that wrote it cannot be looked at here."""
    version, asked = document["suite"]["version"], document["level_asked"]
    lacking, day = _lacking(document), str(document["created"]).partition("T")[0]
    if lacking:
        return (
            f"; by an earlier suite ({version}, {day}), without {lacking} of the "
            f"{len(mustpass.committed().up_to(asked))} rules that this one has up to {asked}"
        )
    if document["grade"] == "release" and of_other_files(document):
        why = "its grade is its own word"
        return f", and by other files of suite {version} than these, so that {why}"
    return ""


def notes(document: Mapping[str, Any]) -> list[str]:
    """What a reader should know, and no fault."""
    suite, found = document["suite"], []
    if _lacking(document):
        again = f"vllm-adapter certify {document['adapter']['name']} --level"
        found.append(
            "it is judged by its own suite's list of rules; for a certificate by this suite, run "
            f"`{again} {document['level_asked']}` on the device"
        )
    if suite["files_sha256"] != suite_digest():
        what = "as its version is the same, its grade is its own word"
        same = f": {what}" if document["grade"] == "release" and of_other_files(document) else ""
        found.append(f"it is by other files of the suite ({suite['version']}) than these{same}")
    if older(document):
        found.append(
            f"its format ({document['schema'].rpartition('/')[2]}) does not say which files took "
            "part: it can be read, and neither compared file by file nor replayed"
        )
    if document["grade"] == "development":
        changed = document.get("changed", ["files were editable, or not as installed"])
        found += first("development grade", changed)
    found += [f"at the start of each process: {code}" for code in document.get("start_up", ())]
    if document["emulated"]:
        by = (document["device"] or {}).get("emulated_by")
        owner = f" by the library of {by['name']} {by['version']}" if by else ""
        found.append(f"the device was emulated{owner}")
    elif claims.is_stand_in(document):
        found.append("the CPU stood in for the device")
    return found


def _lacking(document: Mapping[str, Any]) -> int:
    """How many rules this suite has up to its level that its own list lacks."""
    own = mustpass.listed(document["suite"]["mustpass_sha256"])
    asked = document["level_asked"]
    return len(mustpass.committed().up_to(asked) - own.up_to(asked)) if own else 0


def _digest_faults(document: Mapping[str, Any]) -> Iterator[str]:
    if digest(document) != document["digest"]:
        yield "its digest does not fit its content: it was edited after it was written"


def _schema_faults(document: Mapping[str, Any]) -> list[str]:
    from vllm_adapter.cli.checks import schema_faults

    version = schema_version(document["schema"], SCHEMA)
    if version is None or version[0] != 1:
        return [f"its schema is {document['schema']!r}, which no certificate has"]
    found, _ = schema_faults("certificate", document, newer=version > format.VERSION)
    return [*map(str, found)]


def _moment_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """A run cannot have ended in the future; clocks may differ a little."""
    try:
        created = datetime.datetime.fromisoformat(document["created"])
    except ValueError:
        yield f"it was created at {document['created']}, which is no moment"
        return
    now = datetime.datetime.now(datetime.UTC)
    if created > now + CLOCKS:
        yield f"it was created in the future: {document['created']}"


def _file_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """What a certificate of this format must say of the files that were tested."""
    if older(document):
        return
    for key in ("contract", "distributions", "outside", "changed", "start_up"):
        if key not in document:
            yield f"it does not say its {key}, as every certificate of its format does"
            return
    distributions, tested = document["distributions"], document["adapter"]
    for name in (SUITE, *OURS, normal(tested["dist"])):
        if name not in distributions:
            yield f"its distributions lack {name}, which every run has"
    loaded = any(one["loaded"] for one in distributions.values())
    if not loaded and any(
        _has_passed(rule) for rule in document["rules"] if rule["level"] != "L0"
    ):
        yield "it names no file that was loaded, and a device's process loads core's own"
    for key, name in (("suite", SUITE), ("core", CORE)):
        one = distributions.get(name, {})
        if one and document.get(key, {}).get("files_sha256") != one.get("files_sha256"):
            yield f"its {key} and its distribution {name} have different files"
    grade = "development" if document["changed"] or tested["editable"] else "release"
    if document["grade"] != grade:
        yield (f"its grade is {document['grade']}, and what it says of its files makes it {grade}")


def _has_passed(rule: Mapping[str, Any]) -> bool:
    return any(case["outcome"] == claims.PASS for case in rule["cases"])


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


def _version(document: Mapping[str, Any]) -> tuple[int, int]:
    found = schema_version(document["schema"], SCHEMA)
    assert found is not None  # `load` has looked
    return found


def first(what: str, found: Iterable[str]) -> list[str]:
    """One sentence of the first few of what was found; none where nothing was."""
    items = list(found)
    if not items:
        return []
    more = f", and {len(items) - MOST} more" if len(items) > MOST else ""
    return [f"{what}: {'; '.join(items[:MOST])}{more}"]
