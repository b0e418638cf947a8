"""Wheels of this tree in an environment of a test's own, where pip installed them.

Torch and what else is not ours comes from the environment that runs the tests, by a path that is
put behind the wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("schemas", "vendors", "core", "doctor", "conformance", "adapters/cpu")
HERE = Path(sysconfig.get_path("purelib"))
_MAIN = "import sys; from vllm_adapter.cli.main import main; sys.exit(main(sys.argv[1:]))"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def build(folder: Path, sources: Iterable[Path]) -> list[Path]:
    """Builds the wheels of source folders, without a network."""
    words = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*PIP, *words, *map(str, sources)], check=True)
    return sorted(folder.glob("*.whl"))


@dataclass(frozen=True)
class Env:
    """One environment with our wheels."""

    path: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    @property
    def site(self) -> Path:
        """Its site-packages."""
        (found,) = self.path.glob("lib/python3*/site-packages")
        return found

    def install(self, wheels: Iterable[Path]) -> None:
        """By pip, which writes RECORD and compiles."""
        words = [*PIP, "--python", str(self.python), "install", "--no-deps", "--no-index"]
        subprocess.run([*words, "--force-reinstall", *map(str, wheels)], check=True)

    def copy(self, to: Path) -> Env:
        """The same elsewhere; nothing in it knows its own place."""
        shutil.copytree(self.path, to, symlinks=True)
        return Env(to)

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """`vllm-adapter *words` there."""
        cache = str(self.path / "cache")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VA_", "PYTHON"))}
        for _ in range(4):
            done = subprocess.run(
                [str(self.python), "-c", _MAIN, *words],
                env=kept | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache} | variables,
                cwd=self.path,
                capture_output=True,
                text=True,
                timeout=900,
            )
            if "its probe gave no answer" not in done.stderr:
                break
            shutil.rmtree(cache, ignore_errors=True)  # a busy machine: it is asked again
        return done


def make(path: Path, wheels: Iterable[Path]) -> Env:
    """An environment with those wheels."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    env = Env(path)
    (env.site / "zz_the_rest.pth").write_text(f"{HERE}\n", encoding="utf-8")
    env.install(wheels)
    return env
