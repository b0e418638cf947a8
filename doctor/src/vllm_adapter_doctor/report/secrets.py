"""Takes secrets out of text and variables before they enter host facts."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "<hidden>"
_WORDS: Final = (
    r"(?:token(?!iz|s)|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|"
    r"private[_-]?key|credential|authorization|(?<=_)pass(?=['\"]?\s*=))"
)
_NAMES: Final = re.compile(rf"(?i){_WORDS}|cookie|auth|(?:^|_)pass(?:$|_)|(?:^|_)key$|(?:^|_)pat$")
_TOKENS: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|nvapi-[A-Za-z0-9_-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)"
)
_ASSIGNED: Final = re.compile(
    rf"(?i)(?P<name>(?<![A-Za-z0-9])[A-Za-z0-9_-]{{0,60}}{_WORDS}(?:[_-][A-Za-z0-9_-]{{0,60}})?['\"]?\s*"
    r"(?:[=:]|\s(?=['\"]))\s*)"
    r"(?P<value><hidden>|(?:Bearer |Basic )?(?:'[^']+'|\"[^\"]+\"|[^\s'\",;]+))"
)
_FLAG: Final = re.compile(
    r"(?P<head>--(?:api-key|hf-token|token|password)(?:=|\s+))(?P<value>[^\s-][^\s]*)"
)
_BEARER: Final = re.compile(r"(?i)(?P<head>\bBearer )[A-Za-z0-9._~+/=-]{8,}")
_URL: Final = re.compile(
    r"(?P<head>\b[a-z][a-z0-9+.-]{0,20}://)[^/\s:@]{1,200}(?::[^/\s@]{1,500})?@"
)
_PLAIN: Final = frozenset({"none", "null", "true", "false", "n/a", "not", "''", '""', MASK})


def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return _NAMES.search(name) is not None


def hidden(text: str) -> str:
    """The text with tokens, passwords in URLs, and values of secret names masked."""
    text = _TOKENS.sub(MASK, text)
    if "://" in text:
        text = _URL.sub(rf"\g<head>{MASK}@", text)
    if "--" in text:
        text = _FLAG.sub(rf"\g<head>{MASK}", text)
    text = _ASSIGNED.sub(_masked, text)
    return _BEARER.sub(rf"\g<head>{MASK}", text)


def _masked(found: re.Match[str]) -> str:
    value = found["value"]
    if value.lower() in _PLAIN or value.replace(".", "").isdigit():  # a count of tokens, an id
        return found[0]
    return f"{found['name']}{MASK}"
