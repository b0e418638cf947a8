"""The bench of a run; and one case on it, in this process, and how it ended."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from vllm_adapter.discovery.adapter import one_line
from vllm_adapter.engine.device_process.errors import ProcessEnded, RemoteError, whence
from vllm_adapter_conformance.base.bench import Bench, LastWord
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.judge.outcome import SKIPPED, Result, failed, passed, waiver_of
from vllm_adapter_conformance.judge.waivers import Waiver
from vllm_adapter_conformance.plan.suite import NO_CASE, SuiteItem, no_case_failure

if TYPE_CHECKING:
    from vllm_adapter_conformance.serving.runs import Runs

_OWN: Final = f"{Path(__file__).parents[1]}{os.sep}"
"""The suite's own folder: a frame elsewhere is the adapter's, core's or torch's."""
_FRAMES: Final = 6


def open_bench(
    target: Target,
    scratch: Path | None = None,
    *,
    apart: bool = False,
    hear: Callable[[LastWord], None] | None = None,
) -> Bench:
    """A bench for every level; `scratch`, `apart` and `hear` as the bench has them."""
    return Bench(target, scratch, _open_serving, apart=apart, hear=hear)


def run_item(bench: Bench, item: SuiteItem, waivers: Sequence[Waiver] = ()) -> Result:
    """Checks one case. Whatever the adapter raises is a failure of the case."""
    waiver = waiver_of(waivers, bench.target.record.name, item)
    begin = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # the caller's filters are not the adapter's fault
            if item.case.id == NO_CASE:
                raise no_case_failure(item.rule)
            seen = item.rule.check(bench, item.case)
    except KeyboardInterrupt:
        raise
    except Failure as failure:
        return failed(item, failure, _since(begin), waiver)
    except ProcessEnded as ended:
        return failed(item, process_failure(ended), _since(begin), waiver)
    except pytest.skip.Exception as skip:
        return Result(item.id, SKIPPED, _since(begin), seen=str(skip))
    except BaseException as error:
        return failed(item, unforeseen(error), _since(begin), waiver)
    return passed(item, seen, _since(begin), waiver)


def _open_serving(target: Target, folder: Path) -> Runs:
    from vllm_adapter_conformance.serving.runs import Runs  # which imports torch

    return Runs(target, folder)


def process_failure(ended: ProcessEnded) -> Failure:
    """The end of the device's process, or its silence, as a failure of what it was asked for."""
    if ended.hung:
        return Failure(f"an end within {ended.limit:g} s", "none: it hangs", detail=ended.words)
    return Failure("the case to end", str(ended), detail=ended.words)


def unforeseen(error: BaseException) -> Failure:
    """An exception that no check expects, as a failure: its place, and its last frames."""
    there = whence(error)
    if there is not None:
        name = error.name if isinstance(error, RemoteError) else type(error).__name__
        return Failure(
            "the case to run without an error",
            f"{name}: {one_line(error)} ({there.place})",
            detail=there.frames,
        )
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    place = theirs[-1] if theirs else frames[-1]
    return Failure(
        "the case to run without an error",
        f"{type(error).__name__}: {one_line(error)} ({place.filename}:{place.lineno})",
        detail="".join(traceback.format_list(frames[-_FRAMES:])).rstrip(),
    )


def _since(begin: float) -> float:
    return round(time.monotonic() - begin, 4)
