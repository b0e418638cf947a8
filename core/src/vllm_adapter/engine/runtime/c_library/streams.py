"""Streams and events of a C library, and which stream is a thread's current one.

torch cannot make a `torch.Stream` for a device that Python brought: its guard's stream calls do
nothing there. These are our own; `torch.<name>.Stream` builds on them.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.library import Library
from vllm_adapter.errors import DeviceError, VllmAdapterError

LOG: Final = logging.getLogger("vllm_adapter.runtime")
HELD: Final = 64
"""Host buffers and events that a stream keeps alive; with one more, the call waits for it."""


class CLibraryStream:
    """A queue of one device's work. Work of one stream runs in order.

    `handle` is its va_stream; 0 is the device's default stream, which is never destroyed. The
    stream is destroyed with its last reference, after its work is done.
    """

    def __init__(self, library: Library, device_id: int, handle: int | None = None) -> None:
        """`handle` is one that is there already; None makes a new stream."""
        self.library = library
        self.device_id = device_id
        self._held: list[Any] = []
        if handle is not None:
            self.handle = handle
            return
        made = ctypes.c_uint64()
        library.open(device_id)
        library.call("stream_create", device_id, ctypes.byref(made))
        self.handle = made.value
        # Synchronised before, so that no failure goes unheard; what it holds is still alive then.
        names = ("stream_synchronize", "stream_destroy")
        _destroy_with(self, library, names, device_id, self.handle)

    def synchronize(self) -> None:
        """Waits until everything on the stream has run.

        Raises:
            DeviceError: work of the stream failed since the last time.
        """
        held, self._held = self._held, []
        try:
            self.library.call("stream_synchronize", self.device_id, self.handle)
        finally:
            held.clear()

    def wait_event(self, event: CLibraryEvent) -> None:
        """Lets what is queued from now on wait for the event's last record. Does not wait here."""
        self.library.call("stream_wait_event", self.device_id, self.handle, event.handle)
        self.hold(event)  # a library may forget a wait for an event that is destroyed

    def wait_stream(self, other: CLibraryStream) -> None:
        """Lets what is queued from now on wait for all that `other` has now."""
        self.wait_event(other.record_event())

    def record_event(self, event: CLibraryEvent | None = None) -> CLibraryEvent:
        """Marks this place of the stream in `event`, or in a new one, and gives it."""
        event = CLibraryEvent(self.library, self.device_id) if event is None else event
        event.record(self)
        return event

    def hold(self, used: Any) -> None:
        """Keeps host memory, or an event, alive until the stream has passed what uses it.

        That must have been queued before: another thread may synchronise in between.
        """
        self._held.append(used)
        if len(self._held) > HELD:
            self.synchronize()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.handle} of device {self.device_id}>"


class CLibraryEvent:
    """A mark in a stream: asked, waited for, and timed against another one."""

    def __init__(self, library: Library, device_id: int) -> None:
        self.library = library
        self.device_id = device_id
        made = ctypes.c_uint64()
        library.open(device_id)
        library.call("event_create", device_id, ctypes.byref(made))
        self.handle = made.value
        _destroy_with(self, library, ("event_destroy",), device_id, self.handle)

    def record(self, stream: CLibraryStream) -> None:
        """Marks the stream's present end."""
        if stream.device_id != self.device_id:
            raise DeviceError(
                f"an event of device {self.device_id} cannot be recorded in {stream!r}",
                hint="make the event on the stream's device",
            )
        self.library.call("event_record", self.device_id, stream.handle, self.handle)

    def query(self) -> bool:
        """Whether the last record has been reached; true if there was none."""
        status = self.library.ask("event_query", self.device_id, self.handle)
        if status not in (abi.OK, abi.NOT_READY):
            raise self.library.error(status, "event_query")
        return bool(status == abi.OK)

    def synchronize(self) -> None:
        """Waits until the last record has been reached."""
        self.library.call("event_synchronize", self.device_id, self.handle)

    def elapsed_ms(self, end: CLibraryEvent) -> float:
        """Milliseconds on the device between two records.

        Raises:
            DeviceError: one of them has not been reached, or was never recorded.
        """
        found = ctypes.c_double()
        status = self.library.ask(
            "event_elapsed", self.device_id, self.handle, end.handle, ctypes.byref(found)
        )
        if status == abi.NOT_READY:
            raise DeviceError(
                "the time between two events was asked for before both were reached",
                hint="record both, and synchronize the later one first",
            )
        if status:
            raise self.library.error(status, "event_elapsed")
        return found.value


class _ThreadStreams(threading.local):
    """The streams that a thread has set, by device."""

    def __init__(self) -> None:
        self.streams: dict[int, CLibraryStream] = {}


class CurrentStreams:
    """Each thread's current stream on each device; the default stream until another is set."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._local = _ThreadStreams()
        self._defaults: dict[int, CLibraryStream] = {}

    def get(self, device_id: int) -> CLibraryStream:
        """The stream that work of this thread goes to."""
        found = self._local.streams.get(device_id)
        return self.default(device_id) if found is None else found

    def handle(self, device_id: int) -> int:
        """The va_stream of that stream: cheap, for every call of an operator asks."""
        found = self._local.streams.get(device_id)
        return 0 if found is None else found.handle

    def new(self, device_id: int) -> CLibraryStream:
        """A stream of its own."""
        return CLibraryStream(self._library, device_id)

    def default(self, device_id: int) -> CLibraryStream:
        """The device's default stream, one object for all threads."""
        stream = self._defaults.get(device_id)
        if stream is None:
            self._library.open(device_id)
            stream = self._defaults.setdefault(
                device_id, CLibraryStream(self._library, device_id, 0)
            )
        return stream

    def set(self, stream: CLibraryStream) -> None:
        """Makes a stream the current one of its device in this thread."""
        self._local.streams[stream.device_id] = stream

    @contextmanager
    def using(self, stream: CLibraryStream) -> Iterator[CLibraryStream]:
        """The stream is the current one inside a `with`."""
        before = self.get(stream.device_id)
        self.set(stream)
        try:
            yield stream
        finally:
            self.set(before)


def _destroy_with(
    owner: object, library: Library, names: tuple[str, ...], device_id: int, handle: int
) -> None:
    # Not at exit: the library may be half torn down by then, and the system frees all.
    weakref.finalize(owner, _destroy, library, names, device_id, handle).atexit = False


def _destroy(library: Library, names: tuple[str, ...], device_id: int, handle: int) -> None:
    for name in () if library.is_forked else names:
        try:
            library.call(name, device_id, handle)
        except VllmAdapterError as error:  # nobody is left to raise it to
            LOG.warning("%s", error)
