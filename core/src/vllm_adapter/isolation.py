"""Runs adapters' probes where a crash or a hang costs a child process, never ours.

One child (`vllm_adapter._probe_child`) works through the names in turn. It announces each with
`begin` before it imports anything, and answers with `end`, over a pipe of its own: file
descriptor 1 belongs to vendors' banners. A death, a hang or an exit before `end` is charged to the
adapter that had begun; the child's process group is killed and a new child goes on with the rest.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_adapter.errors import InputError

LIMIT_S: Final = 20.0
"""Seconds an adapter has for its probe; a first import of torch takes several."""
STDERR_BYTES: Final = 8192
STDERR_LINES: Final = 8
_TICK_S: Final = 0.05
_FAULT: Final = ("Fatal Python error", "Timeout (")


@dataclass(frozen=True, slots=True)
class Death:
    """A probe that gave no answer: how it ended, and its last lines on stderr."""

    how: str
    words: tuple[str, ...] = ()


Answer = Mapping[str, Any]


def run_isolated(
    names: Sequence[str], order: Answer, *, limit_s: float = LIMIT_S
) -> dict[str, Answer | Death]:
    """The answer, or the death, of each name. `order` is JSON that every child gets.

    Raises:
        InputError: no child can be started here.
    """
    if os.name != "posix" or not sys.executable:
        raise InputError(
            "probing needs a child process with a pipe of its own, which this system cannot give",
            hint="run on Linux; `vllm-adapter list` without --probe works anywhere",
        )
    results: dict[str, Answer | Death] = {}
    while rest := [name for name in names if name not in results]:
        child = _Child(rest, order, limit_s)
        child.run()
        if not child.results:
            raise InputError(
                f"the probe process {child.how} before it began: {' / '.join(child.words())}",
                hint="run `python -m vllm_adapter._probe_child NAME` to see why",
            )
        results.update(child.results)
    return results


@dataclass
class _Child:
    """One child process, from its start until it has answered, died or overstayed."""

    names: Sequence[str]
    order: Answer
    limit_s: float
    results: dict[str, Answer | Death] = field(default_factory=dict)
    how: str = ""
    _current: str | None = None
    _deadline: float = 0.0
    _partial: bytes = b""
    _stderr: bytes = b""

    def run(self) -> None:
        order = {
            **self.order,
            "names": list(self.names),
            "limit_s": self.limit_s,
            "path": sys.path,
        }
        read_end, write_end = os.pipe()
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-X", "faulthandler"),
                    *("-m", "vllm_adapter._probe_child", str(write_end)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(write_end,),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            os.close(read_end)
            raise InputError(
                f"cannot start {sys.executable}: {error.strerror}",
                hint="check the limits on processes and memory of this account",
            ) from None
        finally:
            os.close(write_end)
        try:
            self._converse(process, read_end, json.dumps(order).encode())
        finally:
            kill_group(process)
            os.close(read_end)
            for stream in (process.stdin, process.stderr):
                with suppress(OSError):  # closing flushes nothing: bufsize is 0
                    stream and stream.close()
        if self._current is not None:
            self.results[self._current] = Death(self.how, self.words())

    def words(self) -> tuple[str, ...]:
        """The last lines of stderr; where Python's fault handler spoke, its first ones."""
        text = self._stderr.decode(errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        for i, line in enumerate(lines):
            if line.startswith(_FAULT):  # the guilty line comes first, our own frames last
                return tuple(lines[i : i + STDERR_LINES])
        return tuple(lines[-STDERR_LINES:])

    def _converse(self, process: subprocess.Popen[bytes], pipe: int, order: bytes) -> None:
        assert process.stdin is not None and process.stderr is not None
        stderr = process.stderr.fileno()
        for descriptor in (pipe, stderr, process.stdin.fileno()):
            os.set_blocking(descriptor, False)
        self._deadline = time.monotonic() + self.limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(stderr, selectors.EVENT_READ)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            while True:
                # A grandchild may hold our pipes open, so the child's own end is polled for.
                code = process.poll()
                ready = [key.fileobj for key, _ in selector.select(_TICK_S)]
                if process.stdin in ready:
                    order = _write(process, order)
                    if not order:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                if stderr in ready and not self._take_stderr(stderr):
                    selector.unregister(stderr)
                data = _read(pipe) if pipe in ready else None
                if data:
                    self._take_messages(data, stderr)
                    if len(self.results) == len(self.names):
                        return
                elif data is not None:
                    selector.unregister(pipe)
                if code is not None and not data:
                    self.how = how_it_ended(code)
                elif time.monotonic() > self._deadline:
                    self.how = f"gave no answer within {self.limit_s:g} s"
                if self.how:
                    self._take_stderr(stderr)
                    return

    def _take_messages(self, data: bytes, stderr: int) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            match _message(line):
                case ["begin", str(name)] if name in self.names:
                    self._take_stderr(stderr)
                    self._stderr = b""
                    self._current = name
                    self._deadline = time.monotonic() + self.limit_s
                case ["end", name, dict(answer)] if name == self._current:
                    self.results[name] = answer
                    self._current = None

    def _take_stderr(self, stderr: int) -> bool:
        data = _read(stderr)
        self._stderr = (self._stderr + (data or b""))[-STDERR_BYTES:]
        return data != b""


def _message(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # an adapter wrote on a descriptor that is not its own
        return None


def _read(descriptor: int) -> bytes | None:
    """What is there: b"" at the end of file, None where nothing is waiting."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return None


def _write(process: subprocess.Popen[bytes], data: bytes) -> bytes:
    """Writes what the pipe takes and returns the rest; a child that is gone takes nothing."""
    assert process.stdin is not None
    try:
        return data[os.write(process.stdin.fileno(), data) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return b""


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a child that leads a session of its own, and all that it started; waits for it."""
    with suppress(ProcessLookupError, PermissionError):  # nobody of the group is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def how_it_ended(code: int) -> str:
    """How a process ended, from its return code, as in "was killed by SIGSEGV"."""
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
