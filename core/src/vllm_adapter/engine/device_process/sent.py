"""Modules whose texts were sent here: their own files need not be found by this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import CodeType, ModuleType


def install(package: str, sources: Mapping[str, str]) -> None:
    """Lets `package.NAME` be imported for each name; they name each other relatively."""
    if not any(isinstance(f, _Sent) and f.package == package for f in sys.meta_path):
        sys.meta_path.insert(0, _Sent(package, sources))


class _Sent(MetaPathFinder, InspectLoader):
    def __init__(self, package: str, sources: Mapping[str, str]) -> None:
        self.package = package
        self._texts = {f"{package}.{name}": text for name, text in sources.items()}
        self._texts[package] = ""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in self._texts:
            return None
        return spec_from_loader(fullname, self, is_package=fullname == self.package)

    def get_source(self, fullname: str) -> str:
        return self._texts[fullname]

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._texts[fullname], f"{fullname}.py", "exec", dont_inherit=True)
