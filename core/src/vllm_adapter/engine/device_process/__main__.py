"""The process: `python -m vllm_adapter.engine.device_process CONNECTION DESK`, two descriptors."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, Final

from vllm_adapter.engine.device_process.errors import told
from vllm_adapter.engine.device_process.held import HeldDevice
from vllm_adapter.engine.device_process.wire import Wire, WireError

_PARENT_ENDS: Final = 1
"""prctl's PR_SET_PDEATHSIG."""


def serve(wire: Wire) -> None:
    """Answers one message after the other, until the other side ends."""
    own = os.getpid()
    device: HeldDevice | None = None
    with suppress(WireError):
        while True:
            number, asked = wire.receive()
            answer: dict[str, Any]
            try:
                if device is None:
                    sys.path[:] = asked["path"]
                    device = HeldDevice.of(**asked["order"])
                    answer = {"found": None}
                else:
                    answer = {"found": device.answer(**asked)}
            except BaseException as error:
                answer = {"error": told(error)}
            if os.getpid() != own:
                os._exit(0)  # a kernel forked, and its child came back, too
            try:
                wire.send(number, answer)
            except WireError:
                raise
            except Exception as error:  # a device may report a fault when it is read
                wire.send(number, {"error": told(error)})


def main() -> None:
    """Ends with its parent, whatever a kernel does meanwhile."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_ENDS, signal.SIGKILL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection, desk = map(int, sys.argv[1:3])
    serve(Wire(socket.socket(fileno=connection), desk))


if __name__ == "__main__":
    main()
