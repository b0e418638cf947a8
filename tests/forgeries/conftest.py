"""Wheels, environments and certificates that forgeries begin with, each made once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode puts no folder of tests there

import sources
import wheels


def pytest_ignore_collect(collection_path, config):
    """They take minutes, of wheels and of certifying: they run where a command names them."""
    given = (*config.args, *config.invocation_params.args)
    return None if any("forgeries" in str(word) for word in given) else True


@pytest.fixture(scope="session")
def room(tmp_path_factory):
    return tmp_path_factory.mktemp("forgeries")


@pytest.fixture(scope="session")
def env(room):
    """An environment with the wheels of this tree and of three small packages."""
    extra = [
        getattr(sources, name)(room / "src" / name) for name in ("acme", "other_kernels", "sloppy")
    ]
    ours = [wheels.ROOT / name for name in wheels.OURS]
    return wheels.make(room / "env", wheels.build(room / "wheels", [*ours, *extra]))


@pytest.fixture(scope="session")
def keys(room):
    """Private and public PEM files: of the vendor, and of a forger."""

    def make(name):
        key = Ed25519PrivateKey.generate()
        private, public = room / f"{name}.pem", room / f"{name}.pub"
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        info = PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, info))
        return private, public

    return {name: make(name) for name in ("vendor", "forger")}


def certificate(env, name, level, key=None):
    """Runs certify there, and gives the file."""
    file = env.path / f"{name}-{level}.json"
    words = ["--sign", str(key)] if key else []
    done = env.run("certify", name, "--level", level, "--output", str(file), *words)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return file


@pytest.fixture(scope="session")
def signed(env, keys):
    """The cpu adapter's at L1, signed by the vendor."""
    return certificate(env, "cpu", "L1", keys["vendor"][0])


@pytest.fixture(scope="session")
def with_library(env):
    """The acme adapter's at L1: a library was loaded, and a kernel is another package's."""
    return certificate(env, "acme", "L1")


@pytest.fixture(scope="session")
def failing(env):
    """The sloppy adapter's at L0, of which a case fails."""
    file = certificate(env, "sloppy", "L0")
    assert json.loads(file.read_text())["counts"]["fail"]
    return file
