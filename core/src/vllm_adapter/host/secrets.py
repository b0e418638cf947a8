"""Takes secrets out of text and variables before they enter host facts."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "<hidden>"
_NAMES: Final = re.compile(
    r"(?i)(?:token|secret|passw(?:or)?d|api_?key|access_?key|private_?key|credential|cookie|auth)"
)
_TOKENS: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|AKIA[0-9A-Z]{16}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)"
)
_ASSIGNED: Final = re.compile(
    r"(?i)(?P<name>[A-Za-z0-9_-]*(?:token|secret|passw(?:or)?d|api[_-]?key|access_?key|"
    r"private_?key|credential)[A-Za-z0-9_-]*\s*[=:]\s*)(?P<value>['\"]?[^\s'\",;]{6,}['\"]?)"
)
_URL: Final = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@")


def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return _NAMES.search(name) is not None


def hidden(text: str) -> str:
    """The text with tokens, passwords in URLs, and values of secret names masked."""
    text = _TOKENS.sub(MASK, text)
    text = _URL.sub(rf"\g<head>{MASK}@", text)
    return _ASSIGNED.sub(rf"\g<name>{MASK}", text)
