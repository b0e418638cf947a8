"""Memory and streams of a device from a C library, as torch's programs see them."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from vllm_adapter.errors import DeviceError, NoSuchDevice

pytestmark = pytest.mark.sim
BIG = 1 << 22


def test_memory_is_freed_with_the_last_view(backend):
    gc.collect()
    before = torch.sim.memory_allocated(1)
    whole = torch.empty(96 * 500, device="sim:1")
    assert torch.sim.memory_allocated(1) - before == 384 * 500 == whole.nbytes
    part = whole[5:9].view(2, 2).t()
    del whole
    assert torch.sim.memory_allocated(1) > before
    del part
    assert torch.sim.memory_allocated(1) == before
    assert torch.sim.max_memory_allocated(1) >= before + 384 * 500


def test_the_peak_begins_anew(backend):
    torch.sim.reset_peak_memory_stats(0)
    assert torch.sim.max_memory_allocated(0) == torch.sim.memory_allocated(0)
    _, total = torch.sim.mem_get_info(0)
    most = torch.accelerator.max_memory_allocated(0)
    assert most <= total
    torch.accelerator.empty_cache()


def test_too_much_is_torchs_own_error_and_allocates_nothing(backend):
    gc.collect()
    before = torch.sim.memory_allocated(0)
    with pytest.raises(torch.OutOfMemoryError, match=r"no 4398046511104 bytes"):
        torch.empty(1 << 40, device="sim:0")
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1 << 38, device="sim:0") + 1
    assert torch.sim.memory_allocated(0) == before


def test_what_cannot_be_allocated_is_refused(backend):
    with pytest.raises(DeviceError, match="shape"):
        torch.empty(-1, device="sim:0")
    with pytest.raises(DeviceError, match="pinned"):
        torch.empty(1, device="sim:0", pin_memory=True)
    with pytest.raises(NoSuchDevice, match="no device 2"):
        torch.empty(1, device="sim:2")


def test_fresh_memory_is_not_zero(backend):
    assert torch.empty(64, dtype=torch.uint8, device="sim:0").cpu().unique().tolist() == [0xA5]


def test_temporaries_keep_their_memory_until_the_work_is_queued(backend):
    x = torch.arange(4096.0)
    mine = x.to("sim:0")
    for _ in range(20):
        got = torch.where(mine.t() > 7, mine.double().float() + 2, mine.half() * 0)
        want = torch.where(x > 7, x + 2, 0)
        assert torch.equal(got.cpu(), want)


def test_the_source_of_a_non_blocking_copy_may_be_written_at_once(backend):
    host = torch.ones(BIG)
    stream = torch.sim.Stream("sim:0")
    with stream:
        mine = host.to("sim:0", non_blocking=True)
        host.zero_()
        turned = torch.empty(2, 2, device="sim:0").t()
        turned.copy_(torch.eye(2) * 3, non_blocking=True)
        assert mine.cpu().min() == 1
        assert turned.tolist() == [[3, 0], [0, 3]]


def test_streams_are_unordered_but_for_events(backend):
    first, second = torch.sim.Stream(0), torch.sim.Stream(device="sim:0", priority=-1)
    x = torch.ones(BIG, device="sim:0")
    torch.sim.synchronize(0)
    with torch.sim.stream(first):
        for _ in range(3):
            x.mul_(2)
        done = first.record_event()
    second.wait_event(done)
    with torch.sim.stream(second):
        y = x + 1
        assert torch.sim.current_stream(0) is second
        assert y.cpu()[-1] == 9
        y.record_stream(first)
    assert done.query()
    assert any(first.query() for _ in range(500))
    second.wait_stream(first)
    start, end = torch.sim.Event(enable_timing=True), torch.sim.Event()
    start.record(first)
    end.record(first)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert isinstance(first, torch.Stream)
    assert isinstance(end, torch.Event)
    assert first != second
    assert len({first, second, torch.sim.default_stream(0)}) == 3


def test_an_event_that_was_not_recorded_waits_for_nothing(backend):
    event = torch.sim.Event()
    assert event.query()
    event.synchronize()
    event.wait(torch.sim.current_stream(0))
    with pytest.raises(DeviceError, match="before both were recorded"):
        event.elapsed_time(torch.sim.Event())


def test_torchs_own_classes_make_ours_for_the_device(backend):
    stream, event = torch.Stream("sim:1"), torch.Event("sim:1")
    assert isinstance(stream, torch.sim.Stream)
    assert isinstance(event, torch.sim.Event)
    assert stream.device == torch.device("sim", 1)
    event.record(stream)
    event.synchronize()
    assert event.query()
    assert type(torch.Stream("cpu")) is not torch.sim.Stream
    with pytest.raises(DeviceError, match="cpu is no sim device"):
        torch.sim.Stream("cpu")


def test_a_thread_begins_on_the_default_stream(backend):
    seen = []
    with torch.sim.stream(torch.sim.Stream(0)):
        worker = threading.Thread(target=lambda: seen.append(torch.sim.current_stream(0)))
        worker.start()
        worker.join()
        assert torch.sim.current_stream(0) is not torch.sim.default_stream(0)
    assert seen == [torch.sim.default_stream(0)]
    assert torch.accelerator.current_stream("sim:0") is torch.sim.default_stream(0)


def test_the_current_device(backend):
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.accelerator.device_count() == torch.sim.device_count() == 2
    with torch.sim.device(1):
        assert torch.accelerator.current_device_index() == 1
        assert torch.empty(1, device="sim").device == torch.device("sim:1")
        with torch.accelerator.device_index(0):
            assert torch.sim.current_device() == 0
    assert torch.sim.current_device() == 0
    with pytest.raises(NoSuchDevice):
        torch.sim.set_device(7)
    assert torch.sim.get_device_name("sim:1") == "Simulated accelerator"
    assert torch.accelerator.get_device_capability("sim:0")["supported_dtypes"] == {
        torch.float32,
        torch.float16,
    }
    assert not torch.sim.is_bf16_supported()


def test_that_torch_keeps_to_index_0_is_said_once(backend, caplog):
    try:
        torch.sim.set_device(1)
        torch.sim.set_device("sim:1")
        assert torch.ones(1).to("sim").device == torch.device("sim:0")  # what the warning is of
        assert torch.ones(1).sim().device == torch.device("sim:1")
    finally:
        torch.sim.set_device(0)
    assert len([r for r in caplog.records if "pass the index" in r.message]) == 1


def test_a_kernels_failure_comes_up_at_the_wait_and_the_device_goes_on(backend):
    x = torch.ones(4, device="sim:1", dtype=torch.int64)
    x // (x - 1)
    with pytest.raises(RuntimeError, match="division"):
        torch.sim.synchronize(1)
    assert (x + 1).tolist() == [2, 2, 2, 2]
