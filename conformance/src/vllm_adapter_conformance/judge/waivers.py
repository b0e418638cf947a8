"""Waivers: failures that the suite accepts for a while. They ship with the suite alone.

`waivers.json` is a list of objects: `rule`, `case` (a glob over case ids), `adapter`, `issue` (the
address that tracks it), `expires` (YYYY-MM-DD) and optionally `reason`. A waiver that has
expired covers nothing any more; a case that passes though it is waived fails, so that waivers
cannot outlive their cause.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any, Final

from vllm_adapter.errors import InputError

_KEYS: Final = frozenset({"rule", "case", "adapter", "issue", "expires"})
_ADDRESS: Final = re.compile(r"https://\S+\Z")


@dataclass(frozen=True, slots=True)
class Waiver:
    """One accepted failure of one adapter."""

    rule: str
    case: str
    adapter: str
    issue: str
    expires: datetime.date
    reason: str | None = None

    def covers(self, rule: str, case: str) -> bool:
        """Whether it is about this case."""
        return self.rule == rule and fnmatchcase(case, self.case)

    def to_json(self) -> dict[str, Any]:
        """As a certificate shows it."""
        return {"issue": self.issue, "expires": self.expires.isoformat(), "reason": self.reason}


def shipped() -> list[Waiver]:
    """The suite's own waivers."""
    return parse(shipped_raw())


def shipped_raw() -> Any:
    """`waivers.json` as it is."""
    text = resources.files(__package__).joinpath("waivers.json").read_text(encoding="utf-8")
    return json.loads(text)


def parse(raw: Any) -> list[Waiver]:
    """Reads the file's content.

    Raises:
        InputError: a waiver that is not complete, or without a day or an address.
    """
    found = []
    for number, entry in enumerate(raw):
        try:
            unknown = set(entry) - _KEYS - {"reason"}
            if unknown or not _KEYS <= set(entry) or not _ADDRESS.match(entry["issue"]):
                raise ValueError(f"its keys are {sorted(entry)}, its issue {entry.get('issue')!r}")
            expires = datetime.date.fromisoformat(entry["expires"])
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"waiver {number} of the suite cannot be read: {error}",
                hint=f"give {', '.join(sorted(_KEYS))}; the issue is an https address",
            ) from None
        found.append(Waiver(**{**entry, "expires": expires}))
    return found


def check(waivers: Iterable[Waiver], rules: Collection[str]) -> None:
    """Refuses a waiver of a rule that there is not.

    Raises:
        InputError: it names the rule.
    """
    for waiver in waivers:
        if waiver.rule not in rules:
            raise InputError(
                f"a waiver of {waiver.adapter} names the rule {waiver.rule}, which there is not",
                hint="remove it from waivers.json, or correct the rule's id",
            )


def find(waivers: Sequence[Waiver], adapter: str, rule: str, case: str) -> Waiver | None:
    """The waiver of a case; the one that lasts longest, of several."""
    able = [w for w in waivers if w.adapter == adapter and w.covers(rule, case)]
    return max(able, key=lambda waiver: waiver.expires, default=None)


def faults(
    document: Mapping[str, Any], waivers: Sequence[Waiver], today: datetime.date
) -> Iterator[str]:
    """What is wrong with the waivers that a certificate shows: a sentence for each.

    `waivers` are those of its suite. One that is none of them covers nothing; one that had
    expired at the run, or has by now, neither: the failure counts again. The document keeps its
    schema.
    """
    adapter, day = document["adapter"]["name"], document["created"][:10]
    for rule in document["rules"]:
        for case in rule["cases"]:
            shown, item = case["waiver"], f"{rule['rule']}[{case['case']}]"
            if (shown is not None) != (case["outcome"] == "waived"):
                yield f"{item} is {case['outcome']}, and its waiver differs"
            if shown is None:
                continue
            known = any(
                w.adapter == adapter
                and w.covers(rule["rule"], case["case"])
                and (w.issue, w.expires.isoformat()) == (shown["issue"], shown["expires"])
                for w in waivers
            )
            if not known:
                yield f"the waiver of {item} ({shown['issue']}) is none of its suite's"
            elif shown["expires"] < max(day, today.isoformat()):
                yield f"the waiver of {item} ({shown['issue']}) expired on {shown['expires']}"
