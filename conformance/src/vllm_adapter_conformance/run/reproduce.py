"""Scripts that run one failed case again: they need the adapter and the suite, nothing else.

The last line of each has the digest of the rest. A later run removes what it has judged anew, and
only scripts that still are as they were written: whatever else lies there is the user's.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_adapter.errors import InputError
from vllm_adapter.files import write_atomic
from vllm_adapter_conformance.base.target import BUDGET_S
from vllm_adapter_conformance.plan.suite import levels_up_to

if TYPE_CHECKING:
    from vllm_adapter_conformance.judge.outcome import Result
    from vllm_adapter_conformance.run.runner import RunRequest

_SCRIPT: Final = '''\
"""Runs {item} of adapter {adapter} again, in this process.

Exit code 0: it passes; 1: it fails; 2: it cannot be run here. A crash shows the line that crashed.
"""

import faulthandler
import sys

from vllm_adapter_conformance.run.reproduce import again

faulthandler.enable()
sys.exit(again({adapter!r}, {item!r}, {options}))
'''


_MARK: Final = "# written by vllm-adapter certify, which removes it when it is as it was: "
_LARGEST: Final = 1 << 16


def write_all(folder: Path, order: RunRequest, failures: Iterable[Result]) -> Mapping[str, Path]:
    """Writes a script for each failure; gives their paths by item.

    Raises:
        InputError: the folder cannot be written.
    """
    scripts: dict[str, Path] = {}
    options: dict[str, object] = {
        "level": order.level,
        "device": order.device,
        "seed": order.seed,
        "budget": order.budget,
    }
    if order.emulate is not None:
        options["emulate"] = order.emulate
    if order.minutes is not None:
        options["minutes"] = order.minutes
    for result in failures:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(
                f"cannot make the folder {folder}: {problem.strerror}",
                hint="give another place with --output FILE",
            ) from None
        path = folder / f"{order.adapter}-{_slug(result.item)}.py"
        text = _SCRIPT.format(
            item=result.item,
            adapter=order.adapter,
            options=", ".join(f"{name}={value!r}" for name, value in options.items()),
        )
        write_atomic(path, text + _signature(text))
        scripts[result.item] = path
    return scripts


def clean_up(
    folder: Path, order: RunRequest, judged: Container[str], kept: Iterable[Path]
) -> list[Path]:
    """Removes the scripts of earlier runs for items that this run judged, and gives their paths.

    A run of all items also removes those of items, up to its level, that there are no more.
    """
    levels, spared, removed = levels_up_to(order.level), set(kept), []
    for path in sorted(folder.glob(f"{order.adapter}-*.py")):
        item = _written_for(path, order.adapter)
        if item is None or path in spared:
            continue
        whole = not order.cases and not order.fail_fast
        if item in judged or (whole and item.partition(".")[0] in levels):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _written_for(path: Path, adapter: str) -> str | None:
    """The item of a script of ours that nobody has changed; None for any other file."""
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= _LARGEST else ""
    except (OSError, UnicodeError):
        return None
    head, mark, _ = text.rpartition(_MARK)
    if not mark or text != head + _signature(head):
        return None
    found = re.match(rf'"""Runs (.+) of adapter {re.escape(adapter)} again, ', head)
    return found[1] if found else None


def _signature(text: str) -> str:
    return f"{_MARK}{sha256(text.encode()).hexdigest()}\n"


def again(
    adapter: str,
    item: str,
    *,
    level: str,
    device: int,
    seed: int,
    budget: float = BUDGET_S,
    emulate: str | None = None,
    minutes: float | None = None,
) -> int:
    """Runs one item in this process and prints how it ended; gives the exit code."""
    import os
    from dataclasses import replace

    from vllm_adapter.errors import VllmAdapterError
    from vllm_adapter_conformance.base.rule import level_to_open
    from vllm_adapter_conformance.judge.messages import failure_lines
    from vllm_adapter_conformance.judge.outcome import PASS
    from vllm_adapter_conformance.plan.find_target import find_target
    from vllm_adapter_conformance.plan.suite import make_plan
    from vllm_adapter_conformance.rules import registered
    from vllm_adapter_conformance.run.execution import open_bench, run_item

    os.environ["VA_FALLBACK"] = "error"  # the suite's policy
    try:
        target = find_target(
            adapter,
            level_to_open(level, [item]),
            device=device,
            seed=seed,
            budget=budget,
            emulate=emulate,
        )
        target = replace(target, minutes=minutes)
        planned = make_plan(target, level, registered(), only=[item]).item(item)
    except VllmAdapterError as error:
        print(error)
        return 2
    except KeyError:
        print(f"the suite that is installed here has no item {item} for {adapter}")
        return 2
    result = run_item(open_bench(target), planned)
    if result.outcome == PASS:
        print(f"{item}: passes")
        return 0
    print("\n".join(failure_lines(result)))
    return 1


def _slug(item: str) -> str:
    """A file name that says the item; a digest keeps unlike items apart."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", item).strip("-")[:80]
    return f"{words}-{sha256(item.encode()).hexdigest()[:6]}"
