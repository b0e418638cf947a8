"""A pasted report as clean lines: no escape codes, no log prefixes, no quoting.

The number of a line is that of the text as it was given, so that evidence can be looked up in it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from vllm_adapter.hostfacts.software_facts import Line

_BOMS: Final = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
_ESCAPE: Final = re.compile(
    r"(?:\x1b|\ufffd|\u241b|\\x1b|\\u001b|\\e|\\033|\^\[)\[[0-9;?]*[A-Za-z]"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[()][A-Z0-9]"
    r"|(?<![\w\]])\[(?:0|1|4|7|22|24|27|[39][0-7])(?:;[0-9]+)*m"  # the escape byte was lost
)
_TIME: Final = (
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? "
    r"(?:std(?:out|err) [FP] )?)"
)
_PREFIXES: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("quote", r"(?:> ?)+(?!/)"),
        ("bar", rf"\| ?(?={_TIME})"),
        ("kubernetes", r"\[pod/[^\]\s]+\] ?"),
        ("compose", r"(?!(?:gpu|npu|nic|hl|mlx|card|device|node|ib|name)[\w.-]*\s)"
         r"(?:[a-z][\w.-]*\s+\| (?=[|+ ]|(?:(?! \| ).)*$)|[a-z][\w.-]*-\d+\s+\| (?!\d))"),
        ("ray", r"\([A-Za-z_]+\w*(?: [\w=]+)* pid=\d+(?:, ip=[\d.]+)?\)\s?"),  # engine and Ray
        ("rank", r"\[rank\d+\]:[ ]?|\[\d+,\d+\]<std(?:out|err)>: ?"),
        ("logger", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+ - [\w.]+ - [A-Z]+ - ?"),
        ("time", _TIME),
        ("journal", r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w./@-]+\[\d+\]: "),
    )
)  # fmt: skip
_STARTS: Final = re.compile(r"[>|\[(\da-zA-Z]")
_LOGGED: Final = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"\[?[\w./]+(?:\.py)?:\d+\](?: |$)"
)
_MARKUP: Final = re.compile(
    r"^\s*(?:```+|~~~+)[\w+-]*\s*$|</?(?:pre|code|details|summary|p|samp)>|<br */?>", re.IGNORECASE
)
_FENCE: Final = re.compile(r"^(?:```+|~~~+)(?:text|shell|bash|console|log|plaintext)?|```+$")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b\u200e\u200f\u2060\ufeff]")
_STRING_ENDS: Final = re.compile(
    r"^\s*[\[{(]?\s*(?:['\"][\w .-]*['\"]\s*:\s*)?['\"]|['\"]\s*[,}\])]*\s*$"
)
_DUMPED: Final = re.compile(
    r"(?<=\s)(?:(?:PyTorch version|Is debug build|(?:CUDA|ROCM|XPU) used to build PyTorch|OS"
    r"|(?:GCC|Clang|CMake|Libc|Python|cuDNN) version|Python platform"
    r"|Is (?:CUDA|XPU|XNNPACK) available|(?:CUDA|HIP|MIOpen) runtime version"
    r"|CUDA_MODULE_LOADING set to|GPU models and configuration|GPU \d+|Nvidia driver version"
    r"|CPU|Architecture|CPU op-mode\(s\)|Address sizes|Byte Order|CPU\(s\)"
    r"|On-line CPU\(s\) list|Vendor ID|Model name|CPU family|Model|Thread\(s\) per core"
    r"|Core\(s\) per \w+|Socket\(s\)|Cluster\(s\)|Stepping|Frequency boost|CPU m\w\w MHz"
    r"|BogoMIPS|Flags|Hypervisor vendor|Virtualization(?: type)?|L\d[di]? cache"
    r"|NUMA node\(s\)|NUMA node\d+ CPU\(s\)|Vulnerability \w[\w ]*?"
    r"|Versions of relevant libraries|(?:ROCM|Neuron SDK|vLLM) Version|vLLM Build Flags"
    r"|CUDA Archs|GPU Topology)\s*:"
    r"|\[(?:pip3?|conda)\] (?=\S)|Legend:|(?:GPU|NIC)\d+\s+(?=(?:X|NV\d+|SYS|NODE|P[HXI][BX])\s))"
)
"""Where a line of `collect_env` begins, for a page that has put all of its lines into one."""
_LISTED: Final = re.compile(r"(?<=\))[,;]?[ \t]+(?=GPU \d+: |MIG \S+[ \t]+Device[ \t]+\d+: )")
"""Between two devices of a list such as `nvidia-smi -L` prints, where they are on one line."""
_CLOSED: Final = re.compile(r"(?:[\r\n]|[`'\">}\]][ \t]*)$")  # a mark around the paste closes it
_DUMP: Final = 5
_DUMP_KEYS: Final = 6
_REPEATS: Final = 3
_LARGE: Final = 1 << 20
"""Characters of a text above which lines of one kind are not all read."""
_MOST: Final = 1_400_000
"""Characters of a text that are read."""
_KINDS: Final = ((60, 200), (20, 60), (6, 30))
"""(lines of a kind that are read at its start and at its end, characters by which it is told)."""
_FIGURES: Final = {ord(digit): None for digit in "0123456789"}
_LONGEST: Final = 50_000
"""Characters of a line: no tool prints more; a longer one ends in "...", the mark of a cut."""


@dataclass(frozen=True, slots=True)
class Report:
    """Lines in order. Blanks and tabs inside a line, and at its start, are as they were.

    `wrappers` are the kinds of prefixes that were taken off: "compose" and "kubernetes" tell of a
    container, "ray" of worker processes. `ended` is False for a text without a line break at its
    end: the last value of its last line may be cut.
    """

    lines: tuple[Line, ...]
    wrappers: frozenset[str] = frozenset()
    ended: bool = True

    @property
    def text(self) -> str:
        """All lines, joined by line breaks."""
        return "\n".join(line.text for line in self.lines)

    @property
    def settled(self) -> Report:
        """The report for a reader of values: without a last line that may be half of one.

        A text of few lines is a quotation, which nobody closes with a line break.
        """
        if not self.ended and len(self.lines) >= _DUMP:
            return replace(self, lines=self.lines[:-1])
        return self

    def find(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
        """(position in `lines`, match) of every line in which the pattern is found."""
        for position, line in enumerate(self.lines):
            found = pattern.search(line.text)
            if found:
                yield position, found

    def first(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The first match of any line."""
        return next((found for _, found in self.find(pattern)), None)


