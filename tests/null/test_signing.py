"""Signatures: by Ed25519 keys of usual files, and by identities of a root of trust made here."""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from sigstore_root import Root

from vllm_adapter.cli.main import main
from vllm_adapter.errors import CertificateError, InputError
from vllm_adapter_conformance.certificate import signing, signing_sigstore, statement
from vllm_adapter_conformance.cli.sign import signer

pytestmark = pytest.mark.null

PEM, SSH = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
PLAIN = serialization.NoEncryption()
DOCUMENT = {
    "adapter": {"name": "acme", "dist": "vllm-adapter-acme", "version": "1.0"},
    "level_reached": "L2",
    "grade": "release",
    "badge": "L2",
    "digest": "0" * 64,
}
WHO, ISSUER = "vendor@example.org", "https://issuer.example"


def private_file(path, key, form=serialization.PrivateFormat.PKCS8, secret=PLAIN):
    path.write_bytes(key.private_bytes(PEM, form, secret))
    return path


def public_file(path, key, *, ssh=False):
    form = serialization.PublicFormat
    words = (
        (serialization.Encoding.OpenSSH, form.OpenSSH) if ssh else (PEM, form.SubjectPublicKeyInfo)
    )
    path.write_bytes(key.public_key().public_bytes(*words))
    return path


@pytest.fixture
def file(tmp_path):
    """A certificate's file; what a signature is over are its bytes and a few claims."""
    path = tmp_path / "acme-L2.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


@pytest.mark.parametrize("ssh", [False, True])
def test_a_key_signs_and_its_public_half_checks(file, tmp_path, ssh):
    key = Ed25519PrivateKey.generate()
    form = SSH if ssh else serialization.PrivateFormat.PKCS8
    private = signing.private_key(private_file(tmp_path / "key", key, form))
    public = signing.public_key(public_file(tmp_path / "key.pub", key, ssh=ssh))
    assert signing.sign(file, DOCUMENT, private) == file.with_name("acme-L2.json.sig")
    assert signing.signature_faults(file, DOCUMENT, public) == []
    envelope = json.loads(file.with_name("acme-L2.json.sig").read_text())
    assert envelope["signatures"][0]["keyid"] == signing.fingerprint(public)
    made = json.loads(base64.b64decode(envelope["payload"]))
    assert made["subject"][0]["name"] == "acme-L2.json"
    assert made["_type"] == "https://in-toto.io/Statement/v1"


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_the_commands_of_the_documents_make_a_key(file, tmp_path):
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)

    openssl("genpkey", "-algorithm", "ed25519", "-out", "key.pem")
    openssl("pkey", "-in", "key.pem", "-pubout", "-out", "key.pub")
    signing.sign(file, DOCUMENT, signing.private_key(tmp_path / "key.pem"))
    public = signing.public_key(tmp_path / "key.pub")
    assert signing.signature_faults(file, DOCUMENT, public) == []
    openssl("pkey", "-in", "key.pem", "-aes256", "-passout", "pass:x", "-out", "locked.pem")
    with pytest.raises(InputError, match=r"locked\.pem is encrypted"):
        signing.private_key(tmp_path / "locked.pem")


@pytest.mark.parametrize("content", [b"", b"ssh-ed25519 AAAA", b"-----BEGIN PRIVATE KEY-----\n"])
def test_what_is_no_key_is_named(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(InputError, match="no Ed25519 private key"):
        signing.private_key(path)
    with pytest.raises(InputError, match="key is "):
        signing.public_key(path)


def test_a_key_of_another_kind_is_refused(tmp_path):
    other = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(InputError, match="no Ed25519 private key"):
        signing.private_key(private_file(tmp_path / "key", other))
    with pytest.raises(InputError, match="no Ed25519 key"):
        signing.public_key(public_file(tmp_path / "key.pub", other))
    own = private_file(tmp_path / "own", Ed25519PrivateKey.generate())
    with pytest.raises(InputError, match="give its public half"):
        signing.public_key(own)


@given(at=st.integers(0), byte=st.integers(1, 255))
def test_any_other_byte_of_the_file_is_another_file(tmp_path_factory, at, byte):
    path = tmp_path_factory.mktemp("signed") / "acme-L2.json"
    content = json.dumps(DOCUMENT).encode()
    path.write_bytes(content)
    key = Ed25519PrivateKey.generate()
    signing.sign(path, DOCUMENT, key)
    changed = bytearray(content)
    changed[at % len(content)] ^= byte
    path.write_bytes(bytes(changed))
    assert signing.signature_faults(path, DOCUMENT, key.public_key())


@given(
    raw=st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["payloadType", "payload", "signatures", "sig"]), inner, max_size=4
            )
        ),
    )
)
def test_an_envelope_of_anybody_s_is_a_fault_and_no_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("signed") / "acme-L2.json"
    path.write_text(json.dumps(DOCUMENT))
    signing.signature_file(path).write_text(json.dumps(raw))
    assert signing.signature_faults(path, DOCUMENT, Ed25519PrivateKey.generate().public_key())


def test_other_claims_than_the_certificate_s_are_a_fault(file):
    key = Ed25519PrivateKey.generate()
    signing.sign(file, DOCUMENT | {"badge": "L3"}, key)
    (fault,) = signing.signature_faults(file, DOCUMENT, key.public_key())
    assert "other claims" in fault


