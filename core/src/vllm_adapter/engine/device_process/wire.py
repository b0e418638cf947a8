"""Messages of plain data between two processes, of which neither trusts the other.

A message is None, a bool, a number, text, bytes, a tensor, or a list, tuple or dict of these. Its
head goes through a socket as msgpack; tensors and long bytes lie in a file without a name that
both have open (the desk), and are copied from there: what is judged cannot change any more.
Nothing that is received is ever run.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import torch

MOST_HEAD: Final = 64 << 20
"""Bytes of a message's head; what is larger lies on the desk."""
SHORT: Final = 1 << 12
"""Bytes that are part of the head."""
KEPT_DESK: Final = 64 << 20
"""A desk that was larger is cleared before the next message."""
TICK_S: Final = 0.1
_HEAD: Final = struct.Struct("<QQ")
"""The message's number, and the length of its head."""
_TUPLE, _TENSOR, _BYTES = 1, 2, 3
DTYPES: Final = {
    str(found).removeprefix("torch."): found
    for found in vars(torch).values()
    if isinstance(found, torch.dtype)
}


class WireError(Exception):
    """The other side ended, or sent what is no message."""


class TimeIsUp(Exception):
    """No answer within the time that there was."""


def make_desk() -> int:
    """A file descriptor of a new desk, which no path names."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("desk")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Wire:
    """One end. `alive` says, while this end waits, whether the other can still answer.

    Limits are moments of `clock`, in seconds.
    """

    def __init__(
        self,
        connection: socket.socket,
        desk: int,
        alive: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._desk = connection, desk
        self._alive, self._clock = alive, clock
        connection.setblocking(False)

    def send(self, number: int, message: Any, until: float | None = None) -> None:
        """Sends a message; `until` as in `receive`.

        Raises:
            TypeError: it is no plain data.
            WireError, TimeIsUp: the other side does not read it.
        """
        if os.fstat(self._desk).st_size > KEPT_DESK:
            os.ftruncate(self._desk, 0)
        head = msgspec.msgpack.encode(_Packing(self._desk).packed(message))
        if len(head) > MOST_HEAD:
            raise TypeError(f"a message with a head of {len(head)} bytes")
        data = memoryview(_HEAD.pack(number, len(head)) + head)
        while data:
            self._wait(select.POLLOUT, until)
            try:
                data = data[self._connection.send(data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise WireError(f"the other side is gone: {error.strerror}") from None

    def receive(self, until: float | None = None) -> tuple[int, Any]:
        """The next message and its number, waiting `until` then on its clock.

        Raises:
            WireError: the other side is gone, or sent what is no message.
            TimeIsUp: nothing came.
        """
        number, length = _HEAD.unpack(self._exactly(_HEAD.size, until))
        if length > MOST_HEAD:
            raise WireError(f"it sent a head of {length} bytes")
        head = self._exactly(length, until)
        try:
            return number, msgspec.msgpack.decode(head, ext_hook=self._extension)
        except WireError:
            raise
        except Exception as error:
            raise WireError(f"it sent what is no message: {type(error).__name__}") from None

    def close(self) -> None:
        """Ends this end."""
        self._connection.close()
        os.close(self._desk)

    def _exactly(self, count: int, until: float | None) -> bytes:
        parts, missing = [], count
        while missing:
            self._wait(select.POLLIN, until)
            try:
                part = self._connection.recv(min(missing, 1 << 20))
            except BlockingIOError:
                continue
            except OSError as error:
                raise WireError(f"the other side is gone: {error.strerror}") from None
            if not part:
                raise WireError("the other side is gone")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _wait(self, event: int, until: float | None) -> None:
        """A child that the other side forked may hold its end open: it is asked for, too."""
        poll = select.poll()
        poll.register(self._connection, event)
        while True:
            left = TICK_S if until is None else min(TICK_S, until - self._clock())
            if left < 0:
                raise TimeIsUp
            if poll.poll(left * 1000):
                return
            if not self._alive():
                if poll.poll(0):
                    return
                raise WireError("the other side is gone")

    def _extension(self, code: int, data: memoryview) -> Any:
        kind, *rest = msgspec.msgpack.decode(data, type=list[Any], ext_hook=self._extension)
        if code == _TUPLE:
            return tuple(rest)
        if code == _BYTES:
            at, count = rest
            found = bytearray(self._there(_natural(at), _natural(count)))
            self._copy(memoryview(found), at)
            return bytes(found)
        if code == _TENSOR:
            shape, at = rest
            dtype = DTYPES[kind]
            self._there(_natural(at), math.prod(map(_natural, shape)) * dtype.itemsize)
            made = torch.empty(shape, dtype=dtype)
            self._copy(bytes_of(made), at)
            return made
        raise WireError(f"it sent an extension {code}")

    def _there(self, at: int, count: int) -> int:
        """`count`, if the desk has so many bytes: nobody is made to ask for the memory else."""
        if count and at + count > os.fstat(self._desk).st_size:
            raise WireError("it sent less than it says")
        return count

    def _copy(self, into: memoryview, at: int) -> None:
        while into:
            count = os.preadv(self._desk, [into], at)
            if not count:
                raise WireError("it sent less than it says")
            into, at = into[count:], at + count


class _Packing:
    """One message on its way to the desk."""

    def __init__(self, desk: int) -> None:
        self._desk, self._at = desk, 0

    def packed(self, value: Any) -> Any:
        """The value with an extension in the place of what msgpack does not have."""
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return [self.packed(item) for item in value]
        if kind is dict:
            return {key: self.packed(item) for key, item in value.items()}
        if kind is tuple:
            return _extension(_TUPLE, "", *(self.packed(item) for item in value))
        if isinstance(value, (bytes, bytearray, memoryview)):
            if len(value) <= SHORT:
                return bytes(value)
            return _extension(_BYTES, "", self._lay(memoryview(value).cast("B")), len(value))
        if isinstance(value, torch.Tensor):
            host = on_host(value)
            name = str(host.dtype).removeprefix("torch.")
            return _extension(_TENSOR, name, list(host.shape), self._lay(bytes_of(host)))
        raise TypeError(f"{kind.__name__} is no plain data")

    def _lay(self, data: memoryview) -> int:
        begin = self._at
        while data:
            count = os.pwrite(self._desk, data, self._at)
            data, self._at = data[count:], self._at + count
        self._at = -(-self._at // 64) * 64
        return begin


def copied(value: Any) -> Any:
    """A message as the other side would get it, where there is no other process."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(copied(item) for item in value)
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return on_host(value).clone()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise TypeError(f"{kind.__name__} is no plain data")


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """tensor: [...] anywhere -> [...] on the host, contiguous."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host; it must outlive the view.

    tensor: [...].
    """
    if not tensor.nbytes:
        return memoryview(b"")
    array = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return memoryview(array).cast("B")


def _extension(code: int, *parts: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(list(parts)))


def _natural(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise WireError(f"it sent {number!r} for a size")
    return number