def clean(raw: bytes | str) -> Report:
    """The report in a file or a paste; bytes that are no text become U+FFFD."""
    text = decode(raw) if isinstance(raw, bytes) else raw
    if "&lt;" in text or "&gt;" in text or "&amp;" in text or "&#" in text:
        text = html.unescape(text)
    ended = _CLOSED.search(text[-9:]) is not None
    wrappers: set[str] = set()
    lines = []
    split = re.split(r"\r*\n|\r", text)
    kept = _without_repeats(split) if len(text) > _LARGE else None
    for number, line in enumerate(split, start=1):
        if kept is not None and number - 1 not in kept:
            continue
        parts = [line]
        if line.count("\\n") > _REPEATS:  # a log in a JSON string, or a repr
            inside = _STRING_ENDS.sub("", line.replace("\\t", "\t"))
            parts = re.split(r"(?:\\r)?\\n", inside)
        elif "PyTorch version" in line or "On-line CPU(s)" in line:
            parts = _unjoined(line)
        elif line.count("(UUID: ") > 1:
            parts = _LISTED.sub("\n", line).split("\n")
        lines += [Line(number, _clean(part, wrappers)) for part in parts]
    lines = _without_repeated_heads(lines)
    while lines and not lines[-1].text:
        lines.pop()
        ended = True
    return Report(tuple(lines), frozenset(wrappers), ended)


def _without_repeats(lines: Sequence[str]) -> frozenset[int]:
    """Positions of the lines of a large text that say something new.

    A server's log has millions of lines that differ in their figures alone: of each kind the
    first and the last ones count. What still is too much loses its middle.
    """
    kept = list(range(len(lines)))
    for count, length in _KINDS:
        kinds: dict[str, list[int]] = {}
        for at in kept:
            kinds.setdefault(lines[at][:length].translate(_FIGURES), []).append(at)
        few = (
            (*places[:count], *places[max(count, len(places) - count) :])
            for places in kinds.values()
        )
        kept = sorted(at for places in few for at in places)
        if _size(lines, kept) <= _MOST:
            return frozenset(kept)
    size = 0
    last = len(kept)
    while size < _MOST // 2:
        last -= 1
        size += len(lines[kept[last]])
    size = first = 0
    while size < _MOST // 2 and first < last:
        size += len(lines[kept[first]])
        first += 1
    return frozenset((*kept[:first], *kept[last:]))


def _size(lines: Sequence[str], places: Sequence[int]) -> int:
    return sum(len(lines[at]) for at in places)


def _unjoined(line: str) -> list[str]:
    """The lines that were joined into this one; the line itself where it is only one."""
    starts = [found.start() for found in _DUMPED.finditer(line)]
    if len(starts) < _DUMP_KEYS:
        return [line]
    return [line[a:b] for a, b in pairwise([0, *starts, len(line)])]


def decode(raw: bytes) -> str:
    """Text of bytes in UTF-8 or, with a byte-order mark, UTF-16."""
    for mark, encoding in _BOMS:
        if raw.startswith(mark):
            return raw.decode(encoding, "replace")
    return raw.decode("utf-8", "replace")


def clean_line(line: str) -> str:
    """One line without escape codes, markup, a log's prefixes, and blanks at its end."""
    return _clean(line, set())


def _clean(line: str, wrappers: set[str]) -> str:
    if len(line) > _LONGEST:
        line = line[:_LONGEST] + "..."
    line = _ESCAPE.sub("", line).replace("\xa0", " ").replace("\uff1a", ":")
    line = _CONTROL.sub("", line)
    if "<" in line or "`" in line or "~" in line:
        line = _FENCE.sub("", _MARKUP.sub("", line))
    if _STARTS.match(line):
        for kind, pattern in _PREFIXES * 2:  # twice: in whatever order they were put on
            found = pattern.match(line)
            if found:
                line = line[found.end() :]
                wrappers.add(kind)
    return line.rstrip()


def _without_repeated_heads(lines: list[Line]) -> list[Line]:
    """vLLM writes its head before each line of one message: there it is a prefix, no content."""
    heads = [found[0].rstrip() if (found := _LOGGED.match(line.text)) else "" for line in lines]
    cleaned = list(lines)
    start = 0
    for stop in range(1, len(lines) + 1):
        if stop < len(lines) and heads[stop] == heads[start]:
            continue
        head = heads[start]
        if head and stop - start >= _REPEATS:
            for at in range(start, stop):
                cleaned[at] = Line(lines[at].number, lines[at].text[len(head) + 1 :])
        start = stop
    return cleaned
