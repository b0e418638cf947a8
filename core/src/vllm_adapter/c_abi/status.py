"""What a status of a C library means: one typed error, with the library's own sentence in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vllm_adapter.c_abi import abi
from vllm_adapter.errors import (
    DeviceError,
    DeviceLost,
    ForkedDevice,
    LaunchFailed,
    NoSuchDevice,
    OutOfMemory,
    UnsupportedCase,
    VllmAdapterError,
)

_MEANINGS: Final[Mapping[int, tuple[type[VllmAdapterError], str, str]]] = {
    abi.INVALID: (
        DeviceError,
        "the argument makes no sense",
        "the caller gave what the library refuses; its sentence names the argument",
    ),
    abi.NO_DEVICE: (
        NoSuchDevice,
        "there is no such device",
        "`vllm-adapter list --probe` shows the devices that can be used",
    ),
    abi.OUT_OF_MEMORY: (
        OutOfMemory,
        "the memory ran out",
        "take a shorter context, a smaller batch, or another device",
    ),
    abi.UNSUPPORTED: (
        UnsupportedCase,
        "there is no kernel for this case",
        "the descriptor must not declare what the library refuses; "
        "`vllm-adapter explain ADAPTER OP` shows what it declares",
    ),
    abi.LAUNCH: (
        LaunchFailed,
        "the work could not be started, or failed while it ran",
        "results of that stream since the last synchronise are void; run the step again",
    ),
    abi.DEVICE_LOST: (
        DeviceLost,
        "the device is gone",
        "end the process, reset the device with the vendor's tool, and start again",
    ),
    abi.NOT_DEVICE: (
        DeviceError,
        "the address is no live memory of this device",
        "the caller used a tensor of another device, or memory after its release",
    ),
    abi.FORKED: (
        ForkedDevice,
        "the device was opened before this process was forked",
        "start workers with the method `spawn`, or open the device in the child alone",
    ),
    abi.INTERNAL: (DeviceError, "the library failed", "report it to the library's vendor"),
}


def error_of(status: int, where: str, sentence: str) -> VllmAdapterError:
    """The typed error of a status that is not OK.

    `where` names library and function; `sentence` is what the library's last_error() said, which
    may be empty.
    """
    kind, meaning, hint = _MEANINGS.get(
        status,
        (
            DeviceError,
            f"it gave the status {status}, which vllm_adapter.h does not have",
            "report it to the library's vendor",
        ),
    )
    said = " ".join(sentence.split())
    return kind(f"{where}: {said or meaning}", hint=hint)
