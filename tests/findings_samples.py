"""The texts of the doctor: samples of its rules, and further wordings, with their codes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vllm_adapter.contract.finding import Severity
from vllm_adapter_doctor.findings.register import all_rules
from vllm_adapter_doctor.findings.rule import TextMatcher

_FILE: Final = Path(__file__).parent / "data/doctor_wordings.json"


@dataclass(frozen=True, slots=True)
class Text:
    """A text, and the codes of the findings that it gets, notes left out.

    `plain`: a line says it, whatever stands around; others are tables, or about the whole box.
    """

    what: str
    text: str
    findings: frozenset[str]
    plain: bool = True


def wordings() -> list[dict[str, object]]:
    """Further wordings: `what`, `text`, `findings`, and `notes` that must be there."""
    found: list[dict[str, object]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def texts() -> list[Text]:
    """Samples that are text, and the further wordings."""
    samples = [
        Text(
            case.where,
            case.sample.text,
            case.sample.also
            | (frozenset() if case.severity is Severity.NOTE else frozenset({case.code})),
            isinstance(rule.look, TextMatcher),
        )
        for rule in all_rules()
        for case in rule.cases
        if not case.silent and not case.sample.text.startswith("{")
    ]
    more = [Text(one["what"], one["text"], frozenset(one["findings"])) for one in wordings()]
    return [*samples, *more]
