"""Streams and events of the device as torch's classes, over the library's real queues.

They derive from torch's own, so that `isinstance` and `record_stream` take them; what torch's own
would ask of its guard, which does nothing for a device that Python brought, they ask the library.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, Final, Self

import torch

from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.runtime.c_library.streams import (
    CLibraryEvent,
    CLibraryStream,
    CurrentStreams,
)
from vllm_adapter.errors import DeviceError, VllmAdapterError

MOMENT: Final = 0.002
"""Seconds that a mark in an idle stream is given to be passed."""
_TYPE: Final[int] = torch._C._autograd.DeviceType.PrivateUse1.value
# To mypy any class: theirs take and give torch's own where ours take and give ours.
_TorchStream: Final[Any] = torch.Stream
_TorchEvent: Final[Any] = torch.Event


class DeviceStream(CLibraryStream, _TorchStream):  # type: ignore[misc] # see above
    """A queue of one device's work; inside a `with` it is the thread's current one there.

    `torch.<name>.Stream` is this class with a library. `priority` is taken and ignored: the C ABI
    has none.
    """

    streams: DeviceStreams

    def __new__(cls, device: Any = None, priority: int = 0, *, handle: int | None = None) -> Self:
        index, library = cls.streams.index(device), cls.streams.library
        own = CLibraryStream(library, index, handle)
        made: Self = _TorchStream.__new__(
            cls, stream_id=own.handle, device_index=index, device_type=_TYPE
        )
        made._own = own  # its end is the end of the library's stream
        CLibraryStream.__init__(made, library, index, own.handle)
        cls.streams.live.add(made)
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        """All is done: torch's classes take their device when they are made."""

    def query(self) -> bool:
        """Whether everything on the stream has run.

        The C ABI asks marks alone, so one is set, and given a moment: it is passed at once where
        the stream has nothing to do.
        """
        mark = self.record_event()
        until = time.monotonic() + MOMENT
        while not mark.query():
            if time.monotonic() > until:
                return False
            time.sleep(MOMENT / 20)
        return True

    def record_event(self, event: CLibraryEvent | None = None) -> CLibraryEvent:
        """Marks this place of the stream in `event`, or in a new one, and gives it."""
        return super().record_event(self.streams.Event(self.device) if event is None else event)

    def __enter__(self) -> Self:
        self._outer = [*getattr(self, "_outer", ()), self.streams.get(self.device_id)]
        self.streams.set(self)
        return self

    def __exit__(self, *raised: object) -> None:
        self.streams.set(self._outer.pop())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DeviceStream)
            and (self.device_id, self.handle) == (other.device_id, other.handle)
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.device_id, self.handle))


class DeviceEvent(CLibraryEvent, _TorchEvent):  # type: ignore[misc] # see above
    """A mark in a stream. `torch.<name>.Event` is this class with a library.

    The library's event is made at the first record, on the stream's device, as torch's are. The
    options of other devices' events are taken and ignored: every event can be timed.
    """

    streams: DeviceStreams

    def __new__(cls, device: Any = None, **_: Any) -> Self:
        made: Self = _TorchEvent.__new__(cls, device=torch.device(cls.streams.name, 0))
        return made

    def __init__(self, device: Any = None, **_: Any) -> None:
        self._ready = False
        if device is not None and not isinstance(device, bool):
            self._make(self.streams.index(device))

    def record(self, stream: CLibraryStream | None = None) -> None:
        """Marks the present end of a stream; of the current one where none is given."""
        chosen = self.streams.get(self.streams.current) if stream is None else stream
        if not self._ready:
            self._make(chosen.device_id)
        super().record(chosen)

    def wait(self, stream: CLibraryStream | None = None) -> None:
        """Lets what is queued on a stream from now on wait for the last record."""
        if self._ready:
            chosen = self.streams.get(self.device_id) if stream is None else stream
            chosen.wait_event(self)

    def query(self) -> bool:
        return not self._ready or super().query()

    def synchronize(self) -> None:
        if self._ready:
            super().synchronize()

    def elapsed_time(self, end: DeviceEvent) -> float:
        """Milliseconds on the device from this event's last record to that of `end`."""
        if not (self._ready and end._ready):
            raise DeviceError(
                "the time between two events was asked for before both were recorded",
                hint="record both, and synchronize the later one first",
            )
        return self.elapsed_ms(end)

    def _make(self, index: int) -> None:
        CLibraryEvent.__init__(self, self.streams.library, index)
        self._ready = True


class DeviceStreams(CurrentStreams):
    """The current streams of each thread, the current device of the process, and the classes.

    The current device is one for all threads, as torch's own guard for such a device has none.
    """

    def __init__(self, library: Library, name: str) -> None:
        super().__init__(library)
        self.library = library
        self.name = name
        self.current = 0
        self.live: weakref.WeakSet[DeviceStream] = weakref.WeakSet()
        bound = {"streams": self, "__module__": f"torch.{name}"}
        self.Stream = type("Stream", (DeviceStream,), dict(bound))
        self.Event = type("Event", (DeviceEvent,), dict(bound))

    def index(self, device: Any) -> int:
        """The index that a device, a string or a number stands for; None: the current one.

        Raises:
            NoSuchDevice: there is no such index.
            DeviceError: it is another kind of device.
        """
        if device is None:
            return self.current
        if isinstance(device, int):
            found: int | None = device
        else:
            wanted = torch.device(device)
            if wanted.type != self.name:
                raise DeviceError(
                    f"{wanted} is no {self.name} device", hint=f"pass {self.name}:<index>"
                )
            found = wanted.index
        if found is None:
            return self.current
        self.library.check_device(found)
        return found

    def new(self, device_id: int) -> CLibraryStream:
        made: CLibraryStream = self.Stream(device_id)
        return made

    def default(self, device_id: int) -> CLibraryStream:
        stream = self._defaults.get(device_id)
        if stream is None:
            self.library.open(device_id)
            made = self.Stream(device_id, handle=0)
            stream = self._defaults.setdefault(device_id, made)
        return stream

    def synchronize(self, device_id: int) -> None:
        """Waits for every stream of a device; raises what the first of them says, at the end."""
        failed = None
        self.default(device_id)
        for stream in list(self.live):
            if stream.device_id == device_id:
                try:
                    stream.synchronize()
                except VllmAdapterError as error:
                    failed = failed or error
        if failed:
            raise failed
