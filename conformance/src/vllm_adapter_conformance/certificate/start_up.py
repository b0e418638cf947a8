"""Code that Python runs at the start of each process, before anybody asks for it."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vllm_adapter.files import shown
from vllm_adapter_conformance.certificate.records import Distributions, Hashes, place

MODULES: Final = ("sitecustomize", "usercustomize")
_IMPORTS: Final = ("import ", "import\t")
"""What a line of a .pth begins with that `site` runs.
# upstream: cpython@v3.11.7 Lib/site.py:185"""


@dataclass(frozen=True)
class StartUpCode:
    """One hook: `said` names it, `fault` is why it is of no unchanged distribution."""

    said: str
    fault: str | None = None


def start_up_code(environment: Distributions, hashes: Hashes) -> Iterator[StartUpCode]:
    """sitecustomize, usercustomize, and every .pth of a site folder that imports code."""
    for name in MODULES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            yield StartUpCode(f"{name} ({file})")
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    for folder in dict.fromkeys(place(one) for one in (*site.getsitepackages(), *own)):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            if name.endswith(".pth"):
                yield from _of_path_file(os.path.join(folder, name), environment, hashes)


def _of_path_file(path: str, environment: Distributions, hashes: Hashes) -> Iterator[StartUpCode]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.startswith(_IMPORTS)]
    except OSError:
        return
    if not lines:
        return
    name, owner = os.path.basename(path), environment.owners.get(path)
    if owner is None:
        said = f"{name} runs {shown(lines[0])} and is in no RECORD"
        yield StartUpCode(said, said)
        return
    fault = owner.fault(path, owner.recorded[path], hashes)
    yield StartUpCode(f"{name} of {owner.name} runs {shown(lines[0])}", fault)
