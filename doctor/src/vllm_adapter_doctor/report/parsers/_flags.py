"""The line of CPU flags, which terminals and lscpu itself wrap in the middle of words."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter_doctor.report.text import Report

_WORDS: Final = re.compile(r"^\s*[a-z0-9_]+(?: [a-z0-9_]+)*$")
_KNOWN: Final = re.compile(
    r"sse4_[12]|ssse3|avx2?|fma|f16c|avx512\w{1,2}|avx512_?(?:vnni|bf16|fp16|vbmi2?|ifma|bitalg|"
    r"vpopcntdq|vp2intersect)|avx_(?:vnni|ifma|ne_convert)|avx_vnni_int(?:8|16)|"
    r"amx_(?:tile|bf16|int8|fp16)|asimd(?:hp|dp|fhm|rdm)?|(?:sve)?bf16|(?:sve)?i8mm|sve2?|sme2?"
)


def flags_of(report: Report, *keys: str) -> tuple[str, ...]:
    """The flags, sorted; none for a line that was cut.

    Where a line was broken, the two pieces are taken only as names that are known.
    """
    head = re.compile(rf"^\s*(?:{'|'.join(keys)})\s*:\s*(?P<flags>\S.*)$")
    for position, found in report.find(head):
        text = found["flags"]
        if text.endswith(("...", "…")):
            return ()
        words = text.split()
        for line in report.lines[position + 1 :]:
            if not _WORDS.match(line.text):
                break
            more = line.text.split()
            last = words.pop()
            if _KNOWN.fullmatch(last + more[0]):
                words += [last + more[0], *more[1:]]
            else:
                ends = [word for word in (last, more[0]) if _KNOWN.fullmatch(word)]
                words += [*ends, *more[1:]]
            if not words:
                break
        if all(re.fullmatch(r"[A-Za-z0-9_]+", word) for word in words):
            return tuple(sorted(set(words)))
        return ()
    return ()
