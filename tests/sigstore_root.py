"""A root of trust like Sigstore's, made here: an authority, and logs of certificates and entries.

So that a bundle can be made, and checked by the sigstore library, without any network. Of RFC 6962
and of the bundle's format only what a bundle with one certificate and one entry needs.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import struct
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

SCT_LIST: Final = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
ISSUER: Final = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
START: Final = "2026-01-01T00:00:00Z"
SHA256: Final = hashes.SHA256()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(der(key)).digest()


def signed(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(SHA256))


class Root:
    """One root of trust; `now` is when it signs."""

    def __init__(self) -> None:
        self.authority, self.certificates, self.entries = (
            ec.generate_private_key(ec.SECP256R1()) for _ in range(3)
        )
        self.now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        public = self.authority.public_key()
        self.ca = (
            self._builder(name, name, public, datetime.timedelta(days=300))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.authority, SHA256)
        )

    def write(self, path: Path) -> Path:
        """The root of trust as the file that the library reads."""
        valid = {"start": START}

        def log(key: ec.EllipticCurvePrivateKey, url: str) -> dict[str, Any]:
            return {
                "baseUrl": url,
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": b64(der(key)),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": valid,
                },
                "logId": {"keyId": b64(key_id(key))},
            }

        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.entries, "https://entries.example")],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "test", "commonName": "authority"},
                    "uri": "https://authority.example",
                    "certChain": {
                        "certificates": [{"rawBytes": b64(self.ca.public_bytes(Encoding.DER))}]
                    },
                    "validFor": valid,
                }
            ],
            "ctlogs": [log(self.certificates, "https://certificates.example")],
            "timestampAuthorities": [],
        }
        path.write_text(json.dumps(root))
        return path

    def bundle(self, payload: bytes, kind: str, identity: str, issuer: str) -> dict[str, Any]:
        """A bundle over a payload, by an identity that the issuer vouches for."""
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = self._leaf(key, identity, issuer)
        encoded = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
        signature = b64(signed(key, encoded))
        envelope = {"payload": b64(payload), "payloadType": kind}
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": b64(leaf.public_bytes(Encoding.DER))},
                "tlogEntries": [self._entry(payload, signature, leaf)],
            },
            "dsseEnvelope": envelope | {"signatures": [{"sig": signature}]},
        }

    def _entry(self, payload: bytes, signature: str, leaf: x509.Certificate) -> dict[str, Any]:
        def digest(data: bytes) -> dict[str, str]:
            return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}

        spec = {
            "envelopeHash": digest(b"the envelope, which nobody can canonicalize"),
            "payloadHash": digest(payload),
            "signatures": [
                {"signature": signature, "verifier": b64(leaf.public_bytes(Encoding.PEM))}
            ],
        }
        body = compact({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        root = hashlib.sha256(b"\0" + body).digest()
        header = f"entries.example - 1\n1\n{b64(root)}\n"
        mark = b64(key_id(self.entries)[:4] + signed(self.entries, header.encode()))
        moment = int(self.now.timestamp())
        promised = {
            "body": b64(body),
            "integratedTime": moment,
            "logID": key_id(self.entries).hex(),
            "logIndex": 0,
        }
        return {
            "logIndex": "0",
            "logId": {"keyId": b64(key_id(self.entries))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(moment),
            "inclusionPromise": {
                "signedEntryTimestamp": b64(signed(self.entries, compact(promised)))
            },
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{header}\n\u2014 entries.example {mark}\n"},
            },
            "canonicalizedBody": b64(body),
        }

    def _leaf(
        self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str
    ) -> x509.Certificate:
        """A certificate for ten minutes, with the promise of the log of certificates inside."""
        code = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        vouched = x509.UnrecognizedExtension(ISSUER, issuer.encode())
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key())
        names = x509.SubjectAlternativeName([x509.RFC822Name(identity)])
        builder = (
            self._builder(
                x509.Name([]), self.ca.subject, key.public_key(), datetime.timedelta(minutes=10)
            )
            .add_extension(usage(digital_signature=True), critical=True)
            .add_extension(code, critical=False)
            .add_extension(above, critical=False)
            .add_extension(names, critical=True)
            .add_extension(vouched, critical=False)
        )
        unlogged = builder.sign(self.authority, SHA256).tbs_certificate_bytes
        promise = self._promise(unlogged)
        logged = x509.UnrecognizedExtension(SCT_LIST, promise)
        return builder.add_extension(logged, critical=False).sign(self.authority, SHA256)

    def _promise(self, certificate: bytes) -> bytes:
        """RFC 6962, 3.2 and 3.3: a list of one signed timestamp, as the extension holds it."""
        moment = int(self.now.timestamp()) * 1000
        entry = key_id(self.authority) + struct.pack("!I", len(certificate))[1:] + certificate
        data = struct.pack("!BBQH", 0, 0, moment, 1) + entry + struct.pack("!H", 0)
        signature = signed(self.certificates, data)
        one = struct.pack("!B32sQH", 0, key_id(self.certificates), moment, 0)
        one += struct.pack("!BBH", 4, 3, len(signature)) + signature
        listed = struct.pack("!HH", len(one) + 2, len(one)) + one
        assert len(listed) < 128  # one byte of length in DER
        return b"\4" + bytes([len(listed)]) + listed

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: Any, life: datetime.timedelta
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - datetime.timedelta(minutes=1))
            .not_valid_after(self.now + life)
        )


def usage(**given: bool) -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: given.get(name, False) for name in names})


def compact(value: Any) -> bytes:
    """JSON of sorted keys: for these values the canonical form (RFC 8785)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
