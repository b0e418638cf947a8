"""Copies that are wrong somewhere in size, offset, place on the host, contents or history."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import torch

from vllm_adapter_wrong.zoo import Host, wrong

PAGE = 4096


@wrong
class to_large_loses_the_tail(Host):
    """Above 8 MiB whole pages are copied, and the rest is not."""

    def put(self, destination, data, offset):
        whole = len(data) // PAGE * PAGE if len(data) > 8 << 20 else len(data)
        super().put(destination, data[:whole], offset)


@wrong
class to_repeats_a_page(Host):
    """From 64 KiB on the second page is the first one again."""

    def put(self, destination, data, offset):
        if len(data) >= 16 * PAGE:
            data = data[:PAGE] + data[:PAGE] + data[2 * PAGE :]
        super().put(destination, data, offset)


@wrong
class to_odd_offset_is_even(Host):
    def put(self, destination, data, offset):
        super().put(destination, data, offset & ~1 if len(data) > 1024 else offset)


@wrong
class back_offset_in_words(Host):
    def get(self, source, length, offset):
        return super().get(source, length, offset & ~3 if length >= 64 else offset)


@wrong
class to_length_of_24_bits(Host):
    def put(self, destination, data, offset):
        super().put(destination, data[: len(data) & 0xFFFFFF], offset)


@wrong
class to_one_descriptor(Host):
    """One DMA descriptor moves 64 MiB, and there is never a second."""

    def put(self, destination, data, offset):
        super().put(destination, data[: 64 << 20], offset)


@wrong
class back_one_descriptor(Host):
    def get(self, source, length, offset):
        found = super().get(source, length, offset)
        if length > 32 << 20:
            found[32 << 20 :] = bytes(length - (32 << 20))
        return found


@wrong
class back_odd_loses_a_byte(Host):
    def get(self, source, length, offset):
        found = super().get(source, length, offset)
        if length > PAGE and length % 2:
            found[-1] = 0
        return found


@wrong
class to_power_and_one_loses_a_byte(Host):
    """2^k + 1 bytes are copied as 2^k, from 64 KiB on."""

    def put(self, destination, data, offset):
        size = len(data) - 1
        if size >= 1 << 16 and not size & (size - 1):
            data = data[:size]
        super().put(destination, data, offset)


@wrong
class to_reads_host_words(Host):
    """The host's address loses its lowest bits: right where buffers begin at words."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        self.check(destination, source, offset)
        data = bytes(source.cast("B")) if source.nbytes else b""
        if data:
            view = torch.frombuffer(bytearray(1) if source.readonly else source, dtype=torch.uint8)
            shift = view.data_ptr() % 8
            if shift and not source.readonly:
                data = ctypes.string_at(view.data_ptr() - shift, len(data))
        self.put(destination, data, offset)


@wrong
class back_fills_host_words(Host):
    """Bytes behind the buffer, up to the next multiple of 8, become zero where they are ours."""

    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        super().copy_device_to_host(source, destination, offset=offset)
        owner, length = destination.obj, destination.nbytes
        if isinstance(owner, bytearray) and length and length % 8:
            start = torch.frombuffer(owner, dtype=torch.uint8).data_ptr()
            at = torch.frombuffer(destination, dtype=torch.uint8).data_ptr() - start + length
            end = min(len(owner), at + -length % 8)
            owner[at:end] = bytes(end - at)


@wrong
class to_writes_a_byte_more(Host):
    """Where the length is one less than a multiple of 512, the granule is filled up."""

    def put(self, destination, data, offset):
        if len(data) % 512 == 511 and offset + len(data) < destination.size:
            data = bytes(data) + b"\0"
        super().put(destination, data, offset)


@wrong
class large_by_one_staging_buffer(Host):
    """Copies above 64 KiB go through one buffer of all threads."""

    staging = bytearray(1 << 16)

    def put(self, destination, data, offset):
        if len(data) <= 1 << 16:
            super().put(destination, data, offset)
            return
        for at in range(0, len(data), 1 << 16):
            part = data[at : at + (1 << 16)]
            self.staging[: len(part)] = part
            time.sleep(0)
            super().put(destination, self.staging[: len(part)], offset + at)


