"""JSON documents inside a text that has other things before and after them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from vllm_adapter_doctor.report.text import Report

_TRIES: Final = 64


def objects(report: Report, mark: str) -> Iterator[Any]:
    """Each complete JSON value that begins a line and holds `mark`; a cut one is none."""
    text = report.text
    if mark not in text:
        return
    decoder = json.JSONDecoder()
    start, done, tries = 0, 0, 0
    for line in report.lines:
        begin = start + len(line.text) - len(line.text.lstrip())
        start += len(line.text) + 1
        if begin < done or text[begin : begin + 1] not in ("{", "[") or tries == _TRIES:
            continue
        tries += 1
        try:
            value, done = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue
        if mark in text[begin:done]:
            yield value
