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

from vllm_adapter import probe_cache
from vllm_adapter.errors import InputError
from vllm_adapter.files import write_atomic
from vllm_adapter.vllm_install import VllmInstall

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


def launch(model: str, flags: Sequence[str], vllm: VllmInstall) -> Launch:
    """The start of `vllm serve MODEL FLAGS`; makes the missing metadata where it is needed.

    Raises:
        InputError: vLLM's version is unknown, or no folder can be written for the metadata.
    """
    environment: dict[str, str] = {}
    notes: list[str] = []
    if vllm.name_trap:
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
    bases = [probe_cache.folder(), Path(tempfile.gettempdir(), f"vllm-adapter-{os.getuid()}")]
    for base in filter(None, bases):
        info = base / f"name-of-vllm-{version}" / f"vllm-{version}.dist-info"
        try:
            info.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(info):
                continue
            write_atomic(info / "METADATA", text)
        except (OSError, InputError):
            continue
        return info.parent
    raise InputError(
        "the vllm command of this wheel needs a folder with its name, and neither the cache nor "
        "the temporary folder can be written",
        hint="set XDG_CACHE_HOME to a folder that can be written",
    )


def _is_ours(folder: Path) -> bool:
    """A folder on Python's path must be nobody else's: the temporary folder is open to all."""
    found = folder.parent.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022
