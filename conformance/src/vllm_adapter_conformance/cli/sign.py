"""The signatures that `certify` is asked for: looked at before the run, made after it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Sign = Callable[[Path, Mapping[str, Any]], list[Path]]


def signer(args: argparse.Namespace) -> Sign:
    """Signs a certificate's file by `args.sign` and `args.sigstore`; gives the files it wrote.

    An older signature is removed: it is of another file.

    Raises:
        InputError, CertificateError: the key or an identity cannot be used; nothing has run yet.
    """
    from vllm_adapter_conformance.certificate import signing, signing_sigstore

    key = None if args.sign is None else signing.private_key(args.sign)
    online = signing_sigstore.OnlineSigner() if args.sigstore else None

    def sign(certificate: Path, document: Mapping[str, Any]) -> list[Path]:
        for old in (
            signing.signature_file(certificate),
            signing_sigstore.bundle_file(certificate),
        ):
            old.unlink(missing_ok=True)
        made = []
        if key is not None:
            made.append(signing.sign(certificate, document, key))
        if online is not None:
            made.append(online.sign(certificate, document))
        return made

    return sign
