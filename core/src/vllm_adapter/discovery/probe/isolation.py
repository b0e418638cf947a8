"""Runs adapters' probes where a crash or a hang costs a child process, never ours.

A child (`_child`) works through the names in turn, so that torch is imported
once. It announces each with `begin` before it imports anything, and answers with `end`, over a
pipe of its own: file descriptor 1 belongs to vendors' banners. A death or an exit before `end` is
charged to the adapter that had begun; the child's process group is killed and a new child goes on
with the rest. All have one limit, in seconds that their child was given (`TimeGiven`): a busy
machine breaks no adapter. Whoever keeps the others waiting for a fifth of it is waited for alone,
while new children go on with the rest side by side.

The child's parent is a guard (`_guard`), so that no signal to the parent hits us. One
that is sent to us by somebody who looked for us further up ends us, with a sentence.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts.time_given import TimeGiven

LIMIT_S: Final = 20.0
"""Seconds that all probes are given together; a first import of torch takes several."""
STDERR_BYTES: Final = 8192
STDERR_LINES: Final = 8
_PATIENCE: Final = 0.2
"""The part of the time for which the others wait for one."""
_SPLIT: Final = 4
"""Children that go on where one keeps the others waiting; each imports torch anew."""
_TICK_S: Final = 0.05
_FAULT: Final = ("Fatal Python error", "Timeout (")
_FRAME: Final = "  File "
_ENDING: Final = ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM")


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """A probe that gave no answer: how it ended, and its last lines on stderr.

    `hung`: it was given a fair part of the time and took it, on a machine that let it run; `begun`
    is False where it was never its turn.
    """

    how: str
    words: tuple[str, ...] = ()
    hung: bool = False
    begun: bool = True


Answer = Mapping[str, Any]


def run_isolated(
    names: Sequence[str], order: Answer, *, limit_s: float = LIMIT_S
) -> dict[str, Answer | ProbeFailure]:
    """The answer, or the death, of each name. `order` is JSON that every child gets.

    Raises:
        InputError: no child can be started here.
    """
    if os.name != "posix" or not sys.executable:
        raise InputError(
            "probing needs a child process with a pipe of its own, which this system cannot give",
            hint="run on Linux; `vllm-adapter list` without --probe works anywhere",
        )
    order = {**order, "path": sys.path}
    results: dict[str, Answer | ProbeFailure] = {}
    with selectors.DefaultSelector() as selector:
        crew: list[_ProbeProcess] = []
        try:
            with _end_children_on_signal(crew):
                waiting = [(list(names), limit_s)] if names else []
                while waiting or crew:
                    crew += [_ProbeProcess(group, order, selector, s) for group, s in waiting]
                    waiting = []
                    for key, _ in selector.select(_TICK_S):
                        key.data(key.fileobj)
                    for child in list(crew):
                        rest = child.look(limit_s)
                        left = child.left_s
                        if child.how:
                            crew.remove(child)
                            child.close()
                            results.update(child.results)
                        if rest and left <= 0:
                            results.update(dict.fromkeys(rest, _not_begun(limit_s, results)))
                        elif rest:
                            n = 1 if child.how else _SPLIT
                            waiting += [(part, left) for i in range(n) if (part := rest[i::n])]
        finally:
            for child in crew:
                child.close()
    return results


def _not_begun(limit_s: float, results: Mapping[str, Answer | ProbeFailure]) -> ProbeFailure:
    hung = [name for name, one in results.items() if isinstance(one, ProbeFailure) and one.hung]
    why = f": {', '.join(hung)} took the time" if hung else ""
    return ProbeFailure(f"was not begun within the {limit_s:g} s of all probes{why}", begun=False)


@contextmanager
def _end_children_on_signal(crew: Sequence[_ProbeProcess]) -> Iterator[None]:
    """A signal that ends this process first ends the children, and says who was being probed."""

    def say(name: str) -> None:
        asked = [child.current for child in crew if child.current]
        for child in crew:
            child.close()
        left_out = ",".join(f"-{name}" for name in asked)
        whom = " and ".join(asked) or "no adapter"
        sentence = f"error: {name} ended this while {whom} was being probed"
        if asked:
            sentence += f"; if nobody sent it, that adapter did (VA_ADAPTERS={left_out})"
        with suppress(OSError):
            os.write(2, f"{sentence}\n".encode())

    def end(number: int, _: FrameType | None) -> None:
        say(signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    ours: list[int] = []
    if threading.current_thread() is threading.main_thread():
        numbers = (getattr(signal, name) for name in _ENDING)
        ours = [one for one in numbers if signal.getsignal(one) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    except KeyboardInterrupt:
        say("SIGINT")
        raise
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class _ProbeProcess:
    """One child process, from its start until it has answered, died or overstayed."""

    def __init__(
        self,
        names: Sequence[str],
        order: Answer,
        selector: selectors.BaseSelector,
        limit_s: float,
    ) -> None:
        self.names = list(names)
        self.results: dict[str, Answer | ProbeFailure] = {}
        self.how = ""
        self.current: str | None = None
        self._selector = selector
        self._limit_s, self._since = limit_s, 0.0
        self._partial = self._stderr = b""
        self._closed = False
        self._order = json.dumps({**order, "names": self.names, "limit_s": limit_s}).encode()
        self._pipe, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-X", "faulthandler"),
                    *("-m", "vllm_adapter.discovery.probe._child", str(write_end)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(write_end,),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            os.close(self._pipe)
            raise InputError(
                f"cannot start {sys.executable}: {error.strerror}",
                hint="check the limits on processes and memory of this account",
            ) from None
        finally:
            os.close(write_end)
        assert self._process.stdin is not None and self._process.stderr is not None
        self._given = TimeGiven(self._process.pid)
        self._error = self._process.stderr.fileno()
        for descriptor in (self._pipe, self._error, self._process.stdin.fileno()):
            os.set_blocking(descriptor, False)
        selector.register(self._pipe, selectors.EVENT_READ, self._read_answers)
        selector.register(self._error, selectors.EVENT_READ, self._read_stderr)
        selector.register(self._process.stdin, selectors.EVENT_WRITE, self._write_order)

    @property
    def left_s(self) -> float:
        """What it has left of the time that it may be given."""
        return self._limit_s - self._given.seconds()

    def look(self, limit_s: float) -> list[str]:
        """The names that others must take over now. With `how`, the child is at its end.

        `limit_s` is that of all probes together.

        Raises:
            InputError: it died before it began anything.
        """
        # A grandchild may hold our pipes open, so the child's own end is polled for.
        code = self._process.poll()
        self._read_answers(self._pipe)
        remaining = [name for name in self.names if name not in self.results]
        now = self._given.seconds()
        if not remaining:
            self.how = "answered"
            return []
        if code is None and now < self._limit_s:
            others = [name for name in remaining if name != self.current]
            if self.current is None or now < self._since + limit_s * _PATIENCE or not others:
                return []
            self.names = [name for name in self.names if name not in others]
            return others
        self.how = describe_exit(code) if code is not None else self._given.no_answer(limit_s)
        self._read_stderr(self._error)
        if self.current is not None:
            enough = now >= self._since + 2 * limit_s * _PATIENCE
            hung = code is None and enough and not self._given.mostly_waited
            self.results[self.current] = ProbeFailure(self.how, self.words(), hung=hung)
            remaining.remove(self.current)
        elif code is not None and not self.results:
            words = " / ".join(self.words())
            self.close()
            raise InputError(
                f"the probe process {self.how} before it began: {words}",
                hint="to see why, run "
                f"`python -m vllm_adapter.discovery.probe._child {remaining[0]}`",
            )
        return remaining

    def close(self) -> None:
        """Ends the process and all that it started; again does nothing."""
        if self._closed:
            return
        self._closed = True
        kill_group(self._process)
        for stream in (self._pipe, self._process.stderr, self._process.stdin):
            with suppress(KeyError, ValueError):  # ValueError: it was closed when it was told all
                self._selector.unregister(stream)  # type: ignore[arg-type]
        os.close(self._pipe)
        for file in (self._process.stdin, self._process.stderr):
            with suppress(OSError):  # closing flushes nothing: bufsize is 0
                file and file.close()

    def words(self) -> tuple[str, ...]:
        """The last lines of stderr; where Python's fault handler spoke, the first of its last."""
        text = self._stderr.decode(errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        spoke = [i for i, line in enumerate(lines) if line.startswith(_FAULT)]
        for i in reversed(spoke):  # the last one may have been cut short
            part = lines[i : i + STDERR_LINES]  # the guilty line comes first, our own frames last
            if any(line.startswith(_FRAME) for line in part):
                return tuple(part)
        return tuple(lines[-STDERR_LINES:])

    def _write_order(self, _: object) -> None:
        assert self._process.stdin is not None
        self._order = _write(self._process, self._order)
        if not self._order:
            self._selector.unregister(self._process.stdin)
            self._process.stdin.close()

    def _read_answers(self, _: object) -> None:
        data = _read(self._pipe)
        if data == b"":
            with suppress(KeyError):
                self._selector.unregister(self._pipe)
        *lines, self._partial = (self._partial + (data or b"")).split(b"\n")
        for line in lines:
            match _message(line):
                case ["begin", str(name)] if name in self.names and name not in self.results:
                    self._read_stderr(self._error)
                    self._stderr = b""
                    self.current = name
                    self._since = self._given.seconds()
                case ["end", name, dict(answer)] if name == self.current:
                    self.results[name] = answer
                    self.current = None

    def _read_stderr(self, _: object) -> None:
        data = _read(self._error)
        if data == b"":
            with suppress(KeyError):
                self._selector.unregister(self._error)
        self._stderr = (self._stderr + (data or b""))[-STDERR_BYTES:]


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


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Ends a child that leads a session of its own, and all that it started; waits for it."""
    with suppress(ProcessLookupError, PermissionError):  # nobody of the group is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def describe_exit(code: int) -> str:
    """How a process ended, from its return code, as in "was killed by SIGSEGV"."""
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
