"""Prepared calls of a library's operators: what is reused, what is refused, on which stream."""

from __future__ import annotations

import ctypes
import dataclasses
import threading

import pytest
import torch

from vllm_adapter.engine.ops import c_library as library_kernels
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.c_library.kernels import make_kernel
from vllm_adapter.engine.ops.c_library.steps import plan_step
from vllm_adapter.engine.ops.step import make_step
from vllm_adapter.engine.runtime.c_library.call import FRAMES, PreparedCall
from vllm_adapter.errors import AdapterError, DeviceError, ForkedDevice, UnsupportedCase

pytestmark = pytest.mark.sim
EPS = 1e-6
STREAM_AT = 8
"""Bytes before va_rms_norm_args.stream."""
HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 32, 24


def norm_of(x, weight, eps=EPS):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@pytest.fixture
def call(backend):
    """rms_norm as a prepared call."""
    return PreparedCall(
        backend.library,
        backend.streams,
        "rms_norm",
        outputs="out",
        inputs="x weight",
        fields="eps",
    )


@pytest.fixture
def kernel(backend):
    """kernel(op): the operator's implementation."""
    return lambda op: make_kernel(backend.library, backend.streams, op)


def normed(call, x, weight, eps=EPS):
    mine, scale = x.to("sim:0"), weight.to("sim:0")
    out = torch.empty_like(mine)
    call((eps,), (out,), (mine, scale))
    return out.cpu()


def test_a_frame_is_reused_for_tensors_that_look_the_same(call):
    weight = torch.randn(64)
    for _ in range(3):
        x = torch.randn(5, 64)
        torch.testing.assert_close(normed(call, x, weight), norm_of(x, weight))
    (frames,) = call._local.frames.values()
    assert len(frames) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.randn(6, 64),
        lambda: torch.randn(5, 1, 64),
        lambda: torch.randn(5, 64, dtype=torch.float16),
    ],
    ids=["rows", "dimensions", "dtype"],
)
def test_tensors_that_look_unlike_get_a_frame_of_their_own(call, other):
    first, second = torch.randn(5, 64), other()
    for x in (first, second, first):
        weight = torch.randn(64).to(x.dtype)
        want = norm_of(x.double(), weight.double()).to(x.dtype)
        torch.testing.assert_close(normed(call, x, weight), want)
    (frames,) = call._local.frames.values()
    assert len(frames) == 2


def test_strides_are_told_to_the_library(call, backend):
    wide, weight = torch.randn(5, 128), torch.randn(64)
    for view in (slice(0, 64), slice(64, 128), slice(0, 128, 2)):
        mine = wide.to("sim:0")[:, view]
        out = torch.empty(5, 64, device="sim:0")
        call((EPS,), (out,), (mine, weight.to("sim:0")))
        torch.testing.assert_close(out.cpu(), norm_of(wide[:, view], weight))
    (frames,) = call._local.frames.values()
    assert len(frames) == 2
    assert not backend.coverage.counts()


def test_each_scalar_has_its_frames(call):
    x, weight = torch.full((2, 64), 1e-3), torch.randn(64)
    for eps in (1e-6, 1e-3, 1e-6):
        torch.testing.assert_close(normed(call, x, weight, eps), norm_of(x, weight, eps))
    assert set(call._local.frames) == {(1e-6,), (1e-3,)}


def test_frames_are_bounded(call):
    weight = torch.randn(64)
    for rows in range(1, FRAMES + 5):
        normed(call, torch.randn(rows, 64), weight)
    (frames,) = call._local.frames.values()
    assert len(frames) == FRAMES


def test_a_tensor_may_be_given_twice(backend):
    call = PreparedCall(
        backend.library,
        backend.streams,
        "fused_add_rms_norm",
        outputs="out sum",
        inputs="x residual weight",
        fields="eps",
    )
    x, weight = torch.randn(3, 64), torch.randn(64)
    mine = x.to("sim:0")
    for _ in range(2):
        out, total = torch.empty_like(mine), torch.empty_like(mine)
        call((EPS,), (out, total), (mine, mine, weight.to("sim:0")))
        torch.testing.assert_close(out.cpu(), norm_of(2 * x, weight))
    assert call._local.frames == {(EPS,): []}


def test_frames_keep_no_tensor(call, runtime):
    before = runtime.memory_stats(0).live_allocations
    normed(call, torch.randn(3, 64), torch.randn(64))
    torch.sim.synchronize()
    assert runtime.memory_stats(0).live_allocations == before


