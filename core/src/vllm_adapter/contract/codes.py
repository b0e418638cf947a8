"""The register of VAnnnn codes. `vllm-adapter explain CODE` prints a page, offline.

VA0 manifest, descriptor, certificate and settings; VA1 host; VA2 runtime; VA3 operators and
models; VA4 plan; VA5 vLLM. A code is never reused for something else. The pages are data: the
files `findings/KIND.toml` of vllm-adapter-vendors, which nothing reads before a page is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

from vllm_adapter.errors import InputError

_CODE: Final = re.compile(r"VA\d{4}")
_OPTIONAL: Final = re.compile(r"\[\[.*?\]\]")
_PLACE: Final = re.compile(r"\{(?:box_)?(\w+)\}")
_REQUIRED: Final = ("title", "meaning", "action")
_SENTENCES: Final = ("symptom", "cause", "step")
_LISTS: Final = ("explains", "stops")


@dataclass(frozen=True, slots=True)
class Code:
    """One page: what one sees, what it means, what to do. `symptom` is empty for plain errors.

    A finding of this code is the cause of those that it `explains`: they are not said beside it.
    Where it is an error, no device in its reach is used: `stops` names adapters, "*" for those of
    the box, "product" for devices of the product that it names, "device" for the one it names.
    `causes` are those that rules tell apart, each with whether a real report has fired one yet.
    `cause` and `step` are the sentences of a finding that code makes, with places to be filled.
    """

    code: str
    title: str
    meaning: str
    action: str
    symptom: str = ""
    explains: tuple[str, ...] = ()
    causes: tuple[tuple[str, bool], ...] = ()
    stops: tuple[str, ...] = ()
    cause: str = ""
    step: str = ""

    def page(self) -> str:
        """The page as plain text."""
        symptom = f"What you see: {self.symptom}\n\n" if self.symptom else ""
        causes = "".join(
            f"- {cause}{'' if seen else ' (unseen: no real report has fired this rule)'}\n"
            for cause, seen in self.causes
        )
        reported = f"\nCauses that the doctor distinguishes:\n{causes}" if causes else ""
        return (
            f"{self.code}  {self.title}\n\n{symptom}{self.meaning}\n\n"
            f"What to do: {self.action}\n{reported}"
        )


def fault(where: str, expected: str, seen: object) -> InputError:
    """A file of findings that breaks its own rules: the package's fault, never the user's."""
    return InputError(
        f"findings/{where}: expected {expected}, found {seen!r}",
        hint="the installed vllm-adapter-vendors is damaged or of another release: reinstall it",
    )


def folded(text: str) -> str:
    """Prose of a file in one line: it may be broken there anywhere between words."""
    return " ".join(text.split())


@cache
def documents() -> Mapping[str, Mapping[str, Any]]:
    """The content of each file of findings, by kind.

    Raises:
        InputError: a file is not TOML.
    """
    import tomllib

    from vllm_adapter_vendors import finding_files

    found = {}
    for kind, raw in finding_files():
        try:
            found[kind] = tomllib.loads(raw.decode("utf-8"))
        except ValueError as error:  # not UTF-8, or not TOML
            raise fault(f"{kind}.toml", "a TOML file", str(error)) from error
    return found


def _code(kind: str, code: str, table: Mapping[str, Any], causes: Mapping[str, bool]) -> Code:
    where = f"{kind}.toml, codes.{code}"
    if not _CODE.fullmatch(code):
        raise fault(where, "VA and four digits", code)
    fields = (*_REQUIRED, *_SENTENCES, *_LISTS)
    if unknown := table.keys() - {*fields}:
        raise fault(where, f"no other field than {', '.join(fields)}", unknown)
    found: dict[str, Any] = {name: tuple(table.get(name, ())) for name in _LISTS}
    for name in (*_REQUIRED, *(one for one in _SENTENCES if one in table)):
        if not isinstance(table.get(name), str) or not table[name].strip():
            raise fault(where, f"a text in {name}", table.get(name))
        found[name] = folded(table[name])
    return Code(code, causes=tuple(causes.items()), **found)


def _causes(rule: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """(code, cause, whether a real report has fired it) of each case of a rule."""
    for case in rule.get("cases", (rule,)):
        said = {**rule, **case}
        if not said.get("silent"):
            cause = _PLACE.sub(r"<\1>", _OPTIONAL.sub("", folded(str(said.get("cause", "")))))
            yield str(said.get("code", "")), cause, bool(said.get("seen", True))


class _Register(Mapping[str, Code]):
    """The codes by name, in order; read when the first is asked for."""

    @cached_property
    def _codes(self) -> Mapping[str, Code]:
        causes: dict[str, dict[str, bool]] = {}
        for document in documents().values():
            for rule in document.get("rules", ()):
                for code, cause, seen in _causes(rule):
                    known = causes.setdefault(code, {})
                    known[cause] = known.get(cause, False) or seen
        found: dict[str, Code] = {}
        for kind, document in documents().items():
            for code, table in document.get("codes", {}).items():
                if code in found:
                    raise fault(f"{kind}.toml, codes.{code}", "a code once in all files", code)
                found[code] = _code(kind, code, table, causes.get(code, {}))
        for entry in found.values():
            if unknown := set(entry.explains) - found.keys():
                raise fault(f"{entry.code}.explains", "codes of the register", sorted(unknown))
        return dict(sorted(found.items()))

    def __getitem__(self, code: str) -> Code:
        return self._codes[code]

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)


CODES: Final[Mapping[str, Code]] = _Register()
