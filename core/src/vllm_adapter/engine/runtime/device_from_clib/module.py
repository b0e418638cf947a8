"""The module `torch.<name>`: what programs expect beside the tensors of a device."""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.engine.runtime.c_library.streams import LOG, CLibraryStream
from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.streams import DeviceStreams
from vllm_adapter.errors import ForkedDevice


class DeviceModule:
    """The functions of `torch.<name>`. A device is an index, a string, a torch.device, or None."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._library = backend.library
        self._streams = backend.streams
        self.Stream = self._streams.Stream
        self.Event = self._streams.Event
        self._warned = False

    # -- devices ---------------------------------------------------------------------------------

    def is_available(self) -> bool:
        """Whether there is a device. Opens none."""
        return not self._library.is_forked and self.device_count() > 0

    def is_initialized(self) -> bool:
        """Always: a device is opened by the first tensor on it."""
        return True

    def init(self) -> None:
        """Raises ForkedDevice in a child that was forked after the first use."""
        if self._library.is_forked:
            raise ForkedDevice(
                f"{self._backend.name} was used before this process was forked",
                hint="start workers with the method `spawn`",
            )

    _lazy_init = init

    def _is_in_bad_fork(self) -> bool:
        return self._library.is_forked

    def device_count(self) -> int:
        """How many devices the library has."""
        return self._library.device_count()

    def current_device(self) -> int:
        """The index that a device without one stands for, in all threads."""
        return self._streams.current

    def set_device(self, device: Any) -> None:
        """Makes a device the current one.

        torch's own guard stays at index 0: `x.to("<name>")` and `module.to("<name>")` go there,
        which the log says once. Pass `<name>:<index>` everywhere.

        Raises:
            NoSuchDevice: there is no such device.
        """
        self._streams.current = self._streams.index(device)
        if self._streams.current and not self._warned:
            self._warned = True
            LOG.warning(
                "%s:%d is current, but torch takes x.to(%r) for index 0: pass the index",
                *(self._backend.name, self._streams.current, self._backend.name),
            )

    def get_device_name(self, device: Any = None) -> str:
        """What the library calls it."""
        return self._library.device_info(self._streams.index(device)).name

    def get_device_capability(self, device: Any = None) -> tuple[int, int] | None:
        """(major, minor), or None where the vendor has none."""
        return self._library.device_info(self._streams.index(device)).capability

    def get_device_properties(self, device: Any = None) -> Any:
        """The library's own description."""
        return self._library.device_info(self._streams.index(device))

    # -- streams ---------------------------------------------------------------------------------

    def current_stream(self, device: Any = None) -> CLibraryStream:
        """The stream that work of this thread goes to."""
        return self._streams.get(self._streams.index(device))

    def default_stream(self, device: Any = None) -> CLibraryStream:
        """The stream that is there from the start."""
        return self._streams.default(self._streams.index(device))

    def set_stream(self, stream: CLibraryStream | None) -> None:
        """Makes a stream the current one of its device in this thread; None changes nothing."""
        if stream is not None:
            self._streams.set(stream)

    def stream(self, stream: CLibraryStream | None) -> StreamContext:
        """A context in which a stream is the current one; None changes nothing."""
        return StreamContext(stream)

    def synchronize(self, device: Any = None) -> None:
        """Waits until everything on the device has run.

        Raises:
            DeviceError: work failed since the last time.
        """
        self._backend.synchronize(self._streams.index(device))

    # -- memory ----------------------------------------------------------------------------------

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """(free, total) bytes."""
        index = self._streams.index(device)
        self._library.open(index)
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        self._library.call("memory_info", index, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def memory_stats(self, device: Any = None) -> Mapping[str, int]:
        """The library's figures, under the names of torch's."""
        index = self._streams.index(device)
        raw = self._figures(index)
        peak = self._backend.peaks.since_reset(index, raw.allocated_bytes, raw.peak_bytes)
        return OrderedDict(
            {
                "allocated_bytes.all.current": raw.allocated_bytes,
                "allocated_bytes.all.peak": peak,
                "reserved_bytes.all.current": raw.allocated_bytes,
                "reserved_bytes.all.peak": peak,
                "active.all.current": raw.live_allocations,
                "link_bytes": raw.link_bytes,
            }
        )

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes that live tensors hold."""
        return self.memory_stats(device)["allocated_bytes.all.current"]

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes that were held at once since `reset_peak_memory_stats`.

        The library keeps one peak for the life of the process: after a reset this is exact once
        that peak has been passed, and what is held now until then.
        """
        return self.memory_stats(device)["allocated_bytes.all.peak"]

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Begins the peak anew."""
        index = self._streams.index(device)
        self._backend.peaks.reset(index, self._figures(index).peak_bytes)

    reset_accumulated_memory_stats = reset_peak_memory_stats

    def empty_cache(self) -> None:
        """Nothing is kept: memory goes back to the library with its last tensor."""

    # -- random numbers --------------------------------------------------------------------------
    # The fallback draws on the host: the CPU's generator is the device's. torch.manual_seed seeds
    # it before it calls us.

    def manual_seed(self, seed: int) -> None:
        """Seeds the CPU's generator, which is the device's."""
        torch.default_generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """As `manual_seed`: there is one generator for all devices."""
        torch.default_generator.manual_seed(seed)

    def seed_all(self) -> None:
        """Seeds the CPU's generator at random."""
        torch.default_generator.seed()

    def initial_seed(self) -> int:
        """The seed of the CPU's generator."""
        return torch.default_generator.initial_seed()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """The state of the CPU's generator.

        Gives uint8 [bytes].
        """
        return torch.default_generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Sets the state of the CPU's generator.

        state: uint8 [bytes].
        """
        torch.default_generator.set_state(state)

    # -- dtypes ----------------------------------------------------------------------------------

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Dtypes for autocast, which casts nothing here: no cast lists are registered."""
        return [torch.float16, torch.bfloat16]

    def is_bf16_supported(self, including_emulation: bool = False) -> bool:
        """Whether the library has a kernel of bfloat16 for matrices."""
        found = ctypes.c_uint64()
        linear = abi.OPERATORS.index("linear")
        self._library.call("operator_dtypes", self._streams.current, linear, ctypes.byref(found))
        return bool(found.value >> abi.DTYPES["bfloat16"] & 1)

    # -- this project's own ----------------------------------------------------------------------

    def fallbacks(self) -> Mapping[str, int]:
        """How often each aten operator ran on the host, since the start or `reset_fallbacks`."""
        return self._backend.coverage.counts()

    def reset_fallbacks(self) -> None:
        """Begins counting anew."""
        self._backend.coverage.reset()

    def _figures(self, index: int) -> abi.VaMemoryStats:
        self._library.open(index)
        raw = abi.VaMemoryStats(size=ctypes.sizeof(abi.VaMemoryStats))
        self._library.call("memory_stats", index, ctypes.byref(raw))
        return raw


class StreamContext:
    """`with torch.<name>.stream(s):`"""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> Any:
        if self._stream is not None:
            self._stream.__enter__()
        return self._stream

    def __exit__(self, *raised: object) -> None:
        if self._stream is not None:
            self._stream.__exit__(*raised)


def device_context(streams: DeviceStreams) -> type:
    """The class behind `with torch.<name>.device(index):`; None or a negative index: no change."""

    class device:  # torch's name
        def __init__(self, device: Any) -> None:
            self.idx = device
            self.prev_idx = -1

        def __enter__(self) -> None:
            self.prev_idx = streams.current
            if self.idx is not None and not (isinstance(self.idx, int) and self.idx < 0):
                streams.current = streams.index(self.idx)

        def __exit__(self, *_: object) -> None:
            streams.current = self.prev_idx

    return device


def device_module(backend: Backend) -> ModuleType:
    """`torch.<name>`, importable under that name."""
    api = DeviceModule(backend)
    module = ModuleType(f"torch.{backend.name}", DeviceModule.__doc__)
    for name in (*vars(DeviceModule), "Stream", "Event"):
        if not name.startswith("__"):
            setattr(module, name, getattr(api, name))
    module.device = device_context(backend.streams)  # type: ignore[attr-defined] # a module made here
    sys.modules[module.__name__] = module
    return module
