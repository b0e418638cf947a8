"""The runtime of any device that torch knows: `cpu`, `cuda`, `xpu`, `npu`, ..."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from vllm_adapter.engine.runtime.base import (
    Allocation,
    MemoryCapacity,
    MemoryStats,
    RuntimeAdapter,
    Stream,
)
from vllm_adapter.engine.runtime.host_buffer import check_readable, check_writable
from vllm_adapter.errors import DeviceError, NoSuchDevice, OutOfMemory
from vllm_adapter.hostfacts import live

DEFAULT_ALIGNMENT = 64


class FrameworkRuntime(RuntimeAdapter):
    """Devices of one torch device type, through torch's own allocator, streams and copies.

    Raises:
        DeviceError: this torch has no such device type.
    """

    def __init__(self, torch_type: str) -> None:
        super().__init__()
        module = getattr(torch, torch_type, None)
        if not isinstance(module, ModuleType):
            raise DeviceError(
                f"torch {torch.__version__} has no device type {torch_type!r}",
                hint="install the vendor's torch package and import it first",
            )
        self.torch_type = torch_type
        self._module = module
        self._totals: dict[int, int] = {}

    def get_device_count(self) -> int:
        if self.torch_type == "cpu":
            return 1
        return int(self._module.device_count()) if self._module.is_available() else 0

    def device(self, device_id: int) -> torch.device:
        """The torch device of an id.

        Raises:
            NoSuchDevice: the id is not one of ours.
        """
        count = self.get_device_count()
        if not 0 <= device_id < count:
            raise NoSuchDevice(
                f"there is no {self.torch_type} device {device_id}; there are {count}",
                hint="`vllm-adapter list --probe` shows the devices that can be used",
            )
        return torch.device(self.torch_type, device_id)

    def allocate_memory(
        self, size: int, device_id: int, *, alignment: int | None = None
    ) -> Allocation:
        device = self.device(device_id)
        step = DEFAULT_ALIGNMENT if alignment is None else alignment
        if size < 0 or step < 1 or step & (step - 1):
            raise DeviceError(
                f"cannot allocate {size} bytes aligned to {step}",
                hint="size must not be negative; alignment must be a power of two",
            )
        # Asked first: the system would promise memory that it does not have, and later kill us.
        if size > self._total_bytes(device_id):
            raise self._too_much(size, device)
        try:
            # A tensor made in inference mode could never be written outside of it.
            with torch.inference_mode(False):
                raw = torch.empty(size + step - 1, dtype=torch.uint8, device=device)
                shift = -raw.data_ptr() % step
                storage = raw[shift : shift + size]
        except (torch.OutOfMemoryError, RuntimeError) as error:
            raise self._too_much(size, device) from error
        return self._record(Allocation(storage, device_id))

    def copy_host_to_device(
        self,
        destination: Allocation,
        source: memoryview,
        *,
        offset: int = 0,
        stream: Stream | None = None,
    ) -> None:
        target = destination.bytes_at(offset, source.nbytes)
        check_readable(source)
        if not source.nbytes:
            return
        # torch.frombuffer warns of read-only memory, which it would let us write.
        host = torch.frombuffer(
            bytearray(source) if source.readonly else source, dtype=torch.uint8
        )
        self._copy(target, host, destination.device_id, stream)

    def copy_device_to_host(
        self,
        source: Allocation,
        destination: memoryview,
        *,
        offset: int = 0,
        stream: Stream | None = None,
    ) -> None:
        origin = source.bytes_at(offset, destination.nbytes)
        check_writable(destination)
        if destination.nbytes:
            host = torch.frombuffer(destination, dtype=torch.uint8)
            self._copy(host, origin, source.device_id, stream)

    def synchronize_stream(self, device_id: int, stream: Stream | None = None) -> None:
        device = self.device(device_id)
        if stream is not None:
            stream.synchronize()
        elif self.torch_type != "cpu":
            self._module.current_stream(device).synchronize()

    def get_device_capability(self, device_id: int) -> tuple[int, int] | None:
        device = self.device(device_id)
        query = getattr(self._module, "get_device_capability", None)
        if self.torch_type == "cpu" or query is None:
            return None
        found = query(device)
        is_pair = isinstance(found, tuple) and len(found) == 2
        return (int(found[0]), int(found[1])) if is_pair else None

    def allocate_pinned_memory(self, size: int) -> memoryview:
        if self.torch_type == "cpu":
            return super().allocate_pinned_memory(size)
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy().data
        except NotImplementedError:
            # upstream: pytorch@2.13 aten/src/ATen/detail/PrivateUse1HooksInterface.h:57: a
            # device whose hooks are Python's has no allocator of pinned memory. Copies then wait.
            return super().allocate_pinned_memory(size)

    def create_stream(self, device_id: int) -> torch.Stream | None:
        device = self.device(device_id)
        return None if self.torch_type == "cpu" else torch.Stream(device)

    def query_memory_capacity(self, device_id: int) -> MemoryCapacity:
        device = self.device(device_id)
        if self.torch_type == "cpu":
            return _host_capacity()
        free, total = self._module.mem_get_info(device)
        return MemoryCapacity(
            int(total), int(free), unified=False, pooled_bytes=self._pooled(device)
        )

    def _pooled(self, device: torch.device) -> int:
        """What torch's caching allocator keeps of freed memory; 0 where it has none."""
        reserved = getattr(self._module, "memory_reserved", None)
        allocated = getattr(self._module, "memory_allocated", None)
        if reserved is None or allocated is None:
            return 0
        return max(0, int(reserved(device)) - int(allocated(device)))

    def memory_stats(self, device_id: int) -> MemoryStats:
        device = self.device(device_id)
        ours = super().memory_stats(device_id)
        query = getattr(self._module, "memory_allocated", None)
        if self.torch_type == "cpu" or query is None:
            return ours
        allocated = int(query(device))
        return MemoryStats(allocated, ours.live_allocations, "framework")

    def _copy(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        device_id: int,
        stream: Stream | None,
    ) -> None:
        if stream is None:
            target.copy_(source)
            self.synchronize_stream(device_id)
            return
        if not isinstance(stream, torch.Stream) or stream.device.type != self.torch_type:
            raise DeviceError(
                f"{stream!r} is no stream of a {self.torch_type} device of torch's",
                hint="make it with create_stream of this runtime",
            )
        if (stream.device.index or 0) != device_id:
            raise DeviceError(
                f"{stream!r} cannot take work of device {device_id}",
                hint="make the stream on the device whose memory is used",
            )
        with stream:
            host = source if target.device.type == self.torch_type else target
            # Pageable host memory may be gone before an asynchronous copy has read it.
            target.copy_(source, non_blocking=host.is_pinned())

    def _total_bytes(self, device_id: int) -> int:
        """The capacity, asked once: it does not change, and asking the system takes a while."""
        if device_id not in self._totals:
            self._totals[device_id] = self.query_memory_capacity(device_id).total_bytes
        return self._totals[device_id]

    def _too_much(self, size: int, device: torch.device) -> OutOfMemory:
        capacity = self.query_memory_capacity(device.index or 0)
        return OutOfMemory(
            f"{device} cannot give {size} bytes: it has {capacity.total_bytes} in all, "
            f"{capacity.free_bytes} free",
            hint="take a shorter context, a smaller batch, or another device",
        )


@contextmanager
def typed_out_of_memory(what: str) -> Iterator[None]:
    """Turns torch's own report that memory ran out into OutOfMemory; other errors pass.

    `what` was being done, as in "loading the model".
    """
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        # The CPU's allocator raises a plain RuntimeError.
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise OutOfMemory(
                f"memory ran out while {what}: {' '.join(str(error).split())[:200]}",
                hint="take a smaller model or dtype, a shorter context, or another device",
            ) from error
        raise


def _host_capacity() -> MemoryCapacity:
    """Host memory that this process may use: the machine's, or its control group's if less."""
    host = live.collect()
    limit = host.cgroup.memory_limit_bytes
    total, free = host.memory.total_bytes, host.memory.available_bytes
    if total is None:
        raise DeviceError(
            "the memory of this machine cannot be read", hint="/proc/meminfo must be readable"
        )
    total = min(total, limit) if limit is not None else total
    return MemoryCapacity(total, min(total, free if free is not None else total), unified=True)
