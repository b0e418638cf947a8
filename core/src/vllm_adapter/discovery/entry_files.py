"""Files of entry points that Python's own reader cannot read, and what they do to torch.

`import torch` asks every installed distribution for entry points of its group `torch.backends`.
Python's importlib.metadata reads those files without any care: one that is not UTF-8, has a line
without `=`, or leads to a pipe ends the import of torch, or hangs it, for everybody. torch can be
told not to ask; what no adapter's manifest needs (`torch_module` names what it needs) is lost.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vllm_adapter.discovery.distributions import folder_name
from vllm_adapter.files import PACKAGE_BYTES, read_bounded, shown

AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch asks for `torch.backends` unless this has another value than 1."""
_FORGIVEN: Final = frozenset(
    {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM}
)
"""What importlib.metadata takes for a distribution without entry points."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A distribution whose entry points no program can ask for; `why` ends "its file ..."."""

    distribution: str
    file: Path
    why: str

    def __str__(self) -> str:
        return (
            f"{self.distribution}: its entry_points.txt {self.why}, so that Python cannot list "
            "entry points and `import torch` fails or hangs"
        )


def unreadable() -> list[Unreadable]:
    """Every distribution on the path whose file of entry points ends whoever reads them all."""
    from importlib_metadata import distributions

    found: list[Unreadable] = []
    seen: set[str] = set()
    for distribution in distributions():
        folder = getattr(distribution, "_path", None)
        name = folder_name(distribution)
        if not isinstance(folder, Path) or name in seen:  # the first on the path is read
            continue
        seen.add(name)
        file = folder / "entry_points.txt"
        if why := _fault(file):
            found.append(Unreadable(name, file, why))
    return found


def let_torch_be_imported() -> None:
    """Before torch is imported in a process of ours: it does not ask, where asking would end it.

    An environment variable, so that the processes that this one starts are spared too.
    """
    if "torch" not in sys.modules and os.environ.get(AUTOLOAD, "1") == "1" and unreadable():
        os.environ[AUTOLOAD] = "0"


def _fault(file: Path) -> str:
    """What ends importlib.metadata on a file; empty where it reads it, or passes it over."""
    try:
        content = read_bounded(file, PACKAGE_BYTES, cut=True)
    except OSError as error:
        if error.errno in _FORGIVEN:
            return ""
        return f"cannot be read ({error.strerror})"
    cut = len(content) == PACKAGE_BYTES
    try:
        text = content.decode("utf-8", "ignore" if cut else "strict")
    except ValueError:
        return "is not UTF-8 text"
    lines = list(_without_value(text))
    if lines and not (cut and text.endswith(lines[0])):
        return f"has the line {shown(lines[0])}, without an equals sign"
    return ""


def _without_value(text: str) -> Iterator[str]:
    """Lines inside a section that are no `name = value`."""
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            inside = True
        elif inside and line and not line.startswith("#") and "=" not in line:
            yield line
