"""Runs small programs side by side, each with its own time and room, and always ends them."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

OUTPUT_BYTES: Final = 8 << 20
"""nvidia-smi -q -x prints 27 kB a device (driver 580, two H200)."""
_STDERR_BYTES: Final = 4096
_TICK_S: Final = 0.02
_READ_BYTES: Final = 1 << 16
_LAST_READS: Final = 16
"""A pipe holds sixteen times less; who writes on has left the group, and is not listened to."""
_END_S: Final = 0.5
"""A killed process is gone in a few milliseconds."""


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended. `fault` is None where it ended by itself with exit code 0."""

    output: bytes
    fault: str | None = None


@dataclass
class _ToolProcess:
    """One running program."""

    process: subprocess.Popen[bytes]
    deadline: float
    output: bytearray = field(default_factory=bytearray)
    words: bytes = b""


def run_all(
    commands: Sequence[Sequence[str]],
    *,
    timeout_s: float,
    environ: Mapping[str, str],
    done: Callable[[], None] = lambda: None,
) -> list[ProcessResult]:
    """Runs all commands at once and gives how each ended, in their order; never raises for one.

    Each is the leader of a process group of its own, which is killed at its end, so that nothing
    it started stays. `done` is called at each end.
    """
    ended: dict[int, ProcessResult] = {}
    running: dict[int, _ToolProcess] = {}
    try:
        with selectors.DefaultSelector() as selector:
            for number, command in enumerate(commands):
                child = _start(command, timeout_s, environ)
                if isinstance(child, ProcessResult):
                    ended[number] = child
                    done()
                    continue
                running[number] = child
                for stream in (child.process.stdout, child.process.stderr):
                    assert stream is not None
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ, number)
            while running:
                # A grandchild may hold a pipe open, so the child's own end is polled for.
                codes = {number: child.process.poll() for number, child in running.items()}
                for key, _ in selector.select(_TICK_S):
                    if not _take(running[key.data], key.fd):
                        selector.unregister(key.fileobj)
                for number, code in codes.items():
                    fault = _fault(running[number], code, timeout_s)
                    if code is None and fault is None:
                        continue
                    child = running.pop(number)
                    for stream in (child.process.stdout, child.process.stderr):
                        assert stream is not None
                        with suppress(KeyError):  # it was unregistered at its end of file
                            selector.unregister(stream)
                    if not _end(child):
                        fault = f"gave no answer within {timeout_s:g} s and hangs in its driver"
                    ended[number] = ProcessResult(bytes(child.output[:OUTPUT_BYTES]), fault)
                    done()
    finally:
        for child in running.values():
            _end(child)
    return [ended[number] for number in range(len(commands))]


def _start(
    command: Sequence[str], timeout_s: float, environ: Mapping[str, str]
) -> _ToolProcess | ProcessResult:
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(environ),
            cwd="/",
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return ProcessResult(b"", f"cannot be started: {reason}")
    return _ToolProcess(process, time.monotonic() + timeout_s)


def _take(child: _ToolProcess, descriptor: int) -> bool:
    """Takes what is waiting in one of the two pipes; False where there is nothing (more)."""
    try:
        data = os.read(descriptor, _READ_BYTES)
    except (BlockingIOError, OSError):
        return False
    assert child.process.stdout is not None
    if descriptor == child.process.stdout.fileno():
        child.output += data
    else:
        child.words = (child.words + data)[-_STDERR_BYTES:]
    return data != b""


def _fault(child: _ToolProcess, code: int | None, timeout_s: float) -> str | None:
    if len(child.output) > OUTPUT_BYTES:
        return f"printed more than {OUTPUT_BYTES >> 20} MiB and was ended"
    if code is None:
        late = time.monotonic() > child.deadline
        return f"gave no answer within {timeout_s:g} s and was ended" if late else None
    if code == 0:
        return None
    lines = (
        (child.words or bytes(child.output[-_STDERR_BYTES:])).decode(errors="replace").split("\n")
    )
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return _how(code) + (f": {last[:200]}" if last else "")


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _end(child: _ToolProcess) -> bool:
    """Ends a program and its children; False where the kernel does not let it go.

    A program that waits inside a broken driver takes no signal, and would make us wait with it.
    """
    with suppress(ProcessLookupError, PermissionError):  # nobody of the group is left
        os.killpg(child.process.pid, signal.SIGKILL)
    try:
        child.process.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.process.returncode = -signal.SIGKILL  # nobody waits for it any more
        gone = False
    else:
        gone = True
    streams = [stream for stream in (child.process.stdout, child.process.stderr) if stream]
    for stream in streams:
        for _ in range(_LAST_READS):
            if not _take(child, stream.fileno()):
                break
    for stream in streams:
        stream.close()
    return gone
