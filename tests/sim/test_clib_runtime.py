"""CLibraryRuntime on the simulated accelerator: what it hands out, and what it refuses."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.runtime import FrameworkRuntime
from vllm_adapter.errors import (
    AllocationFreed,
    DeviceError,
    ForkedDevice,
    NoSuchDevice,
    OutOfBounds,
    OutOfMemory,
    UnsupportedCase,
)

pytestmark = pytest.mark.sim


def write(runtime, allocation, data, offset=0, stream=None):
    runtime.copy_host_to_device(allocation, memoryview(data), offset=offset, stream=stream)


def read(runtime, allocation, size, offset=0):
    into = bytearray(size)
    runtime.copy_device_to_host(allocation, memoryview(into), offset=offset)
    return bytes(into)


def test_devices_and_what_the_library_says_of_them(runtime):
    assert runtime.get_device_count() == 2
    info = runtime.device_info(1)
    assert (info.name, info.arch, info.subgroup_size) == ("Simulated accelerator", "sim48", 48)
    assert (info.alignment_bytes, info.unified, info.capability) == (384, False, None)
    assert runtime.get_device_capability(0) is None
    capacity = runtime.query_memory_capacity(1)
    assert capacity.total_bytes == info.total_bytes == capacity.free_bytes
    assert runtime.device(1) == torch.device("sim", 1)


@settings(max_examples=examples(50))
@given(
    size=st.integers(0, 5000),
    device=st.integers(0, 1),
    alignment=st.one_of(st.none(), st.sampled_from([1 << n for n in range(13)] + [768, 1152])),
)
def test_an_address_is_a_multiple_of_the_alignment(runtime, size, device, alignment):
    allocation = runtime.allocate_memory(size, device, alignment=alignment)
    assert allocation.address % (alignment or 384) == 0
    assert (allocation.size, allocation.storage.numel()) == (size, size)
    assert allocation.storage.device == torch.device("sim", device)
    allocation.free()


@pytest.mark.parametrize(("size", "alignment"), [(-1, None), (8, 0), (8, -64), (8, 1 << 62)])
def test_a_negative_size_or_alignment_is_refused(runtime, size, alignment):
    with pytest.raises(DeviceError, match="cannot allocate"):
        runtime.allocate_memory(size, 0, alignment=alignment)


def test_an_alignment_that_the_library_refuses_is_told_in_its_own_words(runtime):
    with pytest.raises(DeviceError, match=r"allocate: alignment 7 is no power of two"):
        runtime.allocate_memory(8, 0, alignment=7)


@pytest.mark.parametrize("size", [1 << 40, 1 << 61, 1 << 62, 1 << 64, 1 << 70])
def test_more_than_the_device_has_is_out_of_memory_and_allocates_nothing(runtime, size):
    before = runtime.memory_stats(0)
    with pytest.raises(OutOfMemory, match=str(size)):
        runtime.allocate_memory(size, 0)
    assert runtime.memory_stats(0) == before


@pytest.mark.parametrize("device_id", [-1, 2, 99, 1 << 32])
def test_an_index_that_there_is_not_is_refused_by_every_method(runtime, device_id):
    for call in (
        lambda: runtime.allocate_memory(1, device_id),
        lambda: runtime.synchronize_stream(device_id),
        lambda: runtime.create_stream(device_id),
        lambda: runtime.create_event(device_id),
        lambda: runtime.fence(device_id, "device"),
        lambda: runtime.query_memory_capacity(device_id),
        lambda: runtime.get_device_capability(device_id),
        lambda: runtime.memory_stats(device_id),
        lambda: runtime.device(device_id),
    ):
        with pytest.raises(NoSuchDevice, match=f"no device {device_id}; it has 2"):
            call()


@settings(max_examples=examples(40))
@given(data=st.binary(max_size=300), offset=st.integers(0, 300))
def test_bytes_come_back_as_they_went_in_and_their_neighbours_stay(runtime, data, offset):
    allocation = runtime.allocate_memory(600, 0)
    write(runtime, allocation, bytes([7]) * 600)
    write(runtime, allocation, data, offset)
    assert read(runtime, allocation, len(data), offset) == data
    assert read(runtime, allocation, offset) == bytes([7]) * offset
    rest = 600 - offset - len(data)
    assert read(runtime, allocation, rest, offset + len(data)) == bytes([7]) * rest


@settings(max_examples=examples(60))
@given(size=st.integers(0, 100), offset=st.integers(-200, 200), length=st.integers(0, 200))
def test_a_copy_that_leaves_the_allocation_is_refused_and_copies_nothing(
    runtime, size, offset, length
):
    allocation = runtime.allocate_memory(size, 0)
    write(runtime, allocation, bytes([1]) * size)
    if 0 <= offset and offset + length <= size:
        write(runtime, allocation, bytes(length), offset)
        return
    into = bytearray([9]) * length
    with pytest.raises(OutOfBounds):
        write(runtime, allocation, bytes(length), offset)
    with pytest.raises(OutOfBounds):
        runtime.copy_device_to_host(allocation, memoryview(into), offset=offset)
    with pytest.raises(OutOfBounds):
        runtime.copy_on_device(allocation, allocation, length, source_offset=offset)
    assert read(runtime, allocation, size) == bytes([1]) * size
    assert into == bytearray([9]) * length


def test_freeing_twice_and_using_after_free_are_refused(runtime):
    allocation = runtime.allocate_memory(8, 0)
    allocation.free()
    with pytest.raises(AllocationFreed, match="freed twice"):
        allocation.free()
    for use in (
        lambda: write(runtime, allocation, b"x"),
        lambda: write(runtime, allocation, b""),
        lambda: read(runtime, allocation, 1),
    ):
        with pytest.raises(AllocationFreed, match="after its free"):
            use()


def test_host_buffers_with_gaps_and_read_only_destinations_are_refused(runtime):
    allocation = runtime.allocate_memory(8, 0)
    with pytest.raises(DeviceError, match="not contiguous"):
        write(runtime, allocation, memoryview(bytearray(16))[::2])
    with pytest.raises(DeviceError, match="not contiguous"):
        runtime.copy_device_to_host(allocation, memoryview(bytearray(16))[::2])
    with pytest.raises(DeviceError, match="read-only"):
        runtime.copy_device_to_host(allocation, memoryview(bytes(8)))


def test_buffers_of_other_formats_count_in_bytes(runtime):
    allocation = runtime.allocate_memory(16, 0)
    source = torch.tensor([[1.5, -2.0], [0.5, 4.0]])
    write(runtime, allocation, source.numpy())
    into = torch.zeros(4)
    runtime.copy_device_to_host(allocation, memoryview(into.numpy()))
    assert into.tolist() == [1.5, -2.0, 0.5, 4.0]


def test_memory_goes_back_with_the_last_view_and_the_library_counts_it(runtime):
    gc.collect()
    before = runtime.memory_stats(1)
    assert before.source == "library"
    allocation = runtime.allocate_memory(1000, 1)
    storage = allocation.storage
    held = runtime.memory_stats(1)
    assert held.live_allocations == before.live_allocations + 1
    assert held.allocated_bytes - before.allocated_bytes == 1152  # rounded up to 384
    allocation.free()
    assert runtime.memory_stats(1) == held
    del storage
    assert runtime.memory_stats(1) == before
    assert runtime.device_memory(1).peak_bytes >= held.allocated_bytes


def test_an_asynchronous_copy_is_done_when_its_stream_is_synchronised(runtime):
    stream = runtime.create_stream(0)
    allocation = runtime.allocate_memory(1 << 20, 0)
    for value in range(8):  # the sources die at once: the stream keeps them
        write(runtime, allocation, bytes([value]) * (1 << 20), stream=stream)
    into = bytearray(1 << 20)
    runtime.copy_device_to_host(allocation, memoryview(into), stream=stream)
    runtime.synchronize_stream(0, stream)
    assert into == bytes([7]) * (1 << 20)


def test_a_stream_keeps_a_bounded_number_of_host_buffers(runtime):
    from vllm_adapter.engine.runtime.c_library.streams import HELD

    stream = runtime.create_stream(0)
    allocation = runtime.allocate_memory(8, 0)
    for _ in range(3 * HELD):
        write(runtime, allocation, bytes(8), stream=stream)
        assert len(stream._held) <= HELD
    stream.synchronize()
    assert stream._held == []


def test_streams_wait_for_events_and_events_tell_time(runtime):
    first, second = runtime.create_stream(0), runtime.create_stream(0)
    allocation = runtime.allocate_memory(1 << 22, 0)
    start = first.record_event()
    write(runtime, allocation, bytes([5]) * (1 << 22), stream=first)
    end = first.record_event()
    second.wait_stream(first)
    into = bytearray(1 << 22)
    runtime.copy_device_to_host(allocation, memoryview(into), stream=second)
    second.synchronize()
    assert into == bytes([5]) * (1 << 22)
    end.synchronize()
    assert end.query()
    assert start.elapsed_ms(end) >= 0.0
    with pytest.raises(DeviceError, match=r"never recorded|before both"):
        start.elapsed_ms(runtime.create_event(0))
    with pytest.raises(DeviceError, match="event of device 1"):
        runtime.create_event(1).record(first)


def test_a_thread_has_a_current_stream_of_its_own(runtime):
    own = runtime.create_stream(0)
    with runtime.streams.using(own):
        assert runtime.streams.get(0) is own
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(runtime.streams.get, 0).result().handle == 0
        allocation = runtime.allocate_memory(3, 0)
        write(runtime, allocation, b"abc")
        assert read(runtime, allocation, 3) == b"abc"
    assert runtime.streams.get(0) is runtime.streams.default(0)


def test_a_stream_of_another_device_or_runtime_is_refused(runtime):
    other = runtime.create_stream(1)
    allocation = runtime.allocate_memory(4, 0)
    with pytest.raises(DeviceError, match="cannot take work of device 0"):
        write(runtime, allocation, b"abcd", stream=other)
    with pytest.raises(DeviceError, match=r"is no stream of libsim"):
        runtime.synchronize_stream(0, torch.Stream("cpu"))
    cpu = FrameworkRuntime("cpu")
    with pytest.raises(DeviceError, match="is no stream of a cpu device"):
        cpu.copy_host_to_device(cpu.allocate_memory(4, 0), memoryview(b"abcd"), stream=other)


def test_a_stream_is_destroyed_with_its_last_reference(runtime, monkeypatch):
    called = []
    original = type(runtime.library).call
    monkeypatch.setattr(
        type(runtime.library),
        "call",
        lambda self, name, *given: (called.append(name), original(self, name, *given))[1],
    )
    stream, event = runtime.create_stream(0), runtime.create_event(0)
    del stream, event
    gc.collect()
    assert {"stream_destroy", "event_destroy"} <= set(called)


def test_copies_between_devices_are_ordered_and_their_bytes_counted(runtime):
    here, there = runtime.allocate_memory(1000, 0), runtime.allocate_memory(1000, 1)
    write(runtime, here, bytes(range(250)) * 4)
    before = runtime.device_memory(0).link_bytes
    runtime.copy_on_device(there, here, 500, destination_offset=100, source_offset=250)
    assert read(runtime, there, 500, 100) == (bytes(range(250)) * 4)[250:750]
    assert runtime.device_memory(0).link_bytes == before + 500


def test_pinned_memory_lives_as_long_as_its_last_view(runtime, monkeypatch):
    freed = []
    original = type(runtime.library).call
    monkeypatch.setattr(
        type(runtime.library),
        "call",
        lambda self, name, *given: (freed.append(name), original(self, name, *given))[1],
    )
    pinned = runtime.allocate_pinned_memory(100)
    assert (pinned.nbytes, pinned.readonly, pinned.format) == (100, False, "B")
    part = pinned[10:20]
    del pinned
    gc.collect()
    assert "free_pinned" not in freed
    part[:] = b"0123456789"
    allocation = runtime.allocate_memory(10, 0)
    runtime.copy_host_to_device(allocation, part)
    assert read(runtime, allocation, 10) == b"0123456789"
    runtime.synchronize_stream(0)
    del part
    gc.collect()
    assert "free_pinned" in freed
    assert runtime.allocate_pinned_memory(0).nbytes == 0
    with pytest.raises(DeviceError, match="cannot pin -1 bytes"):
        runtime.allocate_pinned_memory(-1)


def test_fences_of_each_scope(runtime):
    for scope in ("subgroup", "workgroup", "device", "system"):
        runtime.fence(0, scope)
    with pytest.raises(DeviceError, match="no fence scope 'galaxy'"):
        runtime.fence(0, "galaxy")


def test_many_threads_at_once(runtime):
    def work(seed):
        device = seed % 2
        data = bytes([seed]) * 4096
        stream = runtime.create_stream(device)
        for _ in range(20):
            allocation = runtime.allocate_memory(4096, device)
            write(runtime, allocation, data, stream=stream)
            stream.synchronize()
            assert read(runtime, allocation, 4096) == data
            allocation.free()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_one_typed_error_from_each_method(runtime):
    allocation = runtime.allocate_memory(8, 0)
    stream = runtime.create_stream(0)
    event, end = stream.record_event(), stream.record_event()
    stream.synchronize()
    calls = (
        lambda: event.query(),
        lambda: event.synchronize(),
        lambda: event.elapsed_ms(end),
        lambda: stream.wait_event(event),
        lambda: runtime.fence(0, "device"),
        lambda: runtime.allocate_memory(1, 0),
        lambda: write(runtime, allocation, b"x"),
        lambda: read(runtime, allocation, 1),
        lambda: runtime.create_stream(1),
        lambda: runtime.create_event(0),
        lambda: stream.synchronize(),
        lambda: runtime.memory_stats(0),
        lambda: runtime.query_memory_capacity(0),
        lambda: runtime.get_device_count(),
        lambda: runtime.allocate_pinned_memory(8),
    )
    child = os.fork()
    if not child:
        code = 0
        for i, call in enumerate(calls):
            try:
                call()
                code = code or 100 + i
            except ForkedDevice as error:
                if "before this process was forked" not in str(error):
                    code = code or 150 + i
            except BaseException:
                code = code or 200 + i
        del stream
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read(runtime, allocation, 0) == b""


FORKED_BEFORE = """
import os, sys
from pathlib import Path
from vllm_adapter.c_abi.library import Library

