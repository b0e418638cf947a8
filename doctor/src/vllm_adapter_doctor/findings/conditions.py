"""Conditions of rules over the facts of a box: the words that a file of findings may use.

A table of words holds where each of them holds; a word with several values, where one of them
does. `not` turns a table round, `any` takes a list of tables, `is` names a table of
`[conditions.NAME]` in any file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from vllm_adapter.contract.codes import documents, fault
from vllm_adapter.hostfacts.vendor_files import once
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.searched import compiled

NONE: Final = "none"
ANY: Final = "any"


def _among(value: str, there: frozenset[str] | set[str]) -> bool:
    if value in (NONE, ANY):
        return bool(there) is (value == ANY)
    return value in there


def _one(value: str | None) -> frozenset[str]:
    return frozenset(filter(None, (value,)))


def _errors(box: ExaminedHost, pattern: str) -> bool:
    return any(
        compiled(pattern).search(error)
        for one in box.facts.accelerators
        for error in one.health.errors
    )


_WORDS: Final[Mapping[str, Callable[[ExaminedHost, str], bool]]] = {
    # the box may be for this vendor: nothing says that it is for others alone
    "vendor": lambda box, name: box.may_be_vendor(name),
    # a device of this vendor is here, those of a processor left out; "none", "any"
    "device": lambda box, name: _among(name, box.vendors),
    # the same, those of a processor counted
    "accelerator": lambda box, name: _among(name, {one.vendor for one in box.facts.accelerators}),
    # the runtime beside CUDA that torch or its plug-in is for; "none", "any"
    "runtime": lambda box, name: _among(name, _one(box.other_runtime)),
    # what torch is built for: "cuda", "rocm", "xpu", "cpu"; "none", "any"
    "build": lambda box, name: _among(name, box.builds),
    # the platform that vLLM says it took; "none"
    "platform": lambda box, name: _among(
        name, _one(box.facts.vllm.platform if box.facts.vllm else None)
    ),
    # the release of vLLM, by a pattern
    "vllm": lambda box, pattern: bool(
        compiled(pattern).search((box.facts.vllm and box.facts.vllm.version) or "")
    ),
    # "Linux", "Windows", "Darwin"
    "system": lambda box, name: box.facts.os.name == name,
    # where the system runs: "wsl", "container", "android", ...
    "environment": ExaminedHost.runs_under,
    # a Python package is installed
    "package": lambda box, name: box.facts.package(name) is not None,
    # a driver or toolkit is reported, by its component
    "driver": lambda box, name: box.facts.driver(name) is not None,
    # a variable has this value: "NAME=value"
    "variable": lambda box, pair: (
        box.facts.variable(pair.partition("=")[0]) == pair.partition("=")[2]
    ),
    # a variable is set, to whatever
    "variable_set": lambda box, name: box.facts.variable(name) is not None,
    # the processor has this feature
    "cpu_flag": lambda box, name: name in box.facts.cpu.flags,
    # a tool whose name starts so lists a device
    "listed_by": lambda box, name: any(
        one.source.startswith(name) for one in box.facts.accelerators
    ),
    # a tool or the kernel's log tells an error of a device, by a pattern
    "device_error": _errors,
    # a tool gives a reason why a device is held down, by a pattern
    "held_down_by": lambda box, pattern: any(
        compiled(pattern).search(reason)
        for one in box.facts.accelerators
        for reason in one.health.throttle_reasons
    ),
    # a line of the report, by a pattern
    "says": lambda box, pattern: box.has_line(pattern),
}
WORDS: Final = frozenset(_WORDS)


@dataclass(frozen=True, slots=True)
class FactCondition:
    """A table of words, read."""

    words: tuple[tuple[str, tuple[str, ...]], ...] = ()
    no: FactCondition | None = None
    any: tuple[FactCondition, ...] = ()
    named: str = ""

    def holds(self, box: ExaminedHost) -> bool:
        """Whether it is so on this box."""
        return (
            all(any(_WORDS[word](box, one) for one in values) for word, values in self.words)
            and (self.no is None or not self.no.holds(box))
            and (not self.any or any(one.holds(box) for one in self.any))
            and (not self.named or named(self.named).holds(box))
        )


ALWAYS: Final = FactCondition()


def read(table: Any, where: str) -> FactCondition:
    """A condition of a file.

    Raises:
        InputError: an unknown word, or a value that is not a text or a list of texts.
    """
    if not isinstance(table, Mapping) or not table:
        raise fault(where, "a table of conditions", table)
    words = []
    for word, value in table.items():
        if word in ("not", "any", "is"):
            continue
        if word not in _WORDS:
            raise fault(where, f"one of {', '.join(sorted(_WORDS))}, not, any, is", word)
        values = (value,) if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
            raise fault(f"{where}.{word}", "a text, or a list of texts", value)
        words.append((word, tuple(values)))
    tables = table.get("any", [])
    if not isinstance(tables, list):
        raise fault(f"{where}.any", "a list of tables", tables)
    known = table.get("is", "")
    if known and known not in _tables():
        raise fault(f"{where}.is", f"one of {', '.join(sorted(_tables()))}", known)
    return FactCondition(
        tuple(words),
        read(table["not"], f"{where}.not") if "not" in table else None,
        tuple(read(one, f"{where}.any") for one in tables),
        known,
    )


@cache
def named(name: str) -> FactCondition:
    """The condition that a file gives this name."""
    where, table = _tables()[name]
    return read(table, where)


@once
def _tables() -> Mapping[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for kind, document in documents().items():
        for name, table in document.get("conditions", {}).items():
            if name in found:
                raise fault(f"{kind}.toml, conditions.{name}", "a name once in all files", name)
            found[name] = (f"{kind}.toml, conditions.{name}", table)
    return found
