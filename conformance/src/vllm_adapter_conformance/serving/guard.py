"""Runs a command in a process group of its own, and ends the group with whoever asked for it.

`python guard.py SECONDS COMMAND...`. The group is killed when standard input closes, when the
time is over, or when the command has ended and left processes behind; SIGTERM is passed on to
the command alone. Exit code: the command's; 124 after the time, 137 after standard input closed;
128 and the signal's number where a signal ended the command.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

_POLL_S = 0.05
OVER = 124
LEFT = 137


def main(seconds: float, command: list[str]) -> int:
    """The exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    end = time.monotonic() + seconds
    try:
        while True:
            code = child.poll()
            if code is not None:
                return code if code >= 0 else 128 - code
            if time.monotonic() > end:
                return OVER
            ready, _, _ = select.select([sys.stdin], [], [], _POLL_S)
            if ready and not os.read(sys.stdin.fileno(), 4096):
                return LEFT
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
