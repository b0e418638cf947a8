"""The child that `clib_check` starts: loads a C library and asks it what core will ask.

    python -m vllm_adapter.discovery.probe._library_child FD PATH LIMIT_S

FD receives one JSON list a line: ["step", words] before each step, then ["answer", object] or
["refused", message, hint]. A second after the limit the child ends itself, should nobody be left
to end it.

    python -X faulthandler -m vllm_adapter.discovery.probe._library_child PATH

asks without any guard, to see a crash or a hang with one's own eyes.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_adapter.c_abi.library import Library, load, reproduce_command
from vllm_adapter.discovery.probe._guard import signalled, stand_guard
from vllm_adapter.errors import VllmAdapterError


def ask(path: Path, step: Callable[[str], None]) -> dict[str, Any]:
    """What a library says of itself and its devices; `step` hears what is about to be done."""
    step("loaded")
    load(path)
    step("asked for its table by va_get_api")
    library = Library(path)
    step("asked for device_count")
    devices = []
    for device_id in range(library.device_count()):
        step(f"asked for device_info of device {device_id}")
        devices.append(dataclasses.asdict(library.device_info(device_id)))
    return {
        "vendor": library.vendor,
        "version": library.version,
        "abi_version": library.abi_version,
        "functions": list(library.functions),
        "devices": devices,
    }


def main() -> None:
    """Serves one order and leaves at once: a library's exit handlers are not our risk to take."""
    if len(sys.argv) == 2:
        _by_hand(Path(sys.argv[1]))
        return
    stand_guard()
    channel, path = int(sys.argv[1]), Path(sys.argv[2])
    signal.alarm(math.ceil(float(sys.argv[3])) + 1)
    faulthandler.enable()
    os.set_inheritable(channel, False)
    os.dup2(2, 1)  # libraries print banners

    def send(*message: Any) -> None:
        os.write(channel, json.dumps(message).encode() + b"\n")

    try:
        answer = ask(path, lambda words: send("step", words))
    except VllmAdapterError as error:
        send("refused", error.message, error.hint)
    else:
        trespass = signalled()
        if trespass:
            send(
                "refused",
                f"{path}: when it was asked, it {trespass}",
                f"run `{reproduce_command(path)}`",
            )
        else:
            send("answer", answer)
    os._exit(0)


def _by_hand(path: Path) -> None:
    try:
        print(json.dumps(ask(path, lambda words: print(words, flush=True)), indent=2))
    except VllmAdapterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
