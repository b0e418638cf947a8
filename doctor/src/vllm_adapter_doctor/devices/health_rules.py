"""What a device's health means, as verdicts: the tool's own word, and errors that it tells of.

A word that is not one of the good ones is bad, and one that says nothing is unknown. What an error
means, how bad it is and what to do about it stand in `findings/health.toml`, where the doctor has
them from: what the doctor calls an error keeps a device from being used, and nothing else does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.contract.codes import CODES, documents, folded
from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.facts import Accelerator
from vllm_adapter_doctor.devices.verdict import DeviceVerdict, Outcome

STATUS_CODE: Final = "VA1704"
_ERRORS: Final = "health.device_errors"
_GOOD: Final = frozenset("ok good normal healthy pass passed active available operational".split())
_UNTOLD: Final = frozenset({"", "-", "--", "na", "n/a", "none", "unknown", "not supported"})
_LESSER: Final = frozenset("warning warn minor degraded".split())


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """A kind of error: its name in the file, the pattern of its sentences, and what it means."""

    name: str
    pattern: re.Pattern[str]
    outcome: Outcome
    code: str
    cause: str
    action: str


def kinds() -> tuple[ErrorKind, ...]:
    """The kinds of errors, the first that fits counts; as the file has them.

    Raises:
        InputError: the file is none.
    """
    rule: dict[str, Any] = next(
        one for one in documents()["health"]["rules"] if one.get("function") == _ERRORS
    )
    cases = {case["name"]: {**rule, **case} for case in rule["cases"]}
    return tuple(
        ErrorKind(
            name,
            re.compile(pattern),
            Outcome.REFUSE if cases[name].get("severity", "error") == "error" else Outcome.NOTE,
            cases[name]["code"],
            folded(cases[name]["cause"]).removeprefix("{devices}: "),
            folded(cases[name].get("action", "")) or CODES[cases[name]["code"]].action,
        )
        for name, pattern in rule["data"]["kinds"].items()
    )


def health_verdicts(reported: Accelerator | None, tool: str) -> Iterator[DeviceVerdict]:
    """What is said against a device's health: refusals first. `tool` is its vendor's."""
    if reported is None:
        return
    status = status_verdict(reported, tool)
    found = [] if status is None else [status]
    found += [
        one for error in reported.health.errors if (one := _of_error(error, reported)) is not None
    ]
    kept: dict[str, DeviceVerdict] = {}
    for one in sorted(found, key=lambda one: not one.stops):
        kept.setdefault(one.code if one.stops else one.reason, one)
    yield from kept.values()


def is_broken(reported: Accelerator) -> bool:
    """Whether an error says that the device cannot be used, whatever its tool calls its state."""
    known = kinds()
    found = (kind_of(error, known) for error in reported.health.errors)
    return any(one is not None and one.outcome is Outcome.REFUSE for one in found)


def status_verdict(reported: Accelerator, tool: str = "the vendor's tool") -> DeviceVerdict | None:
    """What the tool's own word for a device's state means; None where it is a good one."""
    health = reported.health
    word = (health.status or "").strip()
    if word.lower() in _GOOD | _UNTOLD:
        return None
    first = f": {health.errors[0]}" if health.errors else ""
    bad = word.lower() not in _LESSER
    return DeviceVerdict(
        Outcome.REFUSE if bad else Outcome.NOTE,
        "health",
        STATUS_CODE,
        f"its health is {word}{first}" if bad else f"its tool says: {word}",
        word,
        "OK",
        next_step=f"look at the kernel log and `{tool}`; reset the device or reboot",
        evidence=(Evidence(word, reported.source),),
    )


def kind_of(error: str, known: Iterable[ErrorKind]) -> ErrorKind | None:
    """The kind of an error; None for one that is of none."""
    return next((one for one in known if one.pattern.search(error)), None)


def _of_error(error: str, reported: Accelerator) -> DeviceVerdict | None:
    kind = kind_of(error, kinds())
    if kind is None:
        return DeviceVerdict(Outcome.NOTE, "health", "", error)
    bad = kind.outcome is Outcome.REFUSE
    return DeviceVerdict(
        kind.outcome,
        "health",
        kind.code,
        f"{kind.cause}: {error}" if bad else error,
        error,
        next_step=kind.action,
        evidence=(Evidence(error, reported.source),),
    )