@wrong
class offset_of_all_threads(Host):
    """The offset of the call is kept in the runtime."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        self.check(destination, source, offset)
        self.offset = offset
        data = bytes(source.cast("B")) if source.nbytes else b""
        time.sleep(0)
        if self.offset + len(data) <= destination.size:
            self.put(destination, data, self.offset)


@wrong
class drops_every_500th(Host):
    count = 0

    def put(self, destination, data, offset):
        self.count += 1
        if self.count % 500:
            super().put(destination, data, offset)


@wrong
class to_counts_elements(Host):
    """A buffer of floats is taken for as many bytes as it has elements."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        self.check(destination, source, offset)
        data = bytes(source.cast("B")) if source.nbytes else b""
        self.put(destination, data[: len(source)], offset)


@wrong
class back_counts_elements(Host):
    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        self.check(source, destination, offset)
        count = len(destination)
        super().copy_device_to_host(source, destination.cast("B")[:count], offset=offset)


@wrong
class skips_pages_of_zeros(Host):
    """Fresh memory is zero anyway, somebody thought."""

    def put(self, destination, data, offset):
        if len(data) < PAGE:
            super().put(destination, data, offset)
            return
        for at in range(0, len(data), PAGE):
            part = data[at : at + PAGE]
            if any(part):
                super().put(destination, part, offset + at)


@wrong
class knows_contents_by_their_start(Host):
    """A copy of the same length whose first 256 bytes are known is not sent again."""

    def __init__(self):
        super().__init__()
        self.known = {}

    def put(self, destination, data, offset):
        key = (len(data), bytes(data[:256]))
        data = self.known.setdefault(key, bytes(data)) if 1024 < len(data) < 1 << 20 else data
        super().put(destination, data, offset)


@wrong
class to_offset_of_16_bits(Host):
    def put(self, destination, data, offset):
        super().put(destination, data, offset & 0xFFFF)


@wrong
class back_offset_of_20_bits(Host):
    def get(self, source, length, offset):
        return super().get(source, length, offset & 0xFFFFF)


@wrong
class back_returns_early(Host):
    """Copies above 1 MiB to the host are finished by a thread, a little later."""

    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        copy = super().copy_device_to_host
        self.check(source, destination, offset)
        if destination.nbytes <= 1 << 20 or destination.readonly:
            copy(source, destination, offset=offset)
            return
        threading.Timer(0.005, copy, (source, destination), {"offset": offset}).start()


@wrong
class to_reads_the_host_late(Host):
    """Copies above 1 MiB to the device are started, and the host's buffer is read later."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        copy = super().copy_host_to_device
        self.check(destination, source, offset)
        if source.nbytes <= 1 << 20:
            copy(destination, source, offset=offset)
            return
        done = threading.Thread(
            target=lambda: (time.sleep(0.003), copy(destination, source, offset=offset))
        )
        done.start()
        self.late = done

    def synchronize_stream(self, device_id, stream=None):
        super().synchronize_stream(device_id, stream)
        if getattr(self, "late", None) is not None:
            self.late.join()


@wrong
class lock_stays_after_an_error(Host):
    """A copy that is refused leaves the runtime's lock taken: half a second, then it goes on."""

    def __init__(self):
        super().__init__()
        self.lock, self.broken = threading.Lock(), False

    def check(self, memory, host, offset):
        self.lock.acquire()
        super().check(memory, host, offset)
        self.lock.release()


@wrong
class keeps_a_file_open(Host):
    """Every copy above a page leaves a file descriptor."""

    def get(self, source, length, offset):
        if length > PAGE:
            os.open(os.devnull, os.O_RDONLY)
        return super().get(source, length, offset)


@wrong
class bounds_of_32_bits(Host):
    """Offsets are compared after they were cut to 32 bits."""

    def check(self, memory, host, offset):
        super().check(memory, host, offset & 0xFFFFFFFF)

    def put(self, destination, data, offset):
        super().put(destination, data, offset & 0xFFFFFFFF)

    def get(self, source, length, offset):
        return super().get(source, length, offset & 0xFFFFFFFF)
