"""Asks `_inspect_child` in a child process, where an adapter's code may crash or hang."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from vllm_adapter_conformance.base.rule import Failure

_CHILD: Final = "vllm_adapter_conformance.rules._inspect_child"
LIMIT_S: Final = 40.0
"""A first import of torch takes several seconds, and some vendors' more."""


def inspect(what: str, **order: Any) -> dict[str, Any]:
    """The child's answer.

    Raises:
        Failure: the adapter's code raised, ended the process, or gave no answer in time.
    """
    with tempfile.TemporaryDirectory(prefix="vllm-adapter-") as folder:
        file = Path(folder, "answer.json")
        full = {**order, "path": sys.path, "answer": str(file)}
        command = [sys.executable, "-P", "-m", _CHILD, what]
        try:
            child = subprocess.run(
                command,
                input=json.dumps(full),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"an answer within {LIMIT_S:g} s", "none: the import hangs") from None
        if not file.exists():
            raise Failure(
                "the import to return",
                f"the process ended with code {child.returncode}",
                detail=child.stderr.strip()[-2000:],
            )
        answer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if "error" in answer:
        raise Failure("the import and construction to succeed", str(answer["error"]))
    return answer