library = Library(Path(sys.argv[1]))
library.device_info(1)
child = os.fork()
if not child:
    library.open(0)
    library.call("stream_synchronize", 0, 0)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
library.open(0)
"""


def test_a_fork_before_the_first_use_is_fine(sim_path):
    subprocess.run([sys.executable, "-c", FORKED_BEFORE, str(sim_path)], check=True, timeout=60)


def test_a_function_that_is_null_is_a_typed_error(faulty):
    with pytest.raises(UnsupportedCase, match="linear: the function is NULL"):
        Library(faulty()).call("linear", 0)


WAITS = """
import sys
from pathlib import Path
from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.runtime.c_library import CLibraryRuntime
from vllm_adapter.engine.runtime.device_from_clib import enable

library = Library(Path(sys.argv[1]))
runtime = CLibraryRuntime(library, "sim", enable("sim", library).streams)
memory, far = runtime.allocate_memory(64, 0), runtime.allocate_memory(64, 1)
first, second, other = (runtime.create_stream(device) for device in (0, 0, 1))
back = bytearray(64)
runtime.copy_host_to_device(far, memoryview(bytes(64)), stream=other)  # slow
gate = other.record_event()
first.wait_event(gate)
runtime.copy_host_to_device(memory, memoryview(bytes([5]) * 64), stream=first)
second.wait_stream(first)  # the event in it is nobody's any more
runtime.copy_device_to_host(memory, memoryview(back), stream=second)
second.synchronize()
sys.exit(back != bytes([5]) * 64)
"""


def test_a_wait_holds_although_its_event_is_out_of_reach(sim_path):
    slow = {**os.environ, "SIM_FAULT": "slow:300"}
    subprocess.run([sys.executable, "-c", WAITS, str(sim_path)], check=True, timeout=60, env=slow)


UNKNOWN_TO_TORCH = """
import sys
from pathlib import Path
from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.runtime.c_library import CLibraryRuntime
from vllm_adapter.errors import DeviceError

runtime = CLibraryRuntime(Library(Path(sys.argv[1])), "sim")
try:
    runtime.allocate_memory(1000, 0)
except DeviceError as error:
    print(error)
print(runtime.memory_stats(0).live_allocations)
"""


def test_memory_of_a_device_that_torch_does_not_know_is_refused_and_freed(sim_path):
    done = subprocess.run(
        [sys.executable, "-c", UNKNOWN_TO_TORCH, str(sim_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "torch has no device for this library's memory" in done.stdout
    assert done.stdout.splitlines()[-1] == "0"
