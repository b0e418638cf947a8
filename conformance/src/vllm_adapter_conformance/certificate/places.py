"""What a file on this machine is, by where it lies: the system's, made in a run, or somebody's."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from functools import cache
from typing import Final

from vllm_adapter_conformance.certificate.records import place

_SYSTEM: Final = ("/lib/", "/lib32/", "/lib64/", "/usr/lib/", "/usr/lib32/", "/usr/lib64/")
"""Where the operating system's own packages put libraries, its drivers' among them."""
_DEBIAN: Final = "/usr/lib/python3/dist-packages/"
"""Python packages of the operating system, which have no RECORD."""
_SITES: Final = ("site-packages", "dist-packages")
_CACHES: Final[tuple[tuple[str, str], ...]] = (
    ("TORCHINDUCTOR_CACHE_DIR", "{temporary}/torchinductor_[^/]+"),
    ("TRITON_CACHE_DIR", "{home}/\\.triton/cache"),
    ("TORCH_EXTENSIONS_DIR", "{home}/\\.cache/torch_extensions"),
)
"""Where torch and Triton keep what they compile, by the variable that moves it."""


def is_python(path: str) -> bool:
    """Whether it is imported by name or as a module's code."""
    return path.endswith((".py", ".pyc", ".zip", ".egg"))


def in_site(path: str) -> bool:
    """Whether it lies among installed packages."""
    return any(f"{os.sep}{site}{os.sep}" in path for site in _SITES)


def is_system(path: str) -> bool:
    """Whether it is the interpreter's, its standard library's or the operating system's."""
    if path.startswith(_DEBIAN):
        return True
    if in_site(path):
        return False
    if any(path.startswith(folder + os.sep) for folder in _standard_library()):
        return True
    name = os.path.basename(path)
    if path == os.path.realpath(sys.executable) or re.fullmatch(r"libpython3[.\w]*", name):
        return True
    return not is_python(path) and path.startswith(_SYSTEM)


def is_generated(path: str) -> bool:
    """Whether it was compiled on this machine, as kernels of Triton and of inductor are."""
    moved = tuple(os.environ.get(variable) for variable, _ in _CACHES)
    return any(pattern.match(path) for pattern in _generated(moved))


def existing(path: str) -> str | None:
    """The file itself, or the archive that a path leads into; None where nothing is there."""
    while not os.path.isfile(path):
        above = os.path.dirname(path)
        if os.path.isdir(path) or above == path:
            return None
        path = above
    return path


@cache
def _standard_library() -> tuple[str, ...]:
    real = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}  # not the venv's
    return tuple({place(sysconfig.get_path(k, vars=real)) for k in ("stdlib", "platstdlib")})


@cache
def _generated(moved: tuple[str | None, ...]) -> tuple[re.Pattern[str], ...]:
    """`moved` are the values of the variables of _CACHES; the usual folders count beside them."""
    home, temporary = (
        re.escape(os.path.realpath(one))
        for one in (os.path.expanduser("~"), tempfile.gettempdir())
    )
    folders = [usual.format(home=home, temporary=temporary) for _, usual in _CACHES]
    folders += [re.escape(os.path.realpath(given)) for given in moved if given]
    return tuple(re.compile(f"{folder}/") for folder in folders)
