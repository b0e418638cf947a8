"""Signatures by an Ed25519 key: a DSSE envelope in the file NAME.json.sig beside the certificate.

# upstream: sigstore-python@v4.5.1 sigstore/dsse/__init__.py:256 (_pae), which signs the same bytes
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.errors import CertificateError, InputError
from vllm_adapter.files import read_bounded, read_json, write_atomic
from vllm_adapter_conformance.certificate.statement import (
    PAYLOAD,
    encoded,
    need,
    statement_faults,
    statement_of,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SUFFIX: Final = ".sig"
KEY_BYTES: Final = 1 << 14
_MAKE: Final = (
    "`openssl genpkey -algorithm ed25519 -out key.pem` makes one, and "
    "`openssl pkey -in key.pem -pubout -out key.pub` its public half"
)


def signature_file(certificate: Path) -> Path:
    """Where the signature of a certificate lies."""
    return certificate.with_name(certificate.name + SUFFIX)


def private_key(path: Path) -> Ed25519PrivateKey:
    """The key of a PEM or OpenSSH file.

    Raises:
        InputError: it cannot be read, is encrypted, or is no Ed25519 private key.
        CertificateError: the package cryptography is missing.
    """
    formats, kinds = _library()
    data = _read(path)
    load = formats.load_ssh_private_key if b"OPENSSH" in data else formats.load_pem_private_key
    try:
        key = load(data, password=None)
    except TypeError:
        raise InputError(
            f"the key {path} is encrypted, and nobody is asked for its password here",
            hint=f"`openssl pkey -in {path} -out plain.pem` writes it without one",
        ) from None
    except Exception:  # what a library of parsers makes of anybody's bytes
        key = None
    if not isinstance(key, kinds.Ed25519PrivateKey):
        raise InputError(f"{path} is no Ed25519 private key", hint=_MAKE)
    found: Ed25519PrivateKey = key
    return found


def public_key(path: Path) -> Ed25519PublicKey:
    """The key of a PEM file, or of a line `ssh-ed25519 ...`; raises as `private_key`."""
    formats, kinds = _library()
    data = _read(path)
    load = formats.load_ssh_public_key if data.startswith(b"ssh-") else formats.load_pem_public_key
    try:
        key = load(data)
    except Exception:  # as above
        key = None
    if not isinstance(key, kinds.Ed25519PublicKey):
        what = "a private key: give its public half" if b"PRIVATE" in data else "no Ed25519 key"
        raise InputError(f"{path} is {what}", hint=_MAKE)
    found: Ed25519PublicKey = key
    return found


def fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 of the key as DER (SubjectPublicKeyInfo): how people name a key."""
    formats, _ = _library()
    raw = key.public_bytes(formats.Encoding.DER, formats.PublicFormat.SubjectPublicKeyInfo)
    return f"SHA256:{sha256(raw).hexdigest()}"


def sign(certificate: Path, document: Mapping[str, Any], key: Ed25519PrivateKey) -> Path:
    """Writes the envelope beside the certificate, and gives its path.

    Raises:
        InputError: it cannot be written.
    """
    payload = encoded(statement_of(certificate, document))
    envelope = {
        "payloadType": PAYLOAD,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [
            {
                "keyid": fingerprint(key.public_key()),
                "sig": base64.b64encode(key.sign(pre_encoded(PAYLOAD, payload))).decode(),
            }
        ],
    }
    path = signature_file(certificate)
    write_atomic(path, json.dumps(envelope) + "\n")
    return path


def pre_encoded(kind: str, payload: bytes) -> bytes:
    """What DSSE signs: type and payload, each with its length."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


def signature_faults(
    certificate: Path, document: Mapping[str, Any], key: Ed25519PublicKey
) -> list[str]:
    """Why the certificate is not signed by this key; empty where it is.

    Raises:
        CertificateError: the envelope is no JSON.
    """
    from cryptography.exceptions import InvalidSignature

    path = signature_file(certificate)
    if not path.exists():
        return [f"it is unsigned: there is no file {path.name} beside it"]
    raw = read_json(path, "the signature", CertificateError)
    try:
        kind, text = raw["payloadType"], raw["payload"]
        signatures = [_decoded(one["sig"]) for one in raw["signatures"]]
        payload = _decoded(text)
    except (AttributeError, KeyError, TypeError, ValueError):
        return [f"its signature {path.name} is no DSSE envelope"]
    if kind != PAYLOAD:
        return [f"its signature has the payload type {kind!r}, and not {PAYLOAD}"]
    for signature in signatures:
        try:
            key.verify(signature, pre_encoded(kind, payload))
        except InvalidSignature:
            continue
        return statement_faults(payload, certificate, document)
    return [f"its signature is not by the key {fingerprint(key)}"]


def _decoded(text: str) -> bytes:
    """Standard or URL-safe base64; a DSSE envelope may have either."""
    return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, KEY_BYTES)
    except OSError as problem:
        raise InputError(
            f"cannot read the key {path}: {problem.strerror or problem}", hint=_MAKE
        ) from None


def _library() -> tuple[ModuleType, ModuleType]:
    """`cryptography`, an optional package: how keys are read, and what kinds there are."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise need("cryptography", "sign") from None
    return serialization, ed25519
