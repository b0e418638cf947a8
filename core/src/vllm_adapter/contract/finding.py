"""One diagnosed fact: what is wrong, how we know, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from vllm_adapter.contract.codes import CODES


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"
    """vLLM does not start, or does not use the adapter that it should."""
    WARNING = "warning"
    """It works now, and something about it will surprise."""
    NOTE = "note"
    """Nothing is wrong: a limit of this hardware that is good to know. Never an exit code 1."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was seen, and where: a file with its line, a variable, a command."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `code` is a key of `vllm_adapter.contract.codes.CODES`."""

    code: str
    severity: Severity
    evidence: tuple[Evidence, ...]
    cause: str
    action: str

    @property
    def title(self) -> str:
        """The code's own title."""
        return CODES[self.code].title

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "title": self.title,
            "evidence": [{"text": one.text, "source": one.source} for one in self.evidence],
            "cause": self.cause,
            "action": self.action,
        }
