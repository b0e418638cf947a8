"""Operators over the library's tensor work: torch's results, shapes, dtypes and errors."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.settings import Fallback

pytestmark = pytest.mark.sim
DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32)
SHAPES = ((), (1,), (5,), (3, 1), (3, 5), (2, 1, 5), (2, 3, 1, 5), (0, 5))
BINARY = {
    name: getattr(torch, name)
    for name in (
        *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "floor_divide", "remainder"),
        *("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor"),
        *("logical_and", "logical_or", "logical_xor", "rsub"),
    )
}
UNARY = {
    name: getattr(torch, name)
    for name in (
        *("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "relu"),
        *("logical_not", "bitwise_not", "isinf", "isnan", "isneginf", "isposinf", "reciprocal"),
    )
} | {"silu": torch.nn.functional.silu}


def draw(shape, dtype, seed, low=-4):
    values = torch.randint(low, 5, shape, generator=torch.Generator().manual_seed(seed))
    fraction = 0.25 if dtype.is_floating_point else 0
    return (values + fraction).to(dtype) if dtype != torch.bool else values > 0


def attempt(work, *arguments):
    """The result, or what kind of error it is."""
    try:
        return work(*arguments)
    except (RuntimeError, TypeError, IndexError) as error:
        return type(error)


DENSE = ("logical_and", "logical_or", "logical_xor", "floor_divide", "rsub")
"""Not structured: their results are contiguous, whatever the arguments are."""


def same(mine, want, strides=True):
    if isinstance(want, type):
        assert mine == want or (isinstance(mine, type) and issubclass(mine, RuntimeError)), mine
        return
    if isinstance(want, tuple):
        for one, other in zip(mine, want, strict=True):
            same(one, other)
        return
    assert not isinstance(mine, type), (mine, want)
    assert mine.device.type == "sim"
    assert (mine.dtype, mine.shape) == (want.dtype, want.shape)
    assert not strides or mine.stride() == want.stride()
    torch.testing.assert_close(mine.cpu(), want, equal_nan=True)


@pytest.mark.usefixtures("runtime")
@settings(max_examples=examples(250))
@given(
    name=st.sampled_from(sorted(BINARY)),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    shapes=st.tuples(st.sampled_from(SHAPES), st.sampled_from(SHAPES)),
    other=st.sampled_from(("tensor", 2, 0.5, True, "number in a tensor", "turned")),
    seed=st.integers(0, 99),
)
def test_two_arguments(name, dtypes, shapes, other, seed):
    work = BINARY[name]
    low = 1 if name in ("floor_divide", "remainder", "div") else -4
    x, y = draw(shapes[0], dtypes[0], seed), draw(shapes[1], dtypes[1], seed + 1, low)
    if "div" in name and dtypes[1] == torch.bool:
        y = torch.ones_like(y)
    if other == "turned" and x.dim() > 1:
        x = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    mine, also = x.to("sim:0"), y.to("sim:0")
    if other == "turned" and x.dim() > 1:
        mine = x.transpose(-1, -2).to("sim:0").transpose(-1, -2)
    if isinstance(other, bool | int | float):
        y = also = other
    elif other == "number in a tensor":
        y = also = torch.tensor(2, dtype=dtypes[1])
    want = attempt(work, x, y)
    same(attempt(work, mine, also), want, strides=name not in DENSE)
    in_place = getattr(x, f"{name}_", None)
    if in_place is not None:
        want = attempt(lambda: getattr(x.clone(), f"{name}_")(y))
        same(attempt(lambda: getattr(mine.clone(), f"{name}_")(also)), want)


@pytest.mark.parametrize("name", sorted(UNARY))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3, 5), (2, 3, 2, 2, 2, 3)], ids=str)
def test_one_argument(backend, name, dtype, shape):
    x = draw(shape, dtype, 3)
    if dtype.is_floating_point and x.dim():
        x.view(-1)[:3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    work, mine = UNARY[name], x.to("sim:0")
    want = attempt(work, x)
    same(attempt(work, mine), want)
    if not isinstance(want, type):
        turned = (*range(1, x.dim(), 2), *range(0, x.dim(), 2))
        same(work(mine.permute(turned)).contiguous(), work(x.permute(turned)).contiguous())
        assert not backend.coverage.counts()


REDUCTIONS = {
    "sum": lambda x, d, k: x.sum(d, k),
    "mean": lambda x, d, k: x.mean(d, k),
    "amax": lambda x, d, k: x.amax(d, k),
    "amin": lambda x, d, k: x.amin(d, k),
    "all": lambda x, d, k: x.all(d, k),
    "any": lambda x, d, k: x.any(d, k),
}


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_over_any_dimensions(backend, name, dtype):
    work = REDUCTIONS[name]
    for shape in ((5,), (3, 4), (2, 3, 4), (2, 3, 2, 2, 3, 2)):
        x = draw(shape, dtype, 5)
        views = (lambda t: t, lambda t: t.transpose(0, -1), lambda t: t[..., ::2])
        for view, keep in itertools.product(views, (False, True)):
            a, b = view(x), view(x.to("sim:0"))
            for n in range(1, 3):
                for dims in itertools.combinations(range(len(shape)), min(n, len(shape))):
                    same(attempt(work, b, list(dims), keep), attempt(work, a, list(dims), keep))
    assert not backend.coverage.counts()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float32], ids=str)
def test_what_has_one_dimension_or_none(backend, dtype):
    x = draw((2, 3, 4), dtype, 7)
    mine = x.to("sim:0")
    for work in (
        *(lambda t, d=d: t.argmax(d) for d in (None, 0, 1, -1)),
        *(lambda t, d=d: t.argmin(d, True) for d in (0, 2)),
        *(lambda t, d=d: t.max(d) for d in (0, 1)),
        *(lambda t, d=d: t.min(d, True) for d in (0, 2)),
        *(lambda t, d=d: t.cumsum(d) for d in (0, 1, 2)),
        *(lambda t, d=d: t.float().softmax(d) for d in (0, 1, 2)),
        lambda t: t.max(),
        lambda t: t.min(),
        lambda t: t.sum(),
        lambda t: t.sum(dtype=torch.float32),
        lambda t: t.bool().sum(),
        lambda t: t.all(),
        lambda t: t.any(),
        lambda t: t[0, 0, 0].sum(),
        lambda t: t[:0].sum(0),
        lambda t: t.float().mean((0, 2)),
    ):
        same(work(mine), work(x))
    assert not backend.coverage.counts()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_scores_over_a_vocabulary(backend, dtype):
    x = draw((3, 4, 50), torch.float32, 9).flatten().argsort().view(3, 4, 50).to(dtype)  # no ties
    x[0, 0, 7] = float("-inf")
    mine = x.to("sim:0")
    for d in (0, 2, -1):
        close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float16 else {}
        torch.testing.assert_close(mine.log_softmax(d).cpu(), x.log_softmax(d), **close)
    for k, d in ((1, 0), (2, 0), (2, 1), (32, 2), (5, -1)):
        same(mine.topk(k, d), x.topk(k, d))
    assert not backend.coverage.counts()
    few = torch.full((2, 9), float("-inf"))
    few[:, 4] = 1.0
    values, places = few.to("sim:0").topk(3)  # more than are finite: the host tells them apart
    assert values[:, 0].tolist() == [1.0, 1.0]
    assert all(len(set(row)) == 3 for row in places.tolist())
    assert backend.coverage.counts() == {"aten::topk.values": 1}


MOVES = {
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i % 4],
    "rows by a table": lambda x, i: x[i.view(2, 2)],
    "both": lambda x, i: x[i, i % 4],
    "both, broadcast": lambda x, i: x[i[:, None], (i % 4)[None, :2]],
    "from the end": lambda x, i: x[-i - 1, -1 - i % 4],
    "index_select": lambda x, i: x.index_select(1, i % 4),
    "gather": lambda x, i: x.gather(0, i.view(2, 2)),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "put": lambda x, i: x.index_put((i,), torch.tensor(9).to(x)),
    "put rows": lambda x, i: x.index_put((i % 3,), x[:1] * 2),
    "put both": lambda x, i: x.index_put((i, i % 4), torch.tensor(7).to(x)),
    "index_copy": lambda x, i: x.index_copy(0, i[:2], x[2:4] + 1),
    "cat": lambda x, i: torch.cat([x, x[:0], x[i]]),
    "cat of none": lambda x, i: torch.cat([torch.empty(0, device=x.device, dtype=x.dtype), x], 1),
    "stack": lambda x, i: torch.stack([x, x * 2], -1),
    "repeat": lambda x, i: x.repeat(2, 1),
    "repeat_interleave": lambda x, i: x.repeat_interleave(3, 0),
    "masked_fill": lambda x, i: x.masked_fill(x > 0, 3),
    "where": lambda x, i: torch.where(x > 0, x, 0.5),
    "where, broadcast": lambda x, i: torch.where(x[:, :1] > 0, x, x[0]),
    "isin": lambda x, i: torch.isin(i, torch.tensor([1, 3], device=x.device)),
    "is not in": lambda x, i: torch.isin(
        x, torch.tensor([1, 0.25], device=x.device).to(x.dtype), invert=True
    ),
    "is in a number": lambda x, i: torch.isin(i, torch.tensor(3, device=x.device)),
    "lower": lambda x, i: x.tril(),
    "upper": lambda x, i: torch.ones(3, 5, 4, device=x.device, dtype=x.dtype).triu(1),
    "fill of an expanded": lambda x, i: x[:1, :1].expand(3, 4).fill_(2).clone(),
    "all of no dimension": lambda x, i: (x > 0).all(dim=()),
    "equal": lambda x, i: torch.tensor(
        [torch.equal(x, y) for y in (x.clone(), x + 1, x[:2])], device=x.device
    ),
    "arange": lambda x, i: torch.arange(2, 11, 3, device=x.device),
    "arange down": lambda x, i: torch.arange(2.0, -3.0, -0.75, device=x.device),
    "full": lambda x, i: torch.full((2, 3), -7, device=x.device, dtype=x.dtype),
    "ones": lambda x, i: torch.ones(2, 2, device=x.device, dtype=torch.bool),
    "tril": lambda x, i: (
        torch.arange(4, device=x.device)[:, None] >= torch.arange(4, device=x.device)
    ),
}


@pytest.mark.parametrize("name", sorted(MOVES))
@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float32], ids=str)
def test_elements_by_number_and_joined(backend, name, dtype):
    work = MOVES[name]
    x, index = draw((5, 4), dtype, 11), torch.tensor([3, 0, 4, 1])
    same(work(x.to("sim:0"), index.to("sim:0")), work(x, index))
    same(work(x.t().contiguous().to("sim:0").t(), index.to("sim:0")).contiguous(),
         work(x.t().contiguous().t(), index).contiguous())  # fmt: skip
    assert not backend.coverage.counts()


def test_an_index_outside_comes_up_with_the_next_wait(backend):
    x = torch.ones(5, 4, device="sim:0")
    for bad in (
        lambda: x[torch.tensor([5], device="sim:0")],
        lambda: x[torch.tensor([-6], device="sim:0")],
        lambda: x[torch.tensor([0], device="sim:0"), torch.tensor([4], device="sim:0")],
        lambda: x[torch.tensor([0], device="sim:0"), torch.tensor([-5], device="sim:0")],
    ):
        with pytest.raises(RuntimeError, match="index outside"):
            bad().cpu()
    assert x.cpu().sum() == 20


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_products(backend, dtype):
    x, y, bias = (draw(s, dtype, 13) for s in ((3, 4), (4, 5), (5,)))
    batch = draw((2, 3, 4), dtype, 17)
    linear = torch.nn.Linear(4, 5).to(dtype).requires_grad_(False)
    there = torch.nn.Linear(4, 5).to(dtype).requires_grad_(False)
    there.load_state_dict(linear.state_dict())
    there.to("sim:0")
    a, b, c, d = (t.to("sim:0") for t in (x, y, bias, batch))
    for mine, want in (
        (a @ b, x @ y),
        (b.t() @ a.t(), y.t() @ x.t()),
        (d @ b, batch @ y),
        (torch.bmm(d, b.expand(2, 4, 5)), torch.bmm(batch, y.expand(2, 4, 5))),
        (torch.addmm(c, a, b), torch.addmm(bias, x, y)),
        (torch.addmm(c, a, b, beta=0, alpha=2), torch.addmm(bias, x, y, beta=0, alpha=2)),
        (torch.addmm(a @ b, a, b, alpha=0.5), torch.addmm(x @ y, x, y, alpha=0.5)),
        (torch.baddbmm(c, d, b.expand(2, 4, 5)), torch.baddbmm(bias, batch, y.expand(2, 4, 5))),
        (there(d), linear(batch)),
        (torch.empty(0, 4, device="sim:0", dtype=dtype) @ b, torch.empty(0, 4, dtype=dtype) @ y),
    ):
        assert mine.shape == want.shape
        torch.testing.assert_close(mine.cpu(), want)
    assert not backend.coverage.counts()


def test_a_given_output_gets_its_shape_and_refuses_what_it_cannot_hold(backend):
    x, y = torch.ones(3, 4, device="sim:0"), torch.ones(4, 2, device="sim:0")
    for work, shape in (
        (lambda out: torch.add(x, x[0], out=out), (3, 4)),
        (lambda out: torch.exp(x, out=out), (3, 4)),
        (lambda out: torch.abs(x, out=out), (3, 4)),
        (lambda out: torch.sum(x, 0, out=out), (4,)),
        (lambda out: torch.sum(x, 0, keepdim=True, out=out), (1, 4)),
        (lambda out: torch.cumsum(x, 0, out=out), (3, 4)),
        (lambda out: torch.mm(x, y, out=out), (3, 2)),
        (lambda out: torch.addmm(y[0], x, y, out=out), (3, 2)),
        (lambda out: torch.cat([x, x], 1, out=out), (3, 8)),
        (lambda out: torch.gather(x, 0, torch.zeros(1, 4, dtype=torch.long, device="sim:0"),
                                  out=out), (1, 4)),
        (lambda out: torch.arange(5, out=out), (5,)),
        (lambda out: torch.where(x > 0, x, x[0], out=out), (3, 4)),
    ):  # fmt: skip
        out = torch.empty(0, device="sim:0")
        assert work(out) is out
        assert out.shape == shape
        assert out.isfinite().all()
    whole = torch.empty(0, dtype=torch.int64, device="sim:0")
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(x, 1, out=whole)
    with pytest.raises(RuntimeError, match="broadcast"):
        torch.add(x, y, out=torch.empty(0, device="sim:0"))
    with pytest.raises(RuntimeError, match="same device"):
        torch.add(x, x, out=torch.empty(0, device="sim:1"))


def test_a_library_without_a_function_has_the_operator_on_the_host(backend, monkeypatch):
    x = torch.arange(6.0, device="sim:0")
    monkeypatch.delitem(backend.kernels._known, "binary")
    assert (x + 1).tolist() == [1, 2, 3, 4, 5, 6]
    x += 1
    assert x.tolist() == [1, 2, 3, 4, 5, 6]
    assert backend.coverage.counts() == {"aten::add.out": 2}
    backend.policy = Fallback.ERROR
    with pytest.raises(RuntimeError, match="aten::mul"):
        operator.mul(x, 2)


def test_the_operators_that_need_a_function_are_known(backend):
    from vllm_adapter.engine.runtime.device_from_clib.registration import kernels_by_function

    table = kernels_by_function(backend)
    assert set(table) == {
        *("unary", "binary", "where", "reduce", "index", "gather", "matmul", "fill"),
    }
    assert torch.ops.aten.add.out in table["binary"]
    assert torch.ops.aten.add.out not in table["reduce"]
