"""What a signature is over: an in-toto statement about one certificate's file.

The statement names the SHA-256 of the file's bytes, so that other tools can check it too, and a
predicate of ours with what the certificate claims.
# upstream: in-toto/attestation@412b0d4 spec/v1/statement.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import CertificateError
from vllm_adapter.files import JSON_BYTES, read_bounded

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "urn:vllm-adapter:conformance:1.0"
PAYLOAD: Final = "application/vnd.in-toto+json"


def statement_of(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """The statement about a certificate that lies at `path`.

    Raises:
        OSError: it cannot be read.
    """
    return {
        "_type": STATEMENT,
        "subject": [{"name": path.name, "digest": {"sha256": file_digest(path)}}],
        "predicateType": PREDICATE,
        "predicate": claims_of(document),
    }


def encoded(statement: Mapping[str, Any]) -> bytes:
    """The bytes that are signed."""
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def file_digest(path: Path) -> str:
    """SHA-256 of a certificate's file.

    Raises:
        OSError: it cannot be read.
    """
    return sha256(read_bounded(path, JSON_BYTES)).hexdigest()


def claims_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a certificate claims, in brief."""
    tested = document["adapter"]
    return {
        "adapter": tested["name"],
        "dist": tested["dist"],
        "version": tested["version"],
        "level_reached": document["level_reached"],
        "grade": document["grade"],
        "badge": document["badge"],
        "digest": document["digest"],
    }


def statement_faults(payload: bytes, path: Path, document: Mapping[str, Any]) -> list[str]:
    """Why a signed payload is not about this certificate; empty where it is."""
    try:
        found = json.loads(payload)
        kind, predicate = found["_type"], found["predicateType"]
        digests = [subject["digest"].get("sha256") for subject in found["subject"]]
        claimed = found["predicate"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ["its signature is over something that is no in-toto statement"]
    if kind != STATEMENT or predicate != PREDICATE:
        return [f"its signature is over a statement of another predicate: {predicate!r}"]
    if file_digest(path) not in digests:
        return ["its signature is of another file: this one was edited, or never signed"]
    if claimed != claims_of(document):
        return ["its signature is over other claims than the certificate has"]
    return []


def need(package: str, extra: str) -> CertificateError:
    """What is said where an optional library is missing."""
    return CertificateError(
        f"signatures of this kind need the package {package}, which is not installed",
        hint=f"pip install 'vllm-adapter-conformance[{extra}]'",
    )
