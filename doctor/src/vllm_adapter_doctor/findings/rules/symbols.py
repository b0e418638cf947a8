"""Two libraries that disagree about a symbol, and which packages they are of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter_doctor.findings.host import ExaminedHost, quoted
from vllm_adapter_doctor.findings.rule import Data, RuleHit

_SITE: Final = r"(?:site|dist)-packages/(?P<package>[A-Za-z0-9_]+)"
_UNDEFINED: Final = (
    r"(?P<library>[^\s:'\"(]+\.so[.\d]*)['\"]?: undefined symbol: (?P<symbol>\w+)"
    r"(?:, version (?P<version>[\w.+-]+))?"
)


def undefined(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """Each symbol once. `data` has the beginnings of symbols, whose they are, and what to do."""
    seen: set[tuple[str, str]] = set()
    for line, match in box.program_lines(_UNDEFINED, ("undefined symbol",)):
        library, symbol = match["library"], match["symbol"]
        if (library, symbol) in seen:
            continue
        seen.add((library, symbol))
        found = re.search(_SITE, line.text[: match.end("library")])
        inner = re.findall(r"nvidia/(\w+)/lib", library)
        package = inner[-1] if inner else found["package"] if found else library.rsplit("/")[-1]
        owner, remedy = next(
            (row[1:] for row in data["owners"] if symbol.startswith(row[0])), ("", "")
        )
        values = {
            "package": package,
            "symbol": symbol,
            "version": match["version"] or "",
            "owner": owner,
            "remedy": remedy.replace("{package}", package),
        }
        yield RuleHit([quoted(line)], values)
