"""Tensors of a device from a C library do what the CPU's do: copies, views, in-place writes."""

from __future__ import annotations

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.errors import DeviceError, UnsupportedCase
from vllm_adapter.settings import Fallback

pytestmark = pytest.mark.sim
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn),
    *(torch.complex64, torch.complex128, torch.uint16),
)


def bits(host):
    return host.contiguous().view(-1).view(torch.uint8).tolist() if host.numel() else []


def equal(mine, want):
    mine = mine.cpu()
    assert (mine.dtype, mine.shape) == (want.dtype, want.shape)
    assert bits(mine) == bits(want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (2, 0, 3), (2, 3, 4, 5)], ids=str)
def test_every_dtype_and_shape_comes_back(backend, dtype, shape):
    host = (torch.randn(shape) * 9).to(dtype)
    mine = host.to("sim:0")
    assert mine.device == torch.device("sim", 0)
    assert mine.untyped_storage().nbytes() == host.nbytes
    back = mine.cpu()
    assert (back.dtype, back.shape) == (dtype, host.shape)
    assert bits(back) == bits(host)
    order = tuple(reversed(range(len(shape))))
    turned = mine.permute(order)
    want = host.permute(order).contiguous()
    dense = turned.contiguous()
    assert dense.is_contiguous()
    assert bits(dense.cpu()) == bits(want) == bits(turned.cpu())
    assert not backend.coverage.counts()


WAYS = {
    "to": lambda x, **how: x.to("cpu", **how),
    "to a dtype": lambda x, **how: x.to("cpu", torch.float64, **how),
    "to like": lambda x, **how: x.to(torch.empty(1), **how),
    "copy": lambda x, **how: torch.empty(x.shape, dtype=x.dtype).copy_(x, **how),
    "back": lambda x, **how: x.to("cpu", **how).to("sim:0", **how).cpu(),
    "on": lambda x, **how: x.to("sim:1", **how).cpu(),
    "a copy": lambda x, **how: x.to("cpu", copy=True, **how),
    "a format": lambda x, **how: x.to("cpu", memory_format=torch.contiguous_format, **how),
}
CUTS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "strided": lambda x: x[::2, 1:],
    "empty": lambda x: x[:0],
    "one number": lambda x: x[1, 2],
    "expanded": lambda x: x[:1].expand(5, -1),
}


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_off_the_device_gives_the_values(backend, way, cut, non_blocking):
    x = torch.arange(24.0).reshape(4, 6)
    want = way(cut(x), non_blocking=non_blocking)
    got = way(cut(x.to("sim:0")), non_blocking=non_blocking)
    assert got.device.type == "cpu" and got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_views_share_memory_and_writes_through_them_are_seen(backend):
    host = torch.randn(4, 6)
    mine = host.to("sim:0")
    for x in (host, mine):
        x[1] += 5
        x[:, 2].mul_(3)
        x.t()[0, 1:].zero_()
        x.view(-1)[::5] = -1
        x[torch.tensor([2, 0], device=x.device)] = 7.0
        x[x > 6.5] = -2
        x.unfold(1, 2, 2).select(2, 0).remainder_(2)
        x.view(torch.int32)[0, 0] = 3
        x.split(2)[1].chunk(2, 1)[0].sub_(x[:2, 3:])
        x.diagonal().fill_(0.5)
    equal(mine, host)
    assert mine[1:, 2:].data_ptr() == mine.data_ptr() + 4 * (6 + 2)
    assert not backend.coverage.counts()


