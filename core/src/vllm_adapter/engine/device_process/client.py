"""Whoever asks: starts the device's process, sends what is asked, and lives on if it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from vllm_adapter.engine.device_process.errors import ProcessEnded, raised, told
from vllm_adapter.engine.device_process.held import HeldDevice
from vllm_adapter.engine.device_process.wire import TimeIsUp, Wire, WireError, copied, make_desk
from vllm_adapter.hostfacts.time_given import TimeGiven

MODULE: Final = "vllm_adapter.engine.device_process"
STACKS_S: Final = 0.5
"""Time for the fault handler to write its stacks."""
ENDING_S: Final = 5.0
_LOG_BYTES: Final = 1 << 16
_LINES: Final = 16


class Asking(Protocol):
    """A device that can be asked, wherever it is."""

    def ask(
        self, command: str, given: Mapping[str, Any], seconds: float, forget: Sequence[int] = ()
    ) -> Any:
        """What a command gives: the method `do_COMMAND` of `HeldDevice`; `forget` as its `answer`.

        Raises:
            VllmAdapterError: raised there, of its own class.
            RemoteError: any other error there.
            ProcessEnded: no answer, within so many seconds or for good.
        """

    @property
    def is_up(self) -> bool:
        """Whether it can be asked."""

    def given_s(self) -> float:
        """Seconds that it was given until now: what a limit counts."""

    def end(self) -> None:
        """Ends it; may be called again."""


class OwnProcess:
    """The device in a process of its own. `order` is what `HeldDevice.of` takes.

    What it prints is in the file `log`; `variables` are put into its environment.
    """

    def __init__(
        self, order: Mapping[str, Any], log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self._log, self._number = log, 0
        ours, theirs = socket.socketpair()
        desk = make_desk()
        os.set_inheritable(desk, True)
        with theirs, log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), str(desk)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_environment() | dict(variables or {}),
                pass_fds=(theirs.fileno(), desk),
                start_new_session=True,
            )
        os.set_inheritable(desk, False)
        self._given = TimeGiven(self._process.pid)
        self._wire = Wire(ours, desk, lambda: self._process.poll() is None, self.given_s)
        self._order: Mapping[str, Any] | None = order

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_up(self) -> bool:
        return self._process.returncode is None

    def given_s(self) -> float:
        return self._given.seconds()

    def ask(
        self, command: str, given: Mapping[str, Any], seconds: float, forget: Sequence[int] = ()
    ) -> Any:
        until = self.given_s() + seconds
        if self._order is not None:
            self._exchange({"path": sys.path, "order": dict(self._order)}, until)
            self._order = None  # one that was refused is refused again, with its words
        asked = {"command": command, "given": dict(given), "forget": list(forget)}
        return self._exchange(asked, until)

    def end(self) -> None:
        """With all that it started: they are one process group."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._wire.close()

    def _exchange(self, message: Mapping[str, Any], until: float) -> Any:
        if not self.is_up:
            raise ProcessEnded("has ended before", "")
        self._number += 1
        try:
            self._wire.send(self._number, dict(message), until)
            number, answer = self._wire.receive(until)
            if number != self._number or type(answer) is not dict:
                raise WireError("it answered twice, or what nobody asked")
            if "error" in answer:
                error = raised(answer["error"])
            else:
                return answer["found"]
        except TimeIsUp:
            raise self._ended(hung=True) from None
        except (WireError, KeyError, TypeError, ValueError) as fault:
            raise self._ended(said=str(fault)) from None
        raise error

    def _ended(self, *, hung: bool = False, said: str = "") -> ProcessEnded:
        if hung:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGUSR1)
                time.sleep(STACKS_S)
        code: int | None = None
        if not hung:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(STACKS_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._wire.close()
        how = (
            "hangs" if hung else f"gave no answer: {said}" if code is None else how_it_ended(code)
        )
        return ProcessEnded(how, last_words(self._log), hung=hung)


class SameProcess:
    """The device in this process, for whoever debugs a kernel: asked in the same way."""

    def __init__(self, held: HeldDevice) -> None:
        self.held = held

    @property
    def is_up(self) -> bool:
        return True

    def given_s(self) -> float:
        return time.monotonic()

    def ask(
        self, command: str, given: Mapping[str, Any], seconds: float, forget: Sequence[int] = ()
    ) -> Any:
        try:
            return copied(self.held.answer(command, copied(dict(given)), forget))
        except Exception as error:
            raise raised(told(error)) from error

    def end(self) -> None:
        """Its end is that of this process."""


def how_it_ended(code: int) -> str:
    """An exit code in words: "was killed by SIGSEGV"."""
    if code >= 0:
        return f"left with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def last_words(log: Path) -> str:
    """What a process printed last: the guilty thread's stack where the fault handler wrote one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    at = next((i for i, line in enumerate(lines) if line.startswith("Current thread")), None)
    if at is None:
        return "\n".join(line for line in lines[-_LINES:] if line.strip())
    own = f"{Path(__file__).parent}{os.sep}"
    shown = []
    for line in lines[at : at + _LINES]:
        if own in line:
            break
        shown.append(line)
    return "\n".join(shown)


def _environment() -> dict[str, str]:
    """As ours, without what says who asks."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return kept | {"VA_FALLBACK": "error"}
