"""Asks `_inspect_child` in a child process, where an adapter's code may crash or hang."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from vllm_adapter.discovery.probe.isolation import kill_group
from vllm_adapter.hostfacts.time_given import TimeGiven, wait_for
from vllm_adapter_conformance.base.rule import Failure

_CHILD: Final = "vllm_adapter_conformance.rules._inspect_child"
LIMIT_S: Final = 40.0
"""Seconds that it is given; a first import of torch takes several, and some vendors' more."""


def inspect(what: str, **order: Any) -> dict[str, Any]:
    """The child's answer.

    Raises:
        Failure: the adapter's code raised, ended the process, or gave no answer in time.
    """
    with tempfile.TemporaryDirectory(prefix="vllm-adapter-") as folder:
        file, order_file, said = (Path(folder, name) for name in ("answer", "order", "said"))
        full = {**order, "path": sys.path, "answer": str(file)}
        order_file.write_text(json.dumps(full), encoding="utf-8")
        with order_file.open("rb") as words, said.open("wb") as out:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD, what],
                stdin=words,
                stdout=subprocess.DEVNULL,
                stderr=out,
                start_new_session=True,
            )
        try:
            wait_for(child, LIMIT_S, TimeGiven(child.pid))
        except subprocess.TimeoutExpired:
            raise Failure(f"an answer within {LIMIT_S:g} s", "none: the import hangs") from None
        finally:
            kill_group(child)
        if not file.exists():
            raise Failure(
                "the import to return",
                f"the process ended with code {child.returncode}",
                detail=said.read_bytes()[-2000:].decode("utf-8", "replace").strip(),
            )
        answer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if "error" in answer:
        raise Failure("the import and construction to succeed", str(answer["error"]))
    return answer
