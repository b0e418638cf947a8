"""Replays vLLM's choice of a platform in a child process, where a crash costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

LIMIT_S: Final = 180.0
"""Seconds for the import of vLLM and torch on a slow disk, and for probes."""
_LINES: Final = 5


def replay(*, limit_s: float = LIMIT_S) -> Mapping[str, Any]:
    """What the child recorded, with `spoken`: what our own plug-in said.

    Where it died, `died` says how, with its last words on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="vllm-adapter-") as folder:
        file = Path(folder, "replay.json")
        command = [sys.executable, "-m", "vllm_adapter_doctor.findings._vllm_child", str(file)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired as late:
            return {"died": f"no answer in {limit_s:.0f} s", "words": _last(late.stderr)}
        words = _last(done.stderr)
        try:
            record: dict[str, Any] = json.loads(file.read_bytes())
        except (OSError, ValueError):
            code = done.returncode
            how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return {"died": how, "words": words}
    said = done.stderr.decode("utf-8", "replace").splitlines()
    return record | {"spoken": [line for line in said if line.startswith("vllm-adapter: ")]}


def _last(stderr: bytes | None) -> list[str]:
    return (stderr or b"").decode("utf-8", "replace").splitlines()[-_LINES:]
