"""Models of transformers on a C library's device: the CPU's tokens, and nothing on the host."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from tiny_llama import batch, greedy, tiny, twins

from vllm_adapter.c_abi import abi
from vllm_adapter.settings import Fallback

pytestmark = pytest.mark.sim
LENGTHS = (5, 16, 17, 1)
BLOCK = 24


def there(given, device="sim:0"):
    return {name: tensor.to(device) for name, tensor in given.items()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_logits_and_greedy_tokens_are_the_cpus_and_no_operator_falls_back(
    backend, kind, attention
):
    plain, mine = twins(kind, attn_implementation=attention)
    mine.to("sim:1")
    given = batch(*LENGTHS)
    with torch.no_grad():
        want = plain(**given).logits
    backend.policy = Fallback.ERROR
    with torch.no_grad():
        logits = mine(**there(given, "sim:1")).logits
    torch.testing.assert_close(logits.cpu(), want, rtol=1e-4, atol=5e-4)
    tokens = greedy(mine, there(given, "sim:1"), 16)
    assert torch.equal(tokens.cpu(), greedy(plain, given, 16))
    assert not backend.coverage.counts()


def test_half_precision_stays_on_the_device(backend):
    plain, mine = twins("llama", dtype=torch.float16)
    mine.to("sim:0")
    given = batch(*LENGTHS)
    backend.policy = Fallback.ERROR
    with torch.no_grad():
        torch.testing.assert_close(
            mine(**there(given)).logits.cpu(), plain(**given).logits, rtol=2e-2, atol=6e-2
        )
    greedy(mine, there(given), 4)
    assert not backend.coverage.counts()


def test_an_end_of_sentence_stops_each_row(backend):
    plain, mine = twins("qwen3")
    mine.to("sim:0")
    given = batch(*LENGTHS)
    want = greedy(plain, given, 12)
    end = int(want[0, -6])
    options = {"eos_token_id": [end, int(want[1, -4])]}
    backend.policy = Fallback.ERROR
    got = greedy(mine, there(given), 12, **options)
    assert torch.equal(got.cpu(), greedy(plain, given, 12, **options))


def test_sampling_draws_from_the_cpus_generator(backend):
    plain, mine = twins("llama")
    mine.to("sim:0")
    given = batch(4, 7)
    options = {"max_new_tokens": 6, "do_sample": True, "top_k": 5, "top_p": 0.9}
    options |= {"eos_token_id": None, "pad_token_id": 0}
    tokens = []
    for model, inputs in ((plain, given), (mine, there(given))):
        torch.manual_seed(11)
        tokens.append(model.generate(**inputs, **options).cpu())
    assert torch.equal(*tokens)


@pytest.fixture
def opened(runtime, sim, monkeypatch, fresh):
    """The device as `open_device` gives it, with every operator run by the library."""
    from vllm_adapter.contract.capability import parse_capability
    from vllm_adapter.engine.device import OpenDevice
    from vllm_adapter.engine.ops.c_library import serve
    from vllm_adapter.engine.ops.providers import PROVIDERS

    monkeypatch.setenv("VA_FALLBACK", "error")
    entry = {"support": "full", "dtypes": ["float32", "float16"], "form": "kernel"}
    source = {"kind": "assumed", "reference": "a test"}
    capability = parse_capability(
        {
            "schema": "vllm-adapter/capability/1.0",
            "identity": {"vendor": "Acme", "arch": "sim48", "torch_type": "sim"},
            "kv": {"block_multiple": BLOCK, "preferred_block": BLOCK, "source": source},
            "operators": {op: entry | {"run": f"library:{op}"} for op in abi.OPERATORS},
        },
        "simtest",
    )
    serve("simtest", sim, runtime.streams)
    PROVIDERS.use("simtest", capability, "sim:0")
    record = SimpleNamespace(name="simtest")
    device = SimpleNamespace(torch="sim:0", index=0)
    return OpenDevice(
        SimpleNamespace(record=record), device, capability, runtime, torch.device("sim:0")
    )


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_an_adapted_models_tokens_are_the_cpus_and_no_operator_falls_back(backend, opened, kind):
    from vllm_adapter.engine.integrations.transformers import adapt

    plain, mine = twins(kind)
    adapted = adapt(mine, opened, max_kv_blocks=64)
    given = batch(*LENGTHS)
    backend.policy = Fallback.ERROR
    backend.coverage.reset()
    assert torch.equal(greedy(mine, there(given), 24).cpu(), greedy(plain, given, 24))
    assert not backend.coverage.counts()
    assert {name for names in adapted.providers.values() for name in names} == {"simtest"}


def test_from_pretrained_places_a_model(backend, tmp_path):
    from transformers import AutoModelForCausalLM

    plain = tiny("qwen3")
    plain.save_pretrained(tmp_path)
    mine = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="sim:0")
    assert {p.device for p in mine.parameters()} == {torch.device("sim:0")}
    given = batch(6, 3)
    assert torch.equal(greedy(mine, there(given)).cpu(), greedy(plain, given))


def test_a_compiled_model_is_one_graph_and_gives_the_same(backend):
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    plain = tiny("llama", use_cache=False)
    mine = copy.deepcopy(plain).to("sim:0")
    ids = batch(8, 8)["input_ids"]
    compiled = torch.compile(mine, backend=keep, fullgraph=True)
    with torch.no_grad():
        got = compiled(ids.to("sim:0"), use_cache=False).logits
        torch.testing.assert_close(got.cpu(), plain(ids).logits, rtol=1e-4, atol=5e-4)
    assert len(graphs) == 1
    torch._dynamo.reset()
