"""Signatures by an identity at Sigstore: a bundle in the file NAME.json.sigstore.json.

Checking one needs no network: the bundle has the certificate, the log's proof and its time, and
the root of trust is a file. Signing is online by its nature.
# upstream: sigstore-python@v4.5.1 sigstore/verify/verifier.py:383 (verify_dsse)
# upstream: sigstore-python@v4.5.1 sigstore/sign.py:211 (sign_dsse)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import CertificateError, InputError
from vllm_adapter.files import JSON_BYTES, read_bounded, write_atomic
from vllm_adapter_conformance.certificate.statement import (
    PAYLOAD,
    encoded,
    need,
    statement_faults,
    statement_of,
)

SUFFIX: Final = ".sigstore.json"


def bundle_file(certificate: Path) -> Path:
    """Where the bundle of a certificate lies."""
    return certificate.with_name(certificate.name + SUFFIX)


def bundle_faults(
    certificate: Path,
    document: Mapping[str, Any],
    identity: str,
    issuer: str,
    trust_root: Path | None,
) -> list[str]:
    """Why the certificate is not signed by this identity; empty where it is. No network is used.

    Raises:
        InputError: the root of trust cannot be read.
        CertificateError: the package sigstore is missing.
    """
    _need()
    from sigstore.errors import Error, VerificationError
    from sigstore.models import Bundle
    from sigstore.verify import policy

    path = bundle_file(certificate)
    if not path.exists():
        return [f"it is unsigned by {identity}: there is no file {path.name} beside it"]
    verifier = _verifier(trust_root)
    try:
        bundle = Bundle.from_json(read_bounded(path, JSON_BYTES))
        who = policy.Identity(identity=identity, issuer=issuer)
        kind, payload = verifier.verify_dsse(bundle, who)
    except (Error, VerificationError, OSError, ValueError) as problem:
        return [f"its bundle {path.name} does not show the signature of {identity}: {problem}"]
    if kind != PAYLOAD:
        return [f"its signature has the payload type {kind!r}, and not {PAYLOAD}"]
    return statement_faults(payload, certificate, document)


class OnlineSigner:
    """Signs by the identity of where this runs: a CI job's token, or a person's by a browser."""

    def __init__(self) -> None:
        """Reaches the services before the run; nothing is signed yet.

        Raises:
            CertificateError: sigstore is missing, or its services cannot be reached from here.
        """
        _need()
        from sigstore.models import ClientTrustConfig

        try:
            self._config = ClientTrustConfig.production()
        except Exception as problem:  # the library's own, the network's, the service's
            raise _not_online(problem) from None

    def sign(self, certificate: Path, document: Mapping[str, Any]) -> Path:
        """Writes the bundle beside the certificate, and gives its path.

        Raises:
            CertificateError: Sigstore did not sign it; the certificate is there, unsigned.
        """
        from sigstore.dsse import Statement
        from sigstore.oidc import IdentityToken, Issuer, detect_credential
        from sigstore.sign import SigningContext

        statement = Statement(encoded(statement_of(certificate, document)))
        try:
            given = detect_credential()  # asked for now: a token lives for minutes
            if given is not None:
                token = IdentityToken(given)
            else:
                token = Issuer(self._config.signing_config.get_oidc_url()).identity_token()
            with SigningContext.from_trust_config(self._config).signer(token) as signer:
                bundle = signer.sign_dsse(statement)
        except Exception as problem:  # as above
            raise _not_online(problem) from None
        path = bundle_file(certificate)
        write_atomic(path, bundle.to_json() + "\n")
        return path


def _verifier(trust_root: Path | None) -> Any:
    from sigstore.errors import Error
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    hint = (
        "give the trusted_root.json of whom you trust with --trust-root; "
        "`python -m sigstore verify --help` tells of the public one"
    )
    try:
        if trust_root is None:
            return Verifier.production(offline=True)
        return Verifier(trusted_root=TrustedRoot.from_file(str(trust_root)))
    except (Error, OSError, ValueError) as problem:
        what = f"the root of trust {trust_root}" if trust_root else "Sigstore's root of trust"
        raise InputError(f"{what} cannot be used: {problem}", hint=hint) from None


def _need() -> None:
    from importlib.util import find_spec

    if find_spec("sigstore") is None:
        raise need("sigstore", "sigstore")


def _not_online(problem: BaseException) -> CertificateError:
    return CertificateError(
        f"Sigstore was not asked for a signature, or gave none: {type(problem).__name__}: "
        f"{str(problem)[:200]}",
        hint="an identity needs its services; --sign, with a key file, needs no network",
    )