VIEWS = {
    "transpose": lambda x, a, b: x.transpose(a % x.dim(), b % x.dim()) if x.dim() else x,
    "select": lambda x, a, b: x.select(a % x.dim(), b % x.shape[a % x.dim()]),
    "slice": lambda x, a, b: x[(slice(None),) * (a % x.dim()) + (slice(b % 2, None, 1 + b % 3),)],
    "unsqueeze": lambda x, a, b: x.unsqueeze(a % (x.dim() + 1)) if x.dim() < 5 else x,
    "squeeze": lambda x, a, b: x.squeeze(),
    "narrow": lambda x, a, b: x.narrow(
        a % x.dim(), b % x.shape[a % x.dim()], x.shape[a % x.dim()] - b % x.shape[a % x.dim()]
    ),
    "unfold": lambda x, a, b: x.unfold(a % x.dim(), 1 + b % x.shape[a % x.dim()], 7),
    "flat": lambda x, a, b: x.view(-1) if x.is_contiguous() else x,
    "diagonal": lambda x, a, b: x.diagonal(b % 2) if x.dim() > 1 and x.shape[1] > 1 else x,
    "movedim": lambda x, a, b: x.movedim(a % x.dim(), b % x.dim()),
}
WRITES = {
    "add": lambda x, n: x.add_(n),
    "halve": lambda x, n: x.mul_(0.5),
    "fill": lambda x, n: x.fill_(n),
    "zero": lambda x, n: x.zero_(),
    "rows": lambda x, n: x.copy_(
        torch.arange(x.shape[-1] if x.dim() else 1, device=x.device)[:].view(-1)
        if x.dim()
        else torch.tensor(n * 1.0)
    ),
    "mask": lambda x, n: x.masked_fill_(x > n, -1.0),
    "from host": lambda x, n: x.copy_(torch.full(x.shape, n + 0.25)),
    "itself": lambda x, n: x.sub_(x, alpha=0.5),
    "relu": lambda x, n: x.relu_(),
    "cumsum": lambda x, n: x.copy_(x.clone().flatten().cumsum(0).view(x.shape)),
    "clamp": lambda x, n: x.clamp_(-n, n),
    "where": lambda x, n: x.copy_(torch.where(x < n, x, x * 2)),
    "on the host": lambda x, n: x.erfinv_() if n > 8 else x.trunc_(),
}


