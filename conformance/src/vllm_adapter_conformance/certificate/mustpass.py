"""The committed lists of rules that a level needs, and of those its core: hashed, and kept.

`mustpass.json` is this suite's list. `lists/` keeps that of every suite whose certificates are
about, each under the SHA-256 of its text, so that a certificate is judged by its own list.
`core.json` is written by hand: what of a level must have run (`core`, see `claims.core_gaps`), and
why each other rule may have no case (`may_be_absent`).

`python -m vllm_adapter_conformance.certificate.mustpass` writes mustpass.json anew and keeps the
list that it replaces; each list names the one before it, and a test wants the whole chain. With
`--no-certificates` the replaced one is not kept: for a list that never left a branch.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, Final

from vllm_adapter_conformance.base.rule import LEVELS
from vllm_adapter_conformance.judge import waivers
from vllm_adapter_conformance.judge.waivers import Waiver
from vllm_adapter_conformance.plan.suite import NO_CASE

Group = Mapping[str, Sequence[str]]
"""Alternatives by what they are in plain words: one of them must have run."""

_FIRST_PREVIEWS: Final = frozenset({"L0.package.health"})
"""Previews of the suites whose lists did not name them."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class RuleList:
    """What the levels of one suite need.

    `cases` has the rules whose cases are the same for every adapter, run or not declared, with
    their ids; lists of older suites have neither those nor a core.
    """

    rules: Mapping[str, Sequence[str]]
    preview: frozenset[str] = frozenset()
    core: Mapping[str, Sequence[Group]] = field(default_factory=dict)
    cases: Mapping[str, frozenset[str]] = field(default_factory=dict)
    waivers: Sequence[Waiver] = ()
    before: str | None = None
    """SHA-256 of the list before this one."""

    def up_to(self, level: str) -> frozenset[str]:
        """The rules that count for a level and those below it."""
        levels = LEVELS[: LEVELS.index(level) + 1]
        return frozenset(id for one in levels for id in self.rules.get(one, ()))


def committed() -> RuleList:
    """This suite's own list."""
    return _parsed(_text("mustpass.json"))


def committed_sha256() -> str:
    """SHA-256 of this suite's own list."""
    return sha256(_text("mustpass.json").encode()).hexdigest()


def listed(digest: str) -> RuleList | None:
    """The list of that SHA-256: this suite's, or one that is kept; None if there is none."""
    if digest == committed_sha256():
        return committed()
    return _parsed(_text(f"lists/{digest}.json")) if digest in kept() else None


@cache
def kept() -> frozenset[str]:
    """The SHA-256 of each list of an older suite."""
    folder = resources.files(__package__).joinpath("lists")
    names = (file.name.removesuffix(".json") for file in folder.iterdir())
    return frozenset(name for name in names if _DIGEST.match(name))


def decided() -> Mapping[str, Any]:
    """`core.json`: what must have run, and why other rules need not."""
    found: dict[str, Any] = json.loads(_text("core.json"))
    return found


def unknown_or_missing(document: Mapping[str, Any]) -> list[str]:
    """How a certificate's rules, cases and waivers differ from its suite's: a sentence each.

    It is judged by the list that its `mustpass_sha256` names; where this release has no such
    list, that is the one sentence. The document keeps its schema.
    """
    suite, asked = document["suite"], document["level_asked"]
    own = listed(suite["mustpass_sha256"])
    if own is None:
        return [
            f"this release does not know the list of rules of its suite ({suite['version']}, "
            f"{suite['mustpass_sha256'][:12]}...): verify it with the vllm-adapter-conformance "
            "that wrote it, or a later one"
        ]
    today = datetime.datetime.now(datetime.UTC).date()
    return [
        *_rule_faults(document["rules"], own, asked),
        *_case_faults(document["rules"], own),
        *waivers.faults(document, own.waivers, today),
    ]


def _rule_faults(rules: Sequence[Mapping[str, Any]], own: RuleList, asked: str) -> list[str]:
    given = {rule["rule"]: rule for rule in rules}
    needed = own.up_to(asked)
    found = []
    missing = sorted(needed - given.keys())
    unknown = sorted(given.keys() - needed - own.preview)
    if missing:
        found.append(f"rules that its suite has for {asked} are missing: {', '.join(missing)}")
    if unknown:
        found.append(f"its suite has no such rules up to {asked}: {', '.join(unknown)}")
    for id, rule in given.items():
        if rule["level"] != id.partition(".")[0]:
            found.append(f"the rule {id} is put into {rule['level']}")
        if rule["preview"] != (id in own.preview) and id not in unknown:
            found.append(f"the rule {id} {'is no' if rule['preview'] else 'is a'} preview")
    return found


def _case_faults(rules: Sequence[Mapping[str, Any]], own: RuleList) -> list[str]:
    found = []
    for rule in rules:
        known = own.cases.get(rule["rule"])
        if known is None:
            continue
        given = {case["case"] for case in (*rule["cases"], *rule["not_declared"])}
        if given == {NO_CASE}:  # which has failed
            continue
        if known - given:
            words = ", ".join(sorted(known - given))
            found.append(f"cases of {rule['rule']} are missing: {words}")
        if given - known:
            words = ", ".join(sorted(given - known))
            found.append(f"its suite has no such cases of {rule['rule']}: {words}")
    return found


def render(before: str | None = None) -> str:
    """What mustpass.json should hold, from the registered rules and core.json.

    `before` is the SHA-256 of the list that it follows; without it, that of the committed one.
    """
    from vllm_adapter_conformance.certificate.known_cases import constant_cases
    from vllm_adapter_conformance.rules import registered

    every = registered().values()
    counted = [rule for rule in every if not rule.preview]
    raw = {
        "rules": {one: sorted(r.id for r in counted if r.level == one) for one in LEVELS},
        "preview": sorted(rule.id for rule in every if rule.preview),
        "core": decided()["core"],
        "waivers": waivers.shipped_raw(),
        "cases": {id: sorted(ids) for id, ids in sorted(constant_cases().items())},
        "before": before or committed().before,
    }
    return json.dumps(raw, indent=1) + "\n"


def renew(folder: Path, *, keep: bool = True) -> str | None:
    """Writes mustpass.json in a folder of lists, if the rules have changed.

    Gives the SHA-256 under which the replaced list was kept in `folder/lists`, if it was.
    """
    path = folder / "mustpass.json"
    old = path.read_text(encoding="utf-8")
    if old == render():
        return None
    digest = sha256(old.encode()).hexdigest()
    if keep:
        (folder / "lists" / f"{digest}.json").write_text(old, encoding="utf-8")
    path.write_text(render(digest if keep else None), encoding="utf-8")
    return digest if keep else None


def _parsed(text: str) -> RuleList:
    raw = json.loads(text)
    if "rules" not in raw:  # the first lists were the rules alone
        return RuleList(raw, _FIRST_PREVIEWS)
    cases = {id: frozenset(ids) for id, ids in raw["cases"].items()}
    own = tuple(waivers.parse(raw["waivers"]))
    before = raw.get("before")
    return RuleList(raw["rules"], frozenset(raw["preview"]), raw["core"], cases, own, before)


@cache
def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


if __name__ == "__main__":
    kept_as = renew(Path(__file__).parent, keep="--no-certificates" not in sys.argv[1:])
    print(f"kept the list before as lists/{kept_as}.json" if kept_as else "no list was kept")
