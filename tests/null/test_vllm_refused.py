"""What the generic shape refuses, before a weight is read: a row of docs/vllm.md each."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.engine.integrations.vllm.generic import config, refused
from vllm_adapter.engine.integrations.vllm.generic.served import ServedDevice
from vllm_adapter.errors import UnsupportedCase

pytestmark = pytest.mark.null
DOCS = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text("utf-8")


def device(torch_type="acme", **sections):
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "acme", "arch": "a1", "torch_type": torch_type},
        **sections,
    }
    return ServedDevice(None, None, torch_type, "Acme 1", parse_capability(raw, "acme.json"), None)


def asked(model=None, speculative=None, **parallel):
    """A configuration of vLLM's that asks for nothing beyond what is given."""
    plain = {
        "use_mla": False,
        "is_multimodal_model": False,
        "has_inner_state": False,
        "enable_sleep_mode": False,
    }
    return SimpleNamespace(
        speculative_config=speculative,
        model_config=SimpleNamespace(**plain | (model or {})),
        parallel_config=SimpleNamespace(
            **{"pipeline_parallel_size": 1, "decode_context_parallel_size": 1} | parallel
        ),
    )


ROWS = {
    "speculative decoding": asked(speculative=object()),
    "multi-head latent attention (MLA)": asked({"use_mla": True}),
    "a model that takes images, sound or video": asked({"is_multimodal_model": True}),
    "a model with recurrent state (Mamba and its kind)": asked({"has_inner_state": True}),
    "one sequence over several devices (context parallel)": asked(decode_context_parallel_size=2),
    "sleep mode": asked({"enable_sleep_mode": True}),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_not_served_is_refused_with_a_way_out_and_is_in_the_docs(name):
    with pytest.raises(UnsupportedCase, match="is not served on acme yet") as caught:
        refused.refuse(device(), ROWS[name])
    assert caught.value.message.startswith(name) and caught.value.hint
    assert f"| {name} | refused" in DOCS


def test_every_row_of_the_code_is_here():
    assert len(ROWS) == len(refused._ROWS)
    refused.refuse(device(), asked())
    refused.refuse(device(), SimpleNamespace(**{**vars(asked()), "model_config": None}))


def test_pipeline_parallel_needs_a_backend_that_has_the_device():
    two = asked(pipeline_parallel_size=2)
    with pytest.raises(UnsupportedCase, match="/vllm/dist_backend"):
        refused.refuse(device(), two)
    refused.refuse(device(vllm={"dist_backend": "acmeccl"}), two)
    refused.refuse(device("cpu"), two)


UNITS = {"float32": {"units": 1}, "float16": {"units": 1}, "int8": {"units": 1}}


def test_dtypes_are_those_that_the_descriptor_has_units_for():
    some = device(compute_units=UNITS)
    assert some.dtypes == [torch.float16, torch.float32]
    config.check_dtype(some, torch.float16)
    with pytest.raises(
        UnsupportedCase, match="no units for bfloat16; its descriptor has"
    ) as caught:
        config.check_dtype(some, torch.bfloat16)
    assert "--dtype float32" in caught.value.hint
    assert device().dtypes == [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize(
    ("kv", "given", "got"),
    [
        ({}, None, 16),
        ({"block_multiple": 24, "preferred_block": 24}, None, 24),
        ({"block_multiple": 8, "preferred_block": 64}, None, 64),
        ({"block_multiple": 24}, None, 24),
        ({"block_multiple": 24}, 48, 48),
    ],
)
def test_the_block_size_is_the_descriptor_s_unless_it_is_asked_for(kv, given, got):
    cache = SimpleNamespace(
        block_size=given or 16,
        user_specified_block_size=given is not None,
        kv_cache_memory_bytes=1,
    )
    config._set_blocks(device(kv=kv), cache)
    assert cache.block_size == got


def test_a_block_size_that_the_chip_cannot_use_is_refused():
    cache = SimpleNamespace(block_size=32, user_specified_block_size=True)
    chip = device(kv={"block_multiple": 24, "preferred_block": 24})
    with pytest.raises(UnsupportedCase, match="multiples of 24") as caught:
        config._set_blocks(chip, cache)
    assert "use 24" in caught.value.hint


def test_quantised_weights_are_refused():
    with pytest.raises(UnsupportedCase, match="quantised by awq are not served on acme"):
        config.refuse_quantization(device(), "awq")
    assert "| quantised weights | refused" in DOCS


def test_the_cpu_s_cache_is_bounded_as_vllm_s_users_bound_it(monkeypatch):
    cache = SimpleNamespace(
        block_size=16, user_specified_block_size=False, kv_cache_memory_bytes=None
    )
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    config._set_blocks(device("acme"), cache)
    assert cache.kv_cache_memory_bytes is None
    config._set_blocks(device("cpu"), cache)
    assert cache.kv_cache_memory_bytes == 2 << 30
