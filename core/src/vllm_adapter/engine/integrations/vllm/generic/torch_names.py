"""Names of torch.cuda and torch.accelerator that vLLM's worker and runner use on every device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.vllm.generic.served import ServedDevice

_PARALLEL: Final = ("cuda",)
"""Device types whose own names torch.cuda's are."""
_CLEAR_PEAK: Final = "5"


def stand_in(device: ServedDevice) -> None:
    """Gives torch.accelerator what it lacks for this device, for the life of the process.

    It must come before vLLM's engine asks: also the process that only schedules empties the
    accelerator's caches at its end.
    """
    if device.is_host:
        _HostMemory(device).install(torch.accelerator)


@contextlib.contextmanager
def as_torch_cuda(device: ServedDevice) -> Iterator[None]:
    """Streams and events of the device under torch.cuda's names, while vLLM's runner is made."""
    if device.torch_type in _PARALLEL:
        yield
        return
    source = _Host if device.is_host else device.module
    event = _event_of(source)
    names = {
        "Stream": source.Stream,
        "Event": event,
        "stream": source.stream,
        "current_stream": source.current_stream,
        "default_stream": source.current_stream,
        "set_stream": source.set_stream,
    }
    before: dict[Any, Any] = {name: getattr(torch.cuda, name) for name in names}
    plain = torch.Event
    try:
        for name, ours in names.items():
            setattr(torch.cuda, name, ours)
        # upstream: vllm@0.32 gpu_model_runner.py:908
        setattr(torch, "Event", event)  # noqa: B010 # a class, for mypy
        yield
    finally:
        for name, theirs in before.items():
            setattr(torch.cuda, name, theirs)
        setattr(torch, "Event", plain)  # noqa: B010 # as above


def _event_of(source: Any) -> Any:
    def event(*args: Any, blocking: bool | None = None, **kwargs: Any) -> Any:
        # upstream: vllm@0.32 gpu_model_runner.py:753 `blocking` is an option of CUDA's alone
        return source.Event(*args, **kwargs)

    return event


class _HostStream:
    """Nothing is queued."""

    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...


class _HostEvent:
    """Is passed when it is made."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class _Host:
    """Streams and events of a device that does its work when it is asked to."""

    Stream = _HostStream
    Event = _HostEvent

    @staticmethod
    def current_stream(*_: Any) -> _HostStream:
        return _HostStream()

    @staticmethod
    def stream(*_: Any) -> Any:
        return contextlib.nullcontext()

    @staticmethod
    def set_stream(*_: Any) -> None: ...


class _HostMemory:
    """The CPU's memory in the words of an accelerator's: what this process takes, it lacks.

    Free memory is that of the first moment less what the process has grown by since: other
    programs of the machine come and go, and vLLM refuses to start where free memory grows.
    """

    def __init__(self, device: ServedDevice) -> None:
        found = device.runtime.query_memory_capacity(0)
        self._total, self._free = found.total_bytes, found.free_bytes
        self._first = _resident("VmRSS")

    def install(self, accelerator: ModuleType) -> None:
        """Puts the functions in their places."""
        ours = {
            "synchronize": lambda *_: None,
            # Not the same function twice: dynamo tells them apart by identity.
            "empty_cache": lambda *_: None,
            "empty_host_cache": lambda *_: None,
            "device_count": lambda: 1,
            "get_memory_info": self.info,
            "memory_stats": self.stats,
            "memory_allocated": lambda *_: _resident("VmRSS"),
            "memory_reserved": lambda *_: _resident("VmRSS"),
            "max_memory_allocated": lambda *_: _resident("VmHWM"),
            "reset_peak_memory_stats": self.reset,
        }
        for name, function in ours.items():
            setattr(accelerator, name, function)

    def info(self, device: Any = None) -> tuple[int, int]:
        """(free, total) bytes."""
        return max(self._free - (_resident("VmRSS") - self._first), 0), self._total

    def stats(self, device: Any = None) -> dict[str, int]:
        """Resident bytes, now and at most."""
        now = _resident("VmRSS")
        return {
            "allocated_bytes.all.current": now,
            "allocated_bytes.all.peak": max(_resident("VmHWM"), now),
        }

    def reset(self, device: Any = None) -> None:
        """Begins the peak anew, where the system lets a process do that."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK)


def _resident(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    return 0
