"""A failure that has a text of its own: a rule that is data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import MAX_EVIDENCE, Box, finding, quoted


@dataclass(frozen=True, slots=True)
class TextRule:
    """`cause` and `action` are format strings of the pattern's named groups.

    `words`, in small letters, are parts of what the pattern finds: without any of them in the
    report it is not tried. `unless` are patterns that take the meaning away wherever they stand;
    `only` is one that must stand somewhere; `on` is a further condition on the box. With `debug`,
    lines of level DEBUG count too.
    """

    code: str
    words: tuple[str, ...]
    pattern: str
    cause: str
    action: str = ""
    severity: Severity = Severity.ERROR
    unless: tuple[str, ...] = ()
    only: str = ""
    on: Callable[[Box], bool] | None = field(default=None)
    debug: bool = False

    def check(self, box: Box) -> Iterator[Finding]:
        """One finding for each distinct cause and action, with the lines that say it."""
        if not box.searched.has(self.words):
            return
        hits = list(box.searched.told(self.pattern, self.words, debug=self.debug))
        if not hits:
            return
        if any(box.says(one) for one in self.unless) or (self.only and not box.says(self.only)):
            return
        if self.on is not None and not self.on(box):
            return
        grouped: dict[tuple[str, str], list[Evidence]] = {}
        for lines, match in hits:
            named = {name: (text or "").strip() for name, text in match.groupdict().items()}
            said = (self.cause.format(**named), self.action.format(**named))
            grouped.setdefault(said, []).extend(map(quoted, lines))
        for (cause, action), evidence in grouped.items():
            yield finding(self.code, evidence[:MAX_EVIDENCE], cause, action, self.severity)
