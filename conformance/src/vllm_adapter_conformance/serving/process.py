"""Starts a program of vLLM's under the guard: its environment, its time limit, its output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from vllm_adapter.broker.foreign import NAME
from vllm_adapter.broker.server import launch
from vllm_adapter.broker.vllm_install import find_vllm
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.serving import guard

KEPT: Final = ("VA_CAPABILITY", "VA_LIBRARY")
"""What the caller may have set and the adapter under test needs."""
TAIL: Final = 25


class GuardedProcess:
    """A running command; its output is in `log`. `end()` must be called, or the process left."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float
    ) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, guard.__file__, str(seconds), *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environment),
            )

    def wait(self) -> int:
        """Waits for the command; its exit code, or the guard's own word for the time limit."""
        code = self.process.wait()
        self.end()
        return code

    def end(self) -> None:
        """Ends the command and all that it started, if that has not happened yet."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def tail(self) -> str:
        """The last lines of the output."""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        return "\n".join(line for line in lines[-TAIL:] if line.strip())


def environment(target: Target | None, **more: str) -> dict[str, str]:
    """The environment of a vLLM that is offline and small; `target` None: no plug-in at all.

    Raises:
        InputError: as `launch`.
    """
    vllm = find_vllm()
    assert vllm is not None, "the target was refused where there is none"
    found = {k: v for k, v in os.environ.items() if not k.startswith(("VA_", "_VA_", "VLLM_"))}
    found |= launch("", (), vllm).environment
    found |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "" if target is None else NAME,
    }
    if target is not None:
        found |= {name: os.environ[name] for name in KEPT if os.environ.get(name)}
        found |= {"VA_ADAPTERS": target.record.name, "VA_FALLBACK": "warn"}
        capability = target.capability
        if capability is not None and capability.vllm.relative_speed is not None:
            # What is under test runs, also where vLLM's own kernel is faster.
            pairs = (f"{op}:{target.record.name}" for op in sorted(capability.operators))
            found["VA_OPS"] = ",".join(pairs)
    return found | more


def outcome_of(log: str, code: int) -> dict[str, Any]:
    """What is kept of a program that wrote no result."""
    how = {guard.OVER: "it hangs", guard.LEFT: "it was ended"}.get(code, f"exit code {code}")
    return {"error": how, "log": log}
