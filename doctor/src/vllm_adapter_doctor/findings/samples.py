"""Lines of a document that show what a program may print: nothing of it happened here.

A person who asks for help says "I get this:"; a document says "you may see", "example output".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

_INTRODUCED: Final = re.compile(
    r"^\W*(?:an? |the |some )?(?:example|sample|typical|expected|possible)s?\b.{0,80}"
    r"\b(?:log|output|error|message|trace|result|print)s?\b.{0,60}:\W*$"
    r"|\b(?:sample|expected|typical) (?:output|log|result|error|message)s?\b.{0,60}:\W*$"
    r"|^\s*#+ (?:example|sample|expected)\b.{0,40}\b(?:log|output|error|message)s?\s*$"
    r"|\byou (?:may|might|should|will|would|can|could) (?:also |then )?"
    r"(?:see|get|find|observe|encounter|receive)\b.{0,120}:\W*$"
    r"|\b(?:may|might|should|will|would|can) (?:look like|be similar to|resemble)\b.{0,60}:\W*$"
    r"|\b(?:for example|for instance|e\.g\.)\W*$",
    re.IGNORECASE,
)
_OWN: Final = re.compile(r"\b(?:I|we|my|our|me|us)\b", re.IGNORECASE)
"""The sentence describes one reporter's own machine."""
_REPORTER: Final = re.compile(
    r"\bI(?:'m|'ve| am| have| get| got| see| saw| run| ran| try| tried| use| used| can| could"
    r"| start| started| install| installed| follow| followed| think)\b"
    r"|\b[Mm]y (?:\w+ )?(?:machine|server|box|host|setup|environment|GPUs?|NPUs?|cluster|code)\b"
    r"|Your current environment|Describe the bug|^\W*(?:PyTorch|vLLM) [Vv]ersion\s*:"
)
"""The text is a report: what it calls an example is one of its own failures."""
_BLOCK: Final = re.compile(r"^(\s*)(?:\.\. [\w:-]+::|(?:!!!|\?\?\?\+?) \w+)")
"""A directive of reStructuredText or an admonition of Markdown; what is deeper belongs to it."""
_GAP: Final = 3
"""Empty lines between the sentence and its sample: a fence is read as an empty line too."""


def sample_lines(texts: Sequence[str]) -> frozenset[int]:
    """Positions of the lines that stand in a document's sample.

    A directive or an admonition is a document's wherever it stands; a sentence that introduces a
    sample counts only in a text that nobody wrote of their own machine.
    """
    reported = any(_REPORTER.search(text) for text in texts)
    found: set[int] = set()
    for at, text in enumerate(texts):
        block = _BLOCK.match(text)
        if block:
            found.update(_deeper(texts, at + 1, len(block[1])))
        elif not reported and _INTRODUCED.search(text) and not _OWN.search(text):
            found.update(_paragraph(texts, at + 1))
    return frozenset(found)


def _deeper(texts: Sequence[str], start: int, margin: int) -> Iterator[int]:
    for at in range(start, len(texts)):
        text = texts[at]
        if text.strip():
            if len(text) - len(text.lstrip()) <= margin:
                return
            yield at


def _paragraph(texts: Sequence[str], start: int) -> Iterator[int]:
    at = start
    while at < min(start + _GAP, len(texts)) and not texts[at].strip():
        at += 1
    while at < len(texts) and texts[at].strip():
        yield at
        at += 1
