"""Who registered what for our operators, as torch has it: foreign registrations are found here."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from vllm_adapter.errors import AdapterError

NAMESPACE: Final = "vllm_adapter"
ADAPTERS: Final = "vllm_adapter.adapters"
_LINE: Final = re.compile(r"^([\w \[\]()]+?): registered at (.+?)(?: :: .*)?$", re.MULTILINE)
_DEFINED: Final = "debug"
"""torch's word before the place where an operator was defined."""
_CORE: Final = Path(__file__).parents[2]
_TORCH: Final = Path(torch.__file__).parent


@dataclass(frozen=True, slots=True)
class ForeignRegistration:
    """One registration that core did not make. `place` is a file and line, as torch wrote it."""

    qualified: str
    key: str
    place: str

    def __str__(self) -> str:
        what = "defined" if self.key == _DEFINED else f"given a kernel for {self.key}"
        return f"{NAMESPACE}::{self.qualified} was {what} by {self.who}"

    @property
    def who(self) -> str:
        """The adapter whose file it is, or the file; where torch hides it, who names the name."""
        file = self.place.rpartition(":")[0]
        if Path(file).is_relative_to(_TORCH):
            files = _naming(self.qualified.partition(".")[0])
            named = " or ".join(f"{_owner(f)}{f}" for f in files) or "an unknown module"
            return f"{named}, by a short form of torch.library"
        return f"{_owner(file)}{self.place}"


def foreign(names: Iterable[str], ours: str) -> list[ForeignRegistration]:
    """Registrations for these operators that were not made in the file `ours`."""
    found = []
    for name in names:
        for key, place in _LINE.findall(torch._C._dispatch_dump(f"{NAMESPACE}::{name}")):
            if place.rpartition(":")[0] != ours:
                found.append(ForeignRegistration(name, key.replace("[alias]", ""), place))
    return found


def refuse(found: list[ForeignRegistration]) -> None:
    """Raises AdapterError where anything was found; says all of it."""
    if found:
        raise AdapterError(
            f"{'; '.join(map(str, found))}: operators of this namespace are core's to register, "
            "and torch would run that in place of the adapter that is named",
            hint="uninstall it, or let it name its kernels in its own descriptor, as `run`",
        )


def _owner(file: str) -> str:
    """The adapter that a loaded file belongs to, in words that precede the file's name."""
    from vllm_adapter.discovery.distributions import entry_points

    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == file:
            package = name.partition(".")[0]
            for point in entry_points(ADAPTERS):
                if point.value == package:
                    return f"adapter {point.name} ({point.distribution}), "
            return ""
    return ""


def _naming(op: str) -> list[str]:
    """The loaded files, neither ours nor torch's, whose text names an operator of ours."""
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        if Path(file).is_relative_to(_CORE) or Path(file).is_relative_to(_TORCH):
            continue
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if f"{NAMESPACE}::{op}" in text:
            found.append(file)
    return sorted(set(found))