@pytest.mark.usefixtures("runtime")
@settings(max_examples=examples(150))
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    steps=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from(sorted(VIEWS)), st.integers(0, 9),
                               st.integers(0, 9)), max_size=4),
            st.sampled_from(sorted(WRITES)),
            st.integers(0, 9),
        ),
        max_size=4,
    ),
)  # fmt: skip
def test_any_chain_of_views_and_writes_leaves_what_it_leaves_on_the_cpu(shape, steps):
    host = torch.arange(torch.Size(shape).numel()).view(shape) * 0.75 - 3
    mine = host.to("sim:1")
    for chain, write, number in steps:
        ends = []
        for x in (host, mine):
            for view, a, b in chain:
                if x.dim() and x.numel():
                    x = VIEWS[view](x, a, b)
            ends.append(x)
            if x.numel():
                WRITES[write](x, number)
        assert ends[0].stride() == ends[1].stride()
        assert ends[0].storage_offset() == ends[1].storage_offset()
    torch.testing.assert_close(mine.cpu(), host, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_tensors_of_two_devices_are_not_mixed(backend):
    here, there = torch.ones(3, device="sim:0"), torch.ones(3, device="sim:1")
    host = torch.ones(3)
    for work in (
        lambda: here + there,
        lambda: here + host,
        lambda: torch.where(here > 0, there, here),
        lambda: torch.where(here > 0, host, here),
        lambda: here @ there,
        lambda: here @ host,
        lambda: torch.sort(here, out=(torch.empty(0), torch.empty(0, dtype=torch.long))),
        lambda: torch.cat([here, there]),
        lambda: here.masked_fill_(there > 0, 1.0),
    ):
        with pytest.raises(RuntimeError, match=r"same device"):
            work()
    assert (here + torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]  # a number in a tensor
    assert torch.ones(3, device="sim:1").device == there.device


def test_copies_between_devices_cast_stride_and_broadcast(backend):
    host = torch.randn(3, 4)
    here = host.to("sim:0")
    equal(here.to("sim:1"), host)
    equal(here.t().to("sim:1").t(), host)
    there = torch.zeros(2, 3, 4, dtype=torch.float16, device="sim:1").transpose(1, 2)
    there.copy_(here.t())
    equal(there, host.t().half().expand(2, 4, 3))
    assert not backend.coverage.counts()


def test_a_copy_onto_memory_that_it_reads_is_as_if_it_had_been_read_before(backend):
    x = torch.arange(9.0).view(3, 3).to("sim:0")
    x.copy_(x.t())
    assert x.tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    line = torch.arange(6.0, device="sim:0")
    line[1:].copy_(line[:-1])
    assert line.tolist() == [0, 0, 1, 2, 3, 4]


def test_resize_keeps_the_bytes_and_refuses_to_leave_views_behind(backend):
    x = torch.arange(4.0, device="sim:0")
    x.resize_(2, 4)
    assert x.shape == (2, 4)
    assert x[0].tolist() == [0, 1, 2, 3]
    x.resize_(3)
    assert x.tolist() == [0, 1, 2]
    view = x.view(-1)
    with pytest.raises(DeviceError, match="memory that other tensors share"):
        x.resize_(100)
    assert view.tolist() == [0, 1, 2]
    out = torch.empty(0, device="sim:0")
    torch.add(x, 1, out=out)
    assert out.tolist() == [1, 2, 3]


def test_set_gives_a_tensor_another_memory(backend):
    x, y = torch.arange(6.0, device="sim:0"), torch.zeros(2, device="sim:0")
    y.set_(x)
    assert y.data_ptr() == x.data_ptr()
    y.set_(x.untyped_storage(), 2, (2, 2))
    assert y.tolist() == [[2, 3], [4, 5]]
    y.set_(x.untyped_storage())
    assert y.tolist() == [0, 1, 2, 3, 4, 5]
    assert y.set_().numel() == 0


def test_lazy_conjugates_and_negatives_are_resolved_on_the_way(backend):
    host = torch.randn(3, 2, dtype=torch.complex64)
    mine = host.to("sim:0")
    for x in (mine.conj(), mine.t().conj().t()):
        assert torch.equal(x.cpu(), host.conj().resolve_conj())
    assert torch.equal(mine.conj().imag.cpu(), host.conj().imag)
    assert torch.equal(host.conj().to("sim:0").cpu(), host.conj().resolve_conj())


def test_arguments_that_alias_each_other_stay_aliases_on_the_host(backend):
    host = torch.randn(4, 4)
    mine = host.to("sim:0")
    for x in (host, mine):
        torch._foreach_add_([x[0], x[1], x.t()[2]], 1.0)
        torch.lerp(x[:2], x[2:], 0.5, out=x[:2])
        x[1:3].erf_()
    torch.testing.assert_close(mine.cpu(), host)


def test_an_operator_that_gives_a_view_is_refused_on_the_host(backend):
    library = torch.library.Library("sim_test", "DEF")
    library.define("peek(Tensor(a) x) -> Tensor(a)")
    library.impl("peek", lambda x: x[:1], "CPU")
    with pytest.raises(UnsupportedCase, match="sim_test::peek gives a view"):
        torch.ops.sim_test.peek(torch.ones(2, device="sim:0"))


def test_numbers_reach_operators_whose_schema_says_tensor(backend):
    host = torch.arange(-2.0, 3.0)
    mine = host.to("sim:0")
    for work in (
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: 2 / (x + 5),
        lambda x: 2**x,
        lambda x: 0.5 < x,
        lambda x: torch.xlogy(x.abs(), 2.0),
        lambda x: torch.rsub(x, 1, alpha=2),
        lambda x: x % 2,
        lambda x: x // 2,
        lambda x: x * True,
    ):
        torch.testing.assert_close(work(mine).cpu(), work(host))


def test_the_policy_error_refuses_and_names_the_operator(backend):
    x = torch.ones(5, device="sim:0")
    backend.policy = Fallback.ERROR
    with pytest.raises(UnsupportedCase, match=r"sim has no kernel for aten::sort"):
        x.sort()
    with pytest.raises(UnsupportedCase, match=r"aten::add.out"):
        x.double() + 1  # a kernel, but none of this chip's for float64
    assert (x + 1).shape == (5,)


def test_the_policy_warn_says_it_once(backend, caplog):
    x = torch.ones(5, device="sim:0")
    backend.policy = Fallback.WARN
    for _ in range(2):
        x.sort()
    assert [r.message for r in caplog.records if "aten::sort" in r.message] == [
        "sim has no kernel for aten::sort.values_stable: it runs on the host"
    ]
    assert backend.coverage.counts() == {"aten::sort.values_stable": 2}
    assert torch.sim.fallbacks() == {"aten::sort.values_stable": 2}
    torch.sim.reset_fallbacks()
    assert not torch.sim.fallbacks()


def test_every_view_that_torch_has_no_kernel_for_on_all_devices_is_ours():
    from vllm_adapter.engine.runtime.device_from_clib.views import VIEWS

    composite = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    needed = set()
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or not hasattr(torch.ops.aten, packet):
            continue
        op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if op is None or not any(
            r.alias_info and not r.alias_info.is_write for r in op._schema.returns
        ):
            continue
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if not any(has(name, key) for key in composite):
            needed.add(op)
    of_other_layouts = ("nested", "sparse", "_values", "_indices")
    dense = {op for op in needed if not any(word in str(op) for word in of_other_layouts)}
    assert dense == set(VIEWS)
