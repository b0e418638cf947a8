"""Starts `fault_child` with a fault, follows it, and ends it where it hangs. Imports torch."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import torch

from vllm_adapter.errors import OutOfMemory, VllmAdapterError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.performance.fault_child import one_round

CHILD: Final = "vllm_adapter_conformance.performance.fault_child"
START_S: Final = 120.0
"""For importing torch and opening the device."""
ROUND_S: Final = 60.0


def look_fault(
    bench: Bench,
    *,
    model: Mapping[str, Any],
    variables: Mapping[str, str],
    rounds: int,
    silent_s: float = ROUND_S,
) -> dict[str, Any]:
    """What a child saw in its rounds, with some variables in its environment.

    Gives `rounds` (its lines), `begun`, `hung` (it said nothing for `silent_s` and was ended),
    `code` (its exit code), `results` (host tensor [rows, hidden] of its first right round, or
    None) and `words` (the end of what it wrote to stderr).
    """
    with tempfile.TemporaryDirectory(prefix="vllm-adapter-") as name:
        folder = Path(name)
        order = {**model, "target": json.dumps(bench.target.to_json()), "rounds": rounds}
        torch.save(order, folder / "order.pt")
        with (folder / "stderr").open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-m", CHILD, name],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **variables},
                text=True,
            )
        with child:  # which closes its pipe, and waits
            try:
                lines, hung = _follow(child, silent_s)
            finally:
                child.kill()
        kept = folder / "results.pt"
        words = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
        return {
            "begun": any("begun" in line for line in lines),
            "rounds": [line for line in lines if "begun" not in line],
            "hung": hung,
            "code": None if hung else child.returncode,
            "results": torch.load(kept, weights_only=True) if kept.exists() else None,
            "words": words[-1000:],
        }


def look_too_much(bench: Bench, *, model: Mapping[str, Any]) -> dict[str, Any]:
    """The script in this process, then more memory than there is, then the script again.

    Gives `first` and `after` (host tensors [rows, hidden]), and `errors`: the class of each
    refusal (None: there was none) and whether it is OutOfMemory.
    """
    first = one_round(bench, dict(model))
    runtime, index = bench.runtime, bench.opened.record.index
    total = runtime.query_memory_capacity(index).total_bytes
    errors = []
    try:
        runtime.allocate_memory(2 * total, index).free()
        errors.append({"what": f"{2 * total} bytes", "error": None, "typed": False})
    except Exception as error:
        errors.append(_row(f"{2 * total} bytes", error))
    return {"first": first, "after": one_round(bench, dict(model)), "errors": errors}


def _row(what: str, error: Exception) -> dict[str, Any]:
    typed = isinstance(error, (OutOfMemory, torch.OutOfMemoryError))
    words = error.message if isinstance(error, VllmAdapterError) else str(error)
    return {"what": what, "error": type(error).__name__, "typed": typed, "words": words[:300]}


def _follow(child: subprocess.Popen[str], silent_s: float) -> tuple[list[dict[str, Any]], bool]:
    """The child's lines until it ends, or says nothing for too long (then: True)."""
    assert child.stdout is not None
    said: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(child.stdout, said), daemon=True).start()
    lines: list[dict[str, Any]] = []
    until = time.monotonic() + START_S
    while True:
        try:
            line = said.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return lines, True
        if line is None:
            child.wait()
            return lines, False
        lines.append(json.loads(line))
        until = time.monotonic() + silent_s


def _read(stream: IO[str], said: queue.Queue[str | None]) -> None:
    for line in stream:
        if line.startswith("{"):
            said.put(line)
    said.put(None)
