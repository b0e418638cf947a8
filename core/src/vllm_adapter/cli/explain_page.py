"""The pages of codes, and of what other packages explain: rules, and the levels they make up."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vllm_adapter.cli.output import warn
from vllm_adapter.errors import InputError

PAGES: Final = "vllm_adapter.pages"
"""Entry-point group: each names a module with `page(key: str) -> str | None` and, for the overview
and for names that are nearly right, `keys() -> Iterable[str]`."""
_CODE: Final = re.compile(r"VA\d+\Z", re.ASCII | re.IGNORECASE)
_RULE: Final = re.compile(r"L\d+(\.|\Z)", re.ASCII)


def find_page(key: str) -> str | None:
    """The page of a code, a rule or a level; None if the key can only be an adapter.

    Raises:
        InputError: it has the form of a code or a rule, and there is no such page.
    """
    if _CODE.match(key):
        return _code(key)
    page, keys = _others(key)
    if page is not None or not _RULE.match(key) or Path(key).exists():
        return page
    rules = [rule for rule in keys if rule.startswith(f"{key}.")]
    if rules:
        lines = "\n".join(f"  {rule}" for rule in rules)
        return f"{key}: a level of {len(rules)} rules; `vllm-adapter explain RULE`\n\n{lines}\n"
    what = "rule" if "." in key else "level"
    if not keys:
        hint = "rules come with vllm-adapter-conformance; is it installed?"
    elif what == "level":
        hint = f"the levels: {', '.join(dict.fromkeys(rule.partition('.')[0] for rule in keys))}"
    else:
        hint = f"the nearest: {', '.join(difflib.get_close_matches(key, keys, n=3, cutoff=0.0))}"
    raise InputError(f"there is no {what} {key}", hint=hint)


def _code(key: str) -> str:
    from vllm_adapter.contract.codes import CODES

    code = CODES.get(key.upper())
    if code is None:
        near = difflib.get_close_matches(key.upper(), CODES, n=3, cutoff=0.0)
        raise InputError(f"there is no code {key}", hint=f"the nearest: {', '.join(near)}")
    return code.page()


def _others(key: str) -> tuple[str | None, Sequence[str]]:
    """The page that another package has for a key, and every key that such packages list."""
    from vllm_adapter.discovery.distributions import entry_points

    keys: list[str] = []
    for point in entry_points(PAGES):
        try:
            module = point.load()
            found = module.page(key)
            keys += map(str, getattr(module, "keys", tuple)())
        except Exception as error:
            warn(f"the pages of {point.value} cannot be read: {type(error).__name__}: {error}")
            continue
        if found is not None:
            return str(found), keys
    return None, keys
