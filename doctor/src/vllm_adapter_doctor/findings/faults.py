"""What is wrong with the files of findings beyond their form: for tests and for who writes them.

`python -m vllm_adapter_doctor.findings.faults` prints it and ends with 1 if there is
any. Each run of the doctor does without: it would compile every pattern and try every sample.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from vllm_adapter.contract.finding import Severity
from vllm_adapter_doctor.findings.diagnose import diagnose
from vllm_adapter_doctor.findings.groups import checked
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.register import all_rules
from vllm_adapter_doctor.findings.rule import BOX_PLACES, FindingCase, FindingRule, TextMatcher
from vllm_adapter_doctor.findings.template import places
from vllm_adapter_doctor.report.read import parse_report


def faults() -> Iterator[str]:
    """One sentence for each."""
    for rule in all_rules():
        yield from of_patterns(rule)
        yield from of_places(rule)
        for case in rule.cases:
            if not case.silent:
                yield from of_sample(rule, case)


def of_patterns(rule: FindingRule) -> Iterator[str]:
    """Patterns that are none."""
    patterns = [pattern for case in rule.cases for _, pattern in case.match]
    if isinstance(rule.look, TextMatcher):
        look = rule.look
        patterns += [look.pattern, look.line_only, look.line_unless, look.value]
        patterns += [*look.unless, *look.only]
    for pattern in patterns:
        if said := checked(pattern):
            yield f"{rule.where}: {pattern!r} is no pattern: {said}"


def of_places(rule: FindingRule) -> Iterator[str]:
    """Places of a sentence that nothing fills, or that may be empty outside of [[ ]]."""
    known = rule.look.places()
    if known is None:
        return
    for case in rule.cases:
        asked = {place for place, _ in case.match}
        for sentence in (case.cause, case.action):
            needed, free = places(sentence)
            for place in sorted((needed | free) - known.keys() - BOX_PLACES):
                yield f"{case.where}: nothing fills {{{place}}}"
            for place in sorted(needed & known.keys()):
                if not known[place] and place not in asked:
                    yield f"{case.where}: {{{place}}} may be empty; put its part into [[ ]]"


def of_sample(rule: FindingRule, case: FindingCase) -> Iterator[str]:
    """A sample that does not fire its case, or that gets other codes than it says."""
    box = ExaminedHost(parse_report(case.sample.text), live=case.sample.live)
    if rule.last:
        diagnose(box)  # tells it what the other rules found
    said = [finding for one, finding in rule.said(box) if one is case]
    if not said:
        yield f"{case.where}: its sample does not fire it"
        return
    for finding in said:
        if has_empty_place(finding.cause) or has_empty_place(finding.action):
            yield f"{case.where}: an empty place in {finding.cause!r} or {finding.action!r}"
    both = diagnose(box)
    wrong = {one.code for one in both if one.severity is not Severity.NOTE}
    notes = {one.code for one in both if one.severity is Severity.NOTE}
    own = frozenset() if case.severity is Severity.NOTE else {case.code}
    due = own | case.sample.also
    if wrong != due:
        yield f"{case.where}: its sample gets {sorted(wrong)}, not {sorted(due)}"
    elif case.code not in wrong | notes:
        yield f"{case.where}: its sample gets another cause than {case.code}"


def has_empty_place(sentence: str) -> bool:
    """Whether a place of it said nothing: "its folder () or", "held by ", "not  here"."""
    return bool(re.search(r"(?<!\w)\(\)|  |^ | $| [,;)]", sentence))


if __name__ == "__main__":
    found = list(faults())
    print("\n".join(found))
    sys.exit(1 if found else 0)
