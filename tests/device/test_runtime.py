"""FrameworkRuntime on the CPU: what it hands out, and what it refuses."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.engine.runtime import FrameworkRuntime
from vllm_adapter.errors import (
    AllocationFreed,
    DeviceError,
    NoSuchDevice,
    OutOfBounds,
    OutOfMemory,
)

pytestmark = pytest.mark.device
RUNTIME = FrameworkRuntime("cpu")


def write(allocation, data, offset=0):
    RUNTIME.copy_host_to_device(allocation, memoryview(data), offset=offset)


def read(allocation, size, offset=0):
    into = bytearray(size)
    RUNTIME.copy_device_to_host(allocation, memoryview(into), offset=offset)
    return bytes(into)


@settings(deadline=None)
@given(
    size=st.integers(0, 5000),
    alignment=st.one_of(st.none(), st.sampled_from([1 << n for n in range(13)])),
)
def test_an_address_is_a_multiple_of_the_alignment(size, alignment):
    allocation = RUNTIME.allocate_memory(size, 0, alignment=alignment)
    assert allocation.address % (alignment or 64) == 0
    assert (allocation.size, allocation.storage.numel()) == (size, size)
    allocation.free()


@pytest.mark.parametrize(("size", "alignment"), [(-1, None), (8, 0), (8, 3), (8, -1), (8, -64)])
def test_a_negative_size_or_an_odd_alignment_is_refused(size, alignment):
    with pytest.raises(DeviceError, match="cannot allocate"):
        RUNTIME.allocate_memory(size, 0, alignment=alignment)


@pytest.mark.parametrize("size", [1 << 50, 1 << 62, 1 << 70])
def test_more_than_the_machine_has_is_out_of_memory_and_allocates_nothing(size):
    before = RUNTIME.memory_stats(0)
    with pytest.raises(OutOfMemory, match=f"cannot give {size} bytes"):
        RUNTIME.allocate_memory(size, 0)
    assert RUNTIME.memory_stats(0) == before


@pytest.mark.parametrize("device_id", [-1, 1, 99])
def test_an_index_that_there_is_not_is_refused_by_every_method(device_id):
    for call in (
        lambda: RUNTIME.allocate_memory(1, device_id),
        lambda: RUNTIME.synchronize_stream(device_id),
        lambda: RUNTIME.create_stream(device_id),
        lambda: RUNTIME.query_memory_capacity(device_id),
        lambda: RUNTIME.get_device_capability(device_id),
        lambda: RUNTIME.memory_stats(device_id),
    ):
        with pytest.raises(NoSuchDevice, match=f"no cpu device {device_id}"):
            call()


def test_a_device_type_that_torch_lacks_is_refused():
    for name in ("acme", "float32", "nn_"):
        with pytest.raises(DeviceError, match=f"no device type '{name}'"):
            FrameworkRuntime(name)


@settings(deadline=None)
@given(data=st.binary(max_size=300), offset=st.integers(0, 300))
def test_bytes_come_back_as_they_went_in_and_their_neighbours_stay(data, offset):
    allocation = RUNTIME.allocate_memory(600, 0)
    write(allocation, bytes([7]) * 600)
    write(allocation, data, offset)
    assert read(allocation, len(data), offset) == data
    assert read(allocation, offset) == bytes([7]) * offset
    rest = 600 - offset - len(data)
    assert read(allocation, rest, offset + len(data)) == bytes([7]) * rest


@settings(deadline=None)
@given(size=st.integers(0, 100), offset=st.integers(-200, 200), length=st.integers(0, 200))
def test_a_copy_that_leaves_the_allocation_is_refused_and_copies_nothing(size, offset, length):
    allocation = RUNTIME.allocate_memory(size, 0)
    allocation.storage.fill_(1)
    if 0 <= offset and offset + length <= size:
        write(allocation, bytes(length), offset)
        return
    into = bytearray([9]) * length
    with pytest.raises(OutOfBounds):
        write(allocation, bytes(length), offset)
    with pytest.raises(OutOfBounds):
        RUNTIME.copy_device_to_host(allocation, memoryview(into), offset=offset)
    with pytest.raises(OutOfBounds):
        allocation.bytes_at(offset, length)
    assert bool((allocation.storage == 1).all())
    assert into == bytearray([9]) * length


def test_a_tensor_over_an_allocation_shares_its_bytes_and_stays_inside():
    allocation = RUNTIME.allocate_memory(64, 0)
    allocation.tensor((2, 4), torch.float32, offset=32).fill_(1.0)
    assert read(allocation, 4, 32) == b"\x00\x00\x80\x3f"
    assert allocation.tensor((0, 3), torch.float16, offset=64).shape == (0, 3)
    with pytest.raises(OutOfBounds):
        allocation.tensor((2, 4), torch.float32, offset=33)


def test_freeing_twice_and_using_after_free_are_refused():
    allocation = RUNTIME.allocate_memory(8, 0)
    allocation.free()
    assert not allocation.is_live
    with pytest.raises(AllocationFreed, match="freed twice"):
        allocation.free()
    for use in (
        lambda: allocation.address,
        lambda: allocation.storage,
        lambda: allocation.tensor((2,), torch.float32),
        lambda: write(allocation, b"x"),
        lambda: write(allocation, b""),
        lambda: read(allocation, 1),
    ):
        with pytest.raises(AllocationFreed, match="after its free"):
            use()


def test_a_read_only_source_is_read_and_a_read_only_destination_is_refused():
    allocation = RUNTIME.allocate_memory(4, 0)
    write(allocation, b"abcd")
    with pytest.raises(DeviceError, match="read-only"):
        RUNTIME.copy_device_to_host(allocation, memoryview(bytes(4)))
    assert read(allocation, 4) == b"abcd"


def test_buffers_of_other_formats_count_in_bytes():
    allocation = RUNTIME.allocate_memory(8, 0)
    source = torch.tensor([1.5, -2.0]).numpy()
    RUNTIME.copy_host_to_device(allocation, source.data)
    into = torch.zeros(2).numpy()
    RUNTIME.copy_device_to_host(allocation, into.data)
    assert into.tolist() == [1.5, -2.0]


def test_buffers_with_gaps_are_refused():
    allocation = RUNTIME.allocate_memory(4, 0)
    for gaps in (memoryview(bytearray(8))[::2], memoryview(bytes(8))[::2]):
        with pytest.raises(DeviceError, match="contiguous"):
            RUNTIME.copy_host_to_device(allocation, gaps)
    with pytest.raises(DeviceError, match="contiguous"):
        RUNTIME.copy_device_to_host(allocation, memoryview(bytearray(8))[::2])


def test_zero_bytes_may_be_allocated_copied_and_freed():
    allocation = RUNTIME.allocate_memory(0, 0)
    write(allocation, b"")
    assert read(allocation, 0) == b""
    allocation.free()


def test_memory_stats_count_what_is_live():
    runtime = FrameworkRuntime("cpu")
    kept, freed = runtime.allocate_memory(100, 0), runtime.allocate_memory(30, 0)
    lost = runtime.allocate_memory(5, 0)
    stats = runtime.memory_stats(0)
    assert (stats.allocated_bytes, stats.live_allocations) == (135, 3)
    freed.free()
    del lost
    gc.collect()
    stats = runtime.memory_stats(0)
    assert (stats.allocated_bytes, stats.live_allocations) == (100, 1)
    kept.free()


def test_capacity_is_the_hosts_and_unified():
    capacity = RUNTIME.query_memory_capacity(0)
    assert 0 < capacity.free_bytes <= capacity.total_bytes
    assert capacity.unified


def test_the_cpu_has_one_device_no_streams_and_no_capability():
    assert RUNTIME.get_device_count() == 1
    assert RUNTIME.create_stream(0) is None
    assert RUNTIME.get_device_capability(0) is None
    RUNTIME.synchronize_stream(0)
    allocation = RUNTIME.allocate_memory(2, 0)
    RUNTIME.copy_host_to_device(allocation, memoryview(b"ab"), stream=None)
    assert read(allocation, 2) == b"ab"


def test_pinned_memory_is_writable_and_takes_part_in_copies():
    pinned = RUNTIME.allocate_pinned_memory(4)
    pinned[:] = b"wxyz"
    allocation = RUNTIME.allocate_memory(4, 0)
    RUNTIME.copy_host_to_device(allocation, pinned)
    assert read(allocation, 4) == b"wxyz"
    assert len(RUNTIME.allocate_pinned_memory(0)) == 0


def test_memory_taken_in_inference_mode_may_be_written_outside_of_it():
    with torch.inference_mode():
        allocation = RUNTIME.allocate_memory(8, 0)
        inside = allocation.tensor((2,), torch.float32)
    inside.fill_(1.0)
    assert allocation.tensor((2,), torch.float32).tolist() == [1.0, 1.0]


def test_threads_may_allocate_copy_and_free_at_once():
    runtime = FrameworkRuntime("cpu")

    def work(number):
        for turn in range(50):
            allocation = runtime.allocate_memory(64, 0)
            data = bytes([number, turn]) * 32
            runtime.copy_host_to_device(allocation, memoryview(data))
            into = bytearray(64)
            runtime.copy_device_to_host(allocation, memoryview(into))
            assert into == data
            assert runtime.memory_stats(0).live_allocations >= 1
            allocation.free()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert runtime.memory_stats(0).live_allocations == 0


def test_of_many_threads_that_free_one_allocation_one_succeeds():
    def free(allocation):
        try:
            allocation.free()
        except AllocationFreed:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            allocation = RUNTIME.allocate_memory(8, 0)
            assert sum(pool.map(free, [allocation] * 8)) == 1
