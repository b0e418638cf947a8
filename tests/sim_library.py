"""Builds C libraries for the tests: the simulated accelerator, and small ones with a fault."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
INCLUDE = ROOT / "core/src/vllm_adapter/engine/runtime/include"
SIM = ROOT / "adapters/sim/csrc"
COMPILER = os.environ.get("CC") or next(
    (n for n in ("gcc", "g++", "cc") if shutil.which(n)), "gcc"
)
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden")


def build(folder: Path, sources: list[Path], *flags: str, name: str = "lib") -> Path:
    """The shared library of some C files, built in `folder` unless it is there already.

    Its name has a digest of all that goes into it, so that an old one is never used.
    """
    digest = hashlib.sha256(f"{COMPILER}{FLAGS}{flags}".encode())
    headers = [*INCLUDE.glob("*.h"), *{h for s in sources for h in s.parent.glob("*.h")}]
    for file in sorted([*sources, *headers]):
        digest.update(file.name.encode() + file.read_bytes())
    target = folder / f"{name}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        draft = target.with_suffix(f".{os.getpid()}.tmp")
        subprocess.run(
            [
                *(COMPILER, *FLAGS, "-shared", f"-I{INCLUDE}", *flags),
                # g++ takes all but the first for C++ without this
                *(word for source in sources for word in ("-x", "c", str(source))),
                *("-x", "none", "-o", str(draft), "-lm", "-lpthread"),
            ],
            check=True,
        )
        draft.replace(target)  # two test processes may build it at once
    return target


def build_sim(folder: Path, *flags: str) -> Path:
    """The simulated accelerator's library."""
    return build(folder, sorted(SIM.glob("*.c")), f"-I{SIM}", *flags, name="libsim")


def changed(folder: Path, libraries: Path, *changes: str) -> Path:
    """The simulated accelerator's library, built in `libraries`, with changes of its source.

    `changes` are a file, what is replaced there and by what; then the next. `folder` is empty.
    """
    texts = {file.name: file.read_text("utf-8") for file in [*SIM.glob("*.c"), *SIM.glob("*.h")]}
    for file, old, new in zip(changes[::3], changes[1::3], changes[2::3], strict=True):
        assert old in texts[file], f"{file} has changed: {old!r} is no longer in it"
        texts[file] = texts[file].replace(old, new)
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    return build(libraries, sorted(folder.glob("*.c")), f"-I{folder}", name="changed")
