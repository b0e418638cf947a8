"""Tiny models through core's transformers integration on a C library's device: as on the CPU.

Nothing of a step falls back to the host: the device's policy is `error` while a model runs.
"""

from __future__ import annotations

import copy

import pytest
import torch
from clib_judge import target
from tiny_llama import batch, greedy, tiny
from transformers import BertConfig, BertModel

from vllm_adapter.engine.device import open_record
from vllm_adapter.engine.integrations.transformers.adapt import adapt, unadapt
from vllm_adapter.engine.ops import c_library as library_kernels
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.errors import UnsupportedCase
from vllm_adapter.settings import Fallback, Settings

pytestmark = pytest.mark.sim
STRICT = Settings(fallback=Fallback.ERROR)


@pytest.fixture
def opened(backend, sim_path, monkeypatch, fresh):
    """The simulated accelerator's adapter, opened on the library of the tests."""
    with monkeypatch.context() as only_here:
        only_here.setenv("VA_LIBRARY", str(sim_path))
        device = open_record(target().record, 0, Settings.from_environ())
    backend.policy = Fallback.ERROR
    return device


def there(given):
    return {name: tensor.to("sim:0") for name, tensor in given.items()}


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_decoders_give_the_cpu_s_tokens_and_logits(opened, backend, kind, dtype):
    model = tiny(kind, dtype=dtype)
    mine = copy.deepcopy(model)
    given = batch(11, 3, 30)
    adapt(mine, opened, settings=STRICT)
    adapt(model, "cpu")
    try:
        with torch.no_grad():
            got, want = mine(**there(given)).logits.cpu(), model(**given).logits
            real = given["attention_mask"].bool()
            tolerance = {"atol": 1e-3} if dtype == torch.float32 else {"atol": 0.1}
            torch.testing.assert_close(got[real], want[real], rtol=1e-3, **tolerance)
            if dtype == torch.float32:
                assert greedy(mine, there(given)).cpu().tolist() == greedy(model, given).tolist()
    finally:
        unadapt(mine)
        unadapt(model)
    assert not backend.coverage.counts()


def test_an_encoder_gives_the_cpu_s_hidden_states(opened, backend):
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=128,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=96,
            max_position_embeddings=64,
        ),
        add_pooling_layer=False,
    ).eval()
    mine = copy.deepcopy(model)
    given = batch(11, 3, 30, side="right")
    adapt(mine, opened, settings=STRICT)
    try:
        with torch.no_grad():
            got = mine(**there(given)).last_hidden_state.cpu()
            want = model(**given).last_hidden_state
    finally:
        unadapt(mine)
    real = given["attention_mask"].bool()
    torch.testing.assert_close(got[real], want[real], atol=1e-5, rtol=1e-4)
    assert not backend.coverage.counts()


REFUSALS = {
    "a function that is NULL": (
        lambda library, patch: patch.setattr(
            library,
            "functions",
            {name: f for name, f in library.functions.items() if name != "rms_norm"},
        ),
        {"dtype": "float32", "hidden": 66},  # a case that no other test has bound
        r"leaves the function rms_norm NULL \(/operators/rms_norm/run",
    ),
    "a dtype that is not offered": (
        lambda library, patch: None,
        {"dtype": "bfloat16", "hidden": 64},
        "/operators/rms_norm/dtypes",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_the_library_lacks_is_refused_when_a_layer_is_built(opened, name, monkeypatch):
    change, facts, words = REFUSALS[name]
    change(library_kernels.served("sim").library, monkeypatch)
    with pytest.raises(UnsupportedCase, match=words):
        bind(OpCase.of("rms_norm", "sim:0", facts), STRICT)


def test_bound_operators_are_the_library_s(opened):
    case = OpCase.of("rms_norm", "sim:0", {"dtype": "float32", "hidden": 64})
    binding = bind(case, STRICT)
    assert binding.providers == ("sim",)
    x, weight = torch.randn(3, 64), torch.randn(64)
    got = binding.run(x.to("sim:0"), weight.to("sim:0"), 1e-6).cpu()
    want = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    torch.testing.assert_close(got, want)
