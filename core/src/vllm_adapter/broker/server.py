"""How the real vLLM server is started: its command line, and what the environment must have.

Nothing of vLLM is changed or imported. What an installation lacks is added beside it, and said.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vllm_adapter.broker.vllm_install import VllmInstall
from vllm_adapter.discovery.probe import cache as probe_cache
from vllm_adapter.errors import InputError
from vllm_adapter.files import write_atomic

MODULE: Final = "vllm.entrypoints.cli.main"
"""What the console script `vllm` calls.

# upstream: vllm@0.32 pyproject.toml [project.scripts]
"""
_SECRET_FLAGS: Final = ("--api-key", "--hf-token")


@dataclass(frozen=True, slots=True)
class Launch:
    """A server about to start: `environment` is only what is added or changed."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """`argv` with the values of secret flags covered."""
        covered: list[str] = []
        for word in self.argv:
            flag, equals, _ = word.partition("=")
            if covered and covered[-1] in _SECRET_FLAGS:
                covered.append("***")
            else:
                covered.append(f"{flag}=***" if equals and flag in _SECRET_FLAGS else word)
        return tuple(covered)

    @property
    def line(self) -> str:
        """The `vllm serve` line that this start stands for."""
        return shlex.join(["vllm", *self.shown[3:]])

    @property
    def shell(self) -> str:
        """The whole command with its environment, for a POSIX shell."""
        pairs = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*pairs, shlex.join(self.shown)])


def launch(
    model: str,
    flags: Sequence[str],
    vllm: VllmInstall,
    variables: Mapping[str, str] | None = None,
) -> Launch:
    """The start of `vllm serve MODEL FLAGS`; makes the missing metadata where it is needed.

    `variables` are for its environment, beside what the installation lacks.

    Raises:
        InputError: vLLM's version is unknown.
        OSError: not even the temporary folder can be written.
    """
    environment: dict[str, str] = dict(variables or {})
    notes: list[str] = []
    if vllm.lacks_distribution:
        folder = _metadata(vllm)
        path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        notes.append(
            f"this vLLM is installed as {vllm.distribution}, and its command asks for the version "
            "of a distribution named vllm, which would end it with PackageNotFoundError; "
            f"the folder {folder} holds that name and version; nothing of vLLM is changed [VA5003]"
        )
    argv = (sys.executable, "-m", MODULE, "serve", model, *flags)
    return Launch(argv, environment, tuple(notes))


def _metadata(vllm: VllmInstall) -> Path:
    """A folder with metadata that names this vLLM `vllm`; of another version there is another."""
    if vllm.version is None:
        raise InputError(
            f"the vLLM in {vllm.folder} belongs to no installed distribution, so that its version "
            "is unknown",
            hint="install vLLM with pip",
        )
    # vLLM's CPU platform is recognised by "cpu" in the version of `vllm`.
    local = "" if "+" in vllm.version or vllm.build != "cpu" else "+cpu"
    version = f"{vllm.version}{local}"
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    base = probe_cache.folder()
    try:
        if base is None:
            raise OSError("no home folder")
        return _named(base / f"name-of-vllm-{version}", version, text)
    except (OSError, InputError):  # a home that cannot be written: a new folder for each start
        return _named(Path(tempfile.mkdtemp(prefix="vllm-adapter-name-")), version, text)


def _named(folder: Path, version: str, text: str) -> Path:
    info = folder / f"vllm-{version}.dist-info"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError("others may write what Python is about to read")
    info.mkdir(mode=0o700, exist_ok=True)
    write_atomic(info / "METADATA", text)
    return folder
