"""Stands between a process of ours and a child that runs anybody's code.

`stand_guard` forks: what calls it goes on in the child, whose parent is then a process that does
nothing but wait. A signal to the parent hits that one; it is blocked there, stays pending, and
`signalled` sees it. Linux only, as all that is asked in such children; elsewhere nobody guards.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Final, NoReturn

_STATUS_BYTES: Final = 8192
_guard: int | None = None


def stand_guard() -> None:
    """Returns in a child of this process, which waits and then ends as the child ends."""
    global _guard
    if not sys.platform.startswith("linux"):
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    guard = os.getpid()
    child = os.fork()
    if child:
        _wait(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _guard = guard


def signalled() -> str | None:
    """What the code that ran here did to the guard, as in "sent SIGTERM to its parent"."""
    if _guard is None:
        return None
    try:
        with open(f"/proc/{_guard}/status", "rb") as file:
            lines = file.read(_STATUS_BYTES).decode("ascii", "replace").splitlines()
    except OSError:
        lines = []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    state = fields.get("State", "").strip()[:1]
    pending = int(fields.get("ShdPnd", "0"), 16) | int(fields.get("SigPnd", "0"), 16)
    names = [one.name for one in signal.Signals if pending >> (one - 1) & 1]
    if signal.SIGCHLD.name in names:
        names.remove(signal.SIGCHLD.name)
    if names:
        return f"sent {', '.join(names)} to its parent process"
    if state == "T":
        return "stopped its parent process"
    if os.getppid() != _guard or state in ("", "Z", "X"):
        return "killed its parent process"
    return None


def _wait(child: int) -> NoReturn:
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has written its own
        signal.signal(-code, signal.SIG_DFL) if -code not in _FIXED else None
        os.kill(os.getpid(), -code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os._exit(code & 255)


_FIXED: Final = (signal.SIGKILL, signal.SIGSTOP)
