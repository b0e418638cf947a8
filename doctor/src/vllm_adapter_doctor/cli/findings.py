"""How findings are printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from vllm_adapter.cli.output import clean, colour

if TYPE_CHECKING:
    from vllm_adapter.contract.finding import Finding

_COLOURS: Final = {"error": "red", "warning": "yellow", "note": "dim"}


def print_findings(findings: Iterable[Finding], *, recognised: bool = True) -> None:
    """Each with its cause, evidence and next step; one sentence where there is none.

    Of a text in which nothing is `recognised`, nobody can say that nothing is wrong.
    """
    wrong = False
    for finding in findings:
        word = finding.severity.value
        wrong |= word != "note"
        print(f"\n{colour(word, _COLOURS[word])} {finding.code}: {finding.title}")
        print(f"  cause: {clean(finding.cause)}")
        for evidence in finding.evidence:
            print(f"  seen: {clean(evidence.text)} ({clean(evidence.source)})")
        print(f"  next: {clean(finding.action)}")
    if not recognised:
        print(
            "unknown: no tool's output and no error was recognised in it, which proves nothing; "
            "add what vLLM's collect_env, the vendor's tool and the failing program printed"
        )
    elif not wrong:
        print("nothing wrong found")
