"""Runs a server as a child process, as if it were this process, and can end it for a reason.

Signals go on to the server, and its exit code is ours. A server that has not ended
`after_signal_s` seconds after SIGTERM or SIGINT, as one may that waits for a client, is killed.
Where `end` is called, the server is terminated, after `grace_s` killed, and the exit code is 1.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final

GRACE_S: Final = 20.0
"""A server whose device is gone may wait for it for ever."""
_KILLED_S: Final = 5.0
_PASSED_ON: Final = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
_ENDING: Final = frozenset((signal.SIGTERM, signal.SIGINT))
_PR_SET_PDEATHSIG: Final = 1
"""# upstream: linux include/uapi/linux/prctl.h"""


class SupervisedServer:
    """One server. Make it and call `run` in the main thread; `end` may come from another."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        grace_s: float = GRACE_S,
        after_signal_s: float | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._command = list(command)
        self._environ = dict(environ)
        self._grace_s, self._after_signal_s = grace_s, after_signal_s
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._over = threading.Event()
        self._ended_for: str | None = None
        self._killed_after: int | None = None
        self._say = say
        self._started = threading.Event()
        self.signalled = False

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._ended_for is not None

    def start(self) -> None:
        """Starts the server in a process group of its own, so that Ctrl-C reaches it once.

        Raises:
            OSError: it cannot be started.
        """
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)
        self._process = subprocess.Popen(
            self._command,
            env=self._environ,
            process_group=0,
            preexec_fn=_end_with_parent(),  # no other thread runs yet
        )
        for number in self._early:
            self._process.send_signal(number)
        self._started.set()
        threading.Thread(target=self._reap, name="vllm-adapter-server", daemon=True).start()

    def wait(self) -> int:
        """Waits for the end: the server's exit code, 128 and the signal that ended it (ours where
        it had to be killed after that), or 1 after `end`."""
        self._over.wait()
        assert self._process is not None
        if self._ended_for is not None:
            return 1
        code = self._process.returncode
        if self._killed_after is not None:
            return 128 + self._killed_after
        return code if code >= 0 else 128 - code

    def end(self, reason: str) -> None:
        """Ends the server; `wait` gives 1, also where the kernel does not let it go."""
        assert self._process is not None
        self._ended_for = reason
        self._process.send_signal(signal.SIGTERM)
        if not self._over.wait(self._grace_s):
            self._kill()

    def _kill(self) -> None:
        """Kills the server and the children of its group."""
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if not self._over.wait(_KILLED_S):
            self._over.set()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait()
        self._over.set()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        del frame
        first = number in _ENDING and not self.signalled and self._after_signal_s is not None
        self.signalled = True
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)
        if first:
            threading.Thread(target=self._end_late, args=(number,), daemon=True).start()

    def _end_late(self, number: int) -> None:
        seconds = self._after_signal_s
        assert seconds is not None
        self._started.wait()
        if self._over.wait(seconds):
            return
        name = signal.Signals(number).name
        self._say(f"the server had not ended {seconds:g} s after {name}: it is killed")
        self._killed_after = number
        self._kill()


def _end_with_parent() -> Any:
    """What the child does first: Linux ends it when this process is killed."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before we asked
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