def test_threads_have_frames_of_their_own(kernel):
    run, wrong = kernel("rms_norm"), []

    def work(seed):
        draw = torch.Generator().manual_seed(seed)
        for _ in range(50):
            x, weight = torch.randn(5, 64, generator=draw), torch.randn(64, generator=draw)
            got = run(x.to("sim:0"), weight.to("sim:0"), EPS).cpu()
            if not torch.allclose(got, norm_of(x, weight), atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_work_goes_to_the_current_stream(call, monkeypatch):
    function, seen = call._function, []

    def record(address):
        seen.append(ctypes.c_uint64.from_address(address + STREAM_AT).value)
        return function(address)

    monkeypatch.setattr(call, "_function", record)
    x, weight = torch.randn(5, 64), torch.randn(64)
    stream = torch.sim.Stream("sim:0")
    torch.testing.assert_close(normed(call, x, weight), norm_of(x, weight))
    with stream:
        torch.testing.assert_close(normed(call, x, weight), norm_of(x, weight))
    torch.testing.assert_close(normed(call, x, weight), norm_of(x, weight))
    assert seen == [0, stream.handle, 0]


REFUSED = {
    "a host tensor": (
        lambda: (torch.randn(5, 64).to("sim:0"), torch.randn(64), EPS),
        DeviceError,
        "weight is on cpu",
    ),
    "another device's tensor": (
        lambda: (torch.randn(5, 64).to("sim:0"), torch.randn(64).to("sim:1"), EPS),
        DeviceError,
        "weight is on sim:1",
    ),
    "too many dimensions": (
        lambda: (torch.randn(1, 1, 1, 1, 5, 64).to("sim:0"), torch.randn(64).to("sim:0"), EPS),
        UnsupportedCase,
        "6 dimensions",
    ),
    "a dtype of nobody": (
        lambda: (torch.randn(5, 64).cfloat().to("sim:0"), torch.randn(64).to("sim:0"), EPS),
        UnsupportedCase,
        "complex64",
    ),
    "a dtype without a kernel": (
        lambda: (
            torch.randn(5, 64).double().to("sim:0"),
            torch.randn(64).double().to("sim:0"),
            EPS,
        ),
        UnsupportedCase,
        "rms_norm",
    ),
    "shapes that do not fit": (
        lambda: (torch.randn(5, 64).to("sim:0"), torch.randn(63).to("sim:0"), EPS),
        DeviceError,
        "rms_norm",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(kernel, name):
    make, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        kernel("rms_norm")(*make())
    good = torch.randn(2, 64)
    weight = torch.ones(64)
    got = kernel("rms_norm")(good.to("sim:0"), weight.to("sim:0"), EPS).cpu()
    torch.testing.assert_close(got, norm_of(good, weight))


def test_a_forked_child_is_told_so(call, backend, monkeypatch):
    x, weight = torch.randn(5, 64).to("sim:0"), torch.randn(64).to("sim:0")
    out = torch.empty_like(x)
    with monkeypatch.context() as forked:
        forked.setattr(backend.library, "_forked", True)
        with pytest.raises(ForkedDevice, match="fork"):
            call((EPS,), (out,), (x, weight))


# -- planned steps -------------------------------------------------------------------------------


def step_of(contexts, blocks):
    """A decode step on the device, and the same on the host."""
    host = make_step((1,) * len(contexts), contexts, blocks, BLOCK)
    names = ("slot_mapping", "block_table", "seq_lens", "query_start_loc", "positions")
    moved = {name: getattr(host, name).to("sim:0") for name in names}
    return host, dataclasses.replace(host, **moved)


def layer_of(tokens, blocks=6):
    query = torch.randn(tokens, HEADS, SIZE)
    return query, *(torch.randn(blocks, BLOCK, KV_HEADS, SIZE) for _ in range(2))


def attend(run, layer, host, mine, pinned):
    """One layer's attention, and whether it is right."""
    options = (SIZE**-0.5, 0, 0.0)
    tables = (mine.block_table, mine.seq_lens, mine.query_start_loc)
    got = run(*(t.to("sim:0") for t in layer), *tables, *options, pinned)
    on_host = (host.block_table, host.seq_lens, host.query_start_loc)
    want = generic.paged_attention(*layer, *on_host, *options, None)
    return torch.allclose(got.cpu(), want, atol=1e-5)


def test_layers_of_a_step_share_its_frame(kernel):
    run = kernel("paged_attention")
    host, mine = step_of((3, 30), [[1], [2, 3]])
    pinned = plan_step(mine, None)
    assert all(attend(run, layer_of(2), host, mine, pinned) for _ in range(3))
    frame = pinned._frame
    assert frame is not None
    host, mine = step_of((4, 31), [[4], [2, 3]])
    pinned = plan_step(mine, pinned)
    assert all(attend(run, layer_of(2), host, mine, pinned) for _ in range(3))
    assert pinned._frame is frame


def test_a_planned_step_notices_what_differs(kernel):
    run = kernel("paged_attention")
    host, mine = step_of((3, 30), [[1], [2, 3]])
    pinned = plan_step(mine, None)
    assert attend(run, layer_of(2), host, mine, pinned)
    assert attend(run, layer_of(2, blocks=9), host, mine, pinned)
    other_host, other = step_of((5, 6, 7), [[1], [2], [3]])
    assert attend(run, layer_of(3), other_host, other, pinned)
    assert attend(run, layer_of(2), host, mine, pinned)


def test_two_plans_of_the_same_shapes_do_not_mix(kernel):
    run = kernel("paged_attention")
    steps = [step_of((3, 30), [[1], [2, 3]]), step_of((20, 5), [[4, 0], [5]])]
    plans = [plan_step(mine, None) for _, mine in steps]
    for _ in range(2):
        for (host, mine), pinned in zip(steps, plans, strict=True):
            assert attend(run, layer_of(2), host, mine, pinned)
            assert attend(run, layer_of(2), host, mine, None)


# -- who serves an adapter -----------------------------------------------------------------------


def test_one_library_an_adapter(backend, faulty):
    from vllm_adapter.c_abi.library import Library

    served = library_kernels.serve("calls_test", backend.library, backend.streams)
    assert library_kernels.serve("calls_test", backend.library, backend.streams) is served
    assert library_kernels.served("calls_test") is served
    with pytest.raises(AdapterError, match="one library a process"):
        library_kernels.serve("calls_test", Library(faulty()), backend.streams)
    with pytest.raises(AdapterError, match="no C library open"):
        library_kernels.kernel("library:rms_norm", "nobody")
    with pytest.raises(AdapterError, match="without softmax"):
        library_kernels.kernel("library:softmax", "calls_test")