def test_a_missing_library_is_named(file, tmp_path, monkeypatch):
    key = private_file(tmp_path / "key", Ed25519PrivateKey.generate())
    for name in ("cryptography.hazmat.primitives", "sigstore"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CertificateError, match="need the package cryptography") as caught:
        signing.private_key(key)
    assert "vllm-adapter-conformance[sign]" in caught.value.hint
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CertificateError, match="need the package sigstore"):
        signing_sigstore.bundle_faults(file, DOCUMENT, WHO, ISSUER, None)


@pytest.fixture(scope="module")
def root():
    return Root()


@pytest.fixture
def trusted(root, tmp_path):
    return root.write(tmp_path / "root.json")


def bundled(root, file, document=DOCUMENT, kind=statement.PAYLOAD):
    payload = statement.encoded(statement.statement_of(file, document))
    made = root.bundle(payload, kind, WHO, ISSUER)
    signing_sigstore.bundle_file(file).write_text(json.dumps(made))
    return made


def test_a_bundle_is_checked_without_a_network(file, root, trusted):
    bundled(root, file)
    assert signing_sigstore.bundle_faults(file, DOCUMENT, WHO, ISSUER, trusted) == []


@pytest.mark.parametrize(
    ("who", "issuer", "said"),
    [("forger@example.org", ISSUER, "do not match"), (WHO, "https://other.example", "issuer")],
)
def test_a_bundle_of_another_identity_is_refused(file, root, trusted, who, issuer, said):
    bundled(root, file)
    (fault,) = signing_sigstore.bundle_faults(file, DOCUMENT, who, issuer, trusted)
    assert said in fault.lower()


def test_a_bundle_of_another_root_is_refused(file, root, trusted):
    bundled(Root(), file)
    (fault,) = signing_sigstore.bundle_faults(file, DOCUMENT, WHO, ISSUER, trusted)
    assert "does not show the signature" in fault


def test_a_file_that_was_edited_is_not_the_bundle_s(file, root, trusted):
    bundled(root, file)
    file.write_text(file.read_text() + " ")
    (fault,) = signing_sigstore.bundle_faults(file, DOCUMENT, WHO, ISSUER, trusted)
    assert "of another file" in fault


def change(made, *keys, value):
    for key in keys[:-1]:
        made = made[key]
    made[keys[-1]] = value


ENTRY = ("verificationMaterial", "tlogEntries", 0)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("dsseEnvelope", "payload"), base64.b64encode(b"{}").decode()),
        (("dsseEnvelope", "signatures"), []),
        ((*ENTRY, "integratedTime"), "1"),
        ((*ENTRY, "inclusionProof", "rootHash"), base64.b64encode(b"0" * 32).decode()),
        ((*ENTRY, "canonicalizedBody"), base64.b64encode(b"{}").decode()),
        (("verificationMaterial", "tlogEntries"), []),
        (("mediaType",), "text/plain"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_a_bundle_that_was_changed_is_refused(file, root, trusted, keys, value):
    made = bundled(root, file)
    change(made, *keys, value=value)
    signing_sigstore.bundle_file(file).write_text(json.dumps(made))
    assert signing_sigstore.bundle_faults(file, DOCUMENT, WHO, ISSUER, trusted)


def test_a_payload_of_another_type_is_refused(file, root, trusted):
    bundled(root, file, kind="text/plain")
    assert signing_sigstore.bundle_faults(file, DOCUMENT, WHO, ISSUER, trusted)


def test_a_root_of_trust_that_is_none_is_an_input_error(file, root, tmp_path):
    bundled(root, file)
    for content in ("", "{}", "[]"):
        path = tmp_path / "none.json"
        path.write_text(content)
        with pytest.raises(InputError, match="root of trust"):
            signing_sigstore.bundle_faults(file, DOCUMENT, WHO, ISSUER, path)
    with pytest.raises(InputError, match="root of trust"):
        signing_sigstore.bundle_faults(file, DOCUMENT, WHO, ISSUER, tmp_path / "missing.json")


def test_online_says_when_it_was_not_run(monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("sigstore.models.ClientTrustConfig.production", unreachable)
    with pytest.raises(CertificateError, match="was not asked for a signature, or gave none"):
        signing_sigstore.OnlineSigner()


def test_a_new_certificate_takes_no_old_signature_along(file):
    signing.sign(file, DOCUMENT, Ed25519PrivateKey.generate())
    sign = signer(argparse.Namespace(sign=None, sigstore=False))
    assert sign(file, DOCUMENT) == []
    assert not signing.signature_file(file).exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["certify", "cpu", "--sign", "none.pem"], "cannot read the key none.pem"),
        (["verify", "{file}", "--identity", WHO], "some issuer vouches for"),
        (["verify", "{file}", "--issuer", ISSUER], "who vouches for whom"),
        (["verify", "{file}", "--key", "none.pub"], "cannot read the key none.pub"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(words, said, capsys):
    from pathlib import Path

    shipped = Path(__file__).parents[2] / "docs/certificates/cuda-L3.json"
    assert main([word.format(file=shipped) for word in words]) == 2
    assert said in capsys.readouterr().err
