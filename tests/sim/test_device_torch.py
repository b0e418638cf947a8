"""torch's own machinery on a device from a C library: modules, files, copies, compilation."""

from __future__ import annotations

import copy
import importlib
import io
import pickle

import pytest
import torch

pytestmark = pytest.mark.sim


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.SiLU(), torch.nn.Linear(8, 2))


def test_modules_move_and_load(backend):
    x, plain = torch.randn(3, 6), net()
    mine = copy.deepcopy(plain).to("sim:1")
    assert {p.device for p in mine.parameters()} == {torch.device("sim:1")}
    torch.testing.assert_close(mine(x.to("sim:1")).cpu(), plain(x))
    other = net()
    with torch.no_grad():
        other[0].weight.add_(1)
    mine.load_state_dict(other.state_dict())
    torch.testing.assert_close(mine(x.to("sim:1")).cpu(), other(x))
    state = {k: v.to("sim:0") for k, v in plain.state_dict().items()}
    mine.load_state_dict(state, assign=True)
    torch.testing.assert_close(mine(x.to("sim:0")).cpu(), plain(x))
    assert mine[0].weight.data_ptr() == state["0.weight"].data_ptr()
    assert next(mine.cpu().parameters()).device.type == "cpu"
    assert next(mine.sim(0).parameters()).is_sim


def test_copies_and_pickles_keep_sharing(backend):
    y = torch.randn(4, 6).to("sim:1")
    pair = {"whole": y, "row": y[1]}
    for again in (copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        assert again["whole"].device == y.device
        assert again["whole"].data_ptr() != y.data_ptr()
        assert torch.equal(again["whole"].cpu(), y.cpu())
        assert again["row"].data_ptr() - again["whole"].data_ptr() == 24 or "row" in again
    model = net().to("sim:0")
    twin = copy.deepcopy(model)
    assert torch.equal(twin[0].weight.cpu(), model[0].weight.cpu())


@pytest.mark.parametrize("where", [None, "cpu", "sim:0", "sim", "sim:1"])
@pytest.mark.parametrize("weights_only", [True, False])
def test_files_keep_devices_and_sharing(backend, where, weights_only):
    y = torch.randn(4, 6).to("sim:1")
    file = io.BytesIO()
    torch.save({"whole": y, "row": y[1], "half": y.half()}, file)
    file.seek(0)
    got = torch.load(file, map_location=where, weights_only=weights_only)
    expected = {None: "sim:1", "sim": "sim:0"}.get(where, where)
    assert got["whole"].device == torch.device(expected)
    assert torch.equal(got["whole"].cpu(), y.cpu())
    assert torch.equal(got["half"].cpu(), y.half().cpu())
    assert got["row"].data_ptr() - got["whole"].data_ptr() == 24


def test_a_file_for_a_device_that_there_is_not_is_refused(backend):
    file = io.BytesIO()
    torch.save(torch.ones(1), file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="no device 9"):
        torch.load(file, map_location="sim:9")


def test_storages_are_made_on_the_device(backend):
    storage = torch.UntypedStorage(10, device="sim:1")
    assert (storage.device, storage.nbytes()) == (torch.device("sim:1"), 10)
    assert torch.UntypedStorage(10).device.type == "cpu"
    assert torch.UntypedStorage(device="sim:0").nbytes() == 0


def test_random_numbers_come_from_the_cpus_generator(backend):
    draw = torch.Generator(device="sim:0").manual_seed(3)
    mine = torch.randn(5, generator=draw, device="sim:0")
    assert torch.equal(mine.cpu(), torch.randn(5, generator=torch.Generator().manual_seed(3)))
    torch.manual_seed(5)
    mine = torch.rand(3, device="sim:0")
    torch.manual_seed(5)
    assert torch.equal(mine.cpu(), torch.rand(3))
    assert isinstance(draw, torch.Generator)
    assert torch.equal(torch.sim.get_rng_state(), torch.get_rng_state())


@pytest.mark.parametrize("index", [0, 1])
def test_backward(backend, index):
    x = torch.randn(3, 6)
    plain, mine = net(), net().to(f"sim:{index}")
    plain(x).sum().backward()
    # torch's engine counts devices when it first runs, which may be before this one is there, and
    # its guard counts one: there are no threads to rely on.
    with torch.autograd.set_multithreading_enabled(False):
        mine(x.to(f"sim:{index}")).sum().backward()
    assert mine[0].weight.grad.device == torch.device("sim", index)
    torch.testing.assert_close(mine[0].weight.grad.cpu(), plain[0].weight.grad)


def test_autocast_casts_nothing_and_fails_nothing(backend):
    mine = net().to("sim:0")
    with torch.autocast("sim", dtype=torch.float16):
        assert mine(torch.ones(1, 6, device="sim:0")).dtype == torch.float32


def test_a_compiled_model_is_one_graph(backend):
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    x, plain = torch.randn(3, 6), net()
    compiled = torch.compile(net().to("sim:1"), backend=keep, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x.to("sim:1")).cpu(), plain(x))
    assert len(graphs) == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("where", ["sim:0", "sim:1"])
def test_a_function_is_compiled_whatever_is_dynamic(backend, dynamic, where):
    def silu(x, y):
        return torch.nn.functional.silu(x) * y + x.sum()

    torch._dynamo.reset()
    compiled = torch.compile(silu, dynamic=dynamic, backend="eager", fullgraph=True)
    for rows in (3, 5, 7):
        given = torch.randn(rows, 4), torch.randn(rows, 4)
        got = compiled(*(tensor.to(where) for tensor in given))
        assert got.device == torch.device(where)
        torch.testing.assert_close(got.cpu(), silu(*given))


def test_a_function_that_asks_for_the_stream_is_compiled_in_parts(backend):
    def asks(x):
        stream = torch.accelerator.current_stream(x.device)
        stream.synchronize()
        return x * 2, stream.device_id

    torch._dynamo.reset()
    x = torch.ones(3, device="sim:1")
    doubled, index = torch.compile(asks, dynamic=True, backend="eager")(x)
    assert index == 1
    torch.testing.assert_close(doubled.cpu(), torch.full((3,), 2.0))


def test_fake_tensors_and_export(backend):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, 3, device="sim:1")
        assert (fake @ fake.t()).device == torch.device("sim:1")
    program = torch.export.export(net().to("sim:0"), (torch.ones(1, 6, device="sim:0"),))
    assert len(program.graph.nodes) > 3


def test_an_operator_of_our_own_runs_under_the_device_key(backend):
    @torch.library.custom_op("sim_test::twice", mutates_args=(), device_types="sim")
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert twice(torch.ones(2, device="sim:0")).tolist() == [2, 2]
    with pytest.raises(NotImplementedError):
        twice(torch.ones(2))


def test_the_default_device_and_the_module(backend):
    with torch.device("sim:1"):
        assert torch.ones(2).device == torch.device("sim:1")
    assert importlib.import_module("torch.sim") is torch.sim
    assert torch.sim.is_available()
    assert torch.sim.is_initialized()
    torch.sim.init()
    assert "sim:0" in repr(torch.ones(2, device="sim:0"))


def test_convolution(backend):
    x, conv = torch.randn(1, 3, 5), torch.nn.Conv1d(3, 2, 2)
    want = conv(x).detach()
    with torch.no_grad():
        torch.testing.assert_close(conv.to("sim:0")(x.to("sim:0")).cpu(), want)
