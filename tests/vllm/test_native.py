"""vLLM's native shape over the CPU adapter: tokens equal to plain vLLM, by our operators."""

from __future__ import annotations

import json

import pytest
import smollm2
import tiny_llama
import torch
from plain_vllm import (
    LAYERS,
    NEW,
    OPERATORS,
    PLAIN,
    calls_of,
    changed,
    drawn,
    equal,
    near,
    saved,
    with_tokenizer,
)
from transformers import BertConfig, BertModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def smollm2_folder(tmp_path_factory):
    """SmolLM2 as a folder that vLLM loads, and its tokenizer."""
    loaded, tokenizer = smollm2.load()
    # What comes out of a .gguf refuses to be saved; a new model of its weights does not.
    copy = type(loaded)(loaded.config.__class__(**plain_config(loaded.config)))
    copy.load_state_dict(loaded.state_dict())
    return saved(copy, tmp_path_factory.mktemp("smollm2")), tokenizer


def plain_config(config):
    return {k: v for k, v in config.to_dict().items() if k != "quantization_config"}


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return saved(tiny_llama.tiny("qwen3"), tmp_path_factory.mktemp("qwen3"))


def test_smollm2_gives_the_tokens_of_plain_vllm(run_engine, smollm2_folder, tmp_path, figures):
    folder, tokenizer = smollm2_folder
    prompts = [tokenizer(text)["input_ids"] for text in smollm2.prompts()[:5]]
    want = run_engine(folder, [prompts], NEW, PLAIN)
    got = run_engine(folder, [prompts], NEW, {"VA_COUNTERS": str(tmp_path)})
    assert got.code == 0, got.log
    figures(equal(want.result, got.result))
    assert want.result["replaced"] == []
    process, calls = calls_of(tmp_path)
    assert process == "MainProcess"
    # One forward pass of 30 layers: four linears and two fused norms a layer, one norm before all.
    steps = calls["rms_norm"]
    assert NEW <= steps <= NEW + 2
    a_layer = dict.fromkeys(LAYERS, 1) | {"linear": 4, "fused_add_rms_norm": 2}
    whole = {op: 30 * n * steps for op, n in a_layer.items()}
    whole["linear"] += steps  # the head, which is the table of words
    assert calls == {"rms_norm": steps, "embedding": steps} | whole


def test_tiny_llama_in_unequal_batches(run_engine, tmp_path_factory, tmp_path, figures):
    folder = saved(tiny_llama.tiny("llama"), tmp_path_factory.mktemp("llama"))
    prompts = [drawn(1, 31, 32, 33, 100, 5), drawn(64, 2, seed=1)]
    want = run_engine(folder, prompts, NEW, PLAIN)
    got = run_engine(folder, prompts, NEW, {"VA_COUNTERS": str(tmp_path)})
    assert got.code == 0, got.log
    figures(equal(want.result, got.result))
    assert set(calls_of(tmp_path)[1]) == set(OPERATORS)


def test_chunked_prefill_prefix_caching_and_preemption(run_engine, qwen3, tmp_path, figures):
    shared = drawn(70, seed=2)[0]
    first = [shared + tail for tail in drawn(3, 40, seed=3)]
    again = [shared + tail for tail in drawn(9, 1, seed=4)]
    crowd = drawn(90, 91, 92, 93, seed=5)
    # Eleven blocks of 32 do not hold four times 90 + 24 tokens.
    small = {"max_num_batched_tokens": 48, "num_gpu_blocks_override": 12}
    batches = [first, again, crowd]
    want = run_engine(qwen3, batches, NEW, PLAIN, **small)
    got = run_engine(qwen3, batches, NEW, {"VA_COUNTERS": str(tmp_path)}, **small)
    assert got.code == 0, got.log
    result = got.result
    figures(equal(want.result, result))
    assert [a["cached"] for a in result["answers"][2:4]] == [64, 64]
    assert result["preemptions"] > 0
    steps = calls_of(tmp_path)[1]["paged_attention"] / 2  # layers
    assert steps > len(batches) * NEW + 4  # prompts of 90 tokens need more than one pass each


def test_our_operators_run_in_the_worker_process(run_engine, qwen3, tmp_path):
    environ = {"VA_COUNTERS": str(tmp_path), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    got = run_engine(qwen3, [drawn(5, 6)], 4, environ)
    process, calls = calls_of(tmp_path)
    assert "Worker" in process, got.log
    assert set(calls) == set(OPERATORS)


def test_an_adapter_without_operators_leaves_vllm_as_it_was(run_engine, qwen3, tmp_path):
    file = changed(tmp_path, lambda operators: {})
    want = run_engine(qwen3, [drawn(5)], 4, PLAIN).result
    got = run_engine(qwen3, [drawn(5)], 4, {"VA_CAPABILITY": str(file)})
    assert got.code == 0, got.log
    assert got.result["platform"] == "NativeCpu"
    same = ("replaced", "backends", "ir", "answers")
    assert {key: got.result[key] for key in same} == {key: want[key] for key in same}


def test_what_does_not_bind_stays_vllms_own_with_its_reason_said_once(
    run_engine, qwen3, tmp_path, figures
):
    def without(operators):
        narrow = {**operators["silu_and_mul"], "limits": {"hidden": {"multiple_of": 64}}}
        kept = {op: entry for op, entry in operators.items() if op != "paged_attention"}
        return {**kept, "silu_and_mul": narrow}

    counts = tmp_path / "counts"
    environ = {"VA_CAPABILITY": str(changed(tmp_path, without)), "VA_COUNTERS": str(counts)}
    prompts = [drawn(5, 40)]
    want = run_engine(qwen3, prompts, NEW, PLAIN)
    got = run_engine(qwen3, prompts, NEW, environ)
    assert got.code == 0, got.log
    figures(equal(want.result, got.result))
    assert got.result["backends"] == ["CPU_ATTN"]
    assert got.log.count("vLLM keeps its own attention: ") == 1
    assert got.log.count("vLLM keeps its own silu_and_mul: ") == 1
    gone = {"paged_attention", "reshape_and_cache", "silu_and_mul"}
    assert set(calls_of(counts)[1]) == set(OPERATORS) - gone


@pytest.mark.parametrize("op", ["paged_attention", "linear", "silu_and_mul", "rms_norm"])
def test_under_error_a_refusal_comes_before_weights_are_loaded(run_engine, qwen3, tmp_path, op):
    file = changed(tmp_path, lambda operators: {k: v for k, v in operators.items() if k != op})
    got = run_engine(qwen3, [drawn(5)], 4, {"VA_CAPABILITY": str(file), "VA_FALLBACK": "error"})
    assert got.code != 0
    assert "[VA3001]" in got.log
    assert f"nothing runs {op}(" in got.log
    assert "Loading weights took" not in got.log


KEEPS = "vLLM keeps its own mixture of experts: "
STDERR = {"class": "logging.StreamHandler"}


def test_experts_are_left_to_vllm_or_refused(run_engine, tmp_path_factory, tmp_path, figures):
    torch.manual_seed(0)
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    common = tiny_llama.tiny("qwen3").config.to_dict()
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
    names += ("num_attention_heads", "num_key_value_heads", "initializer_range")
    config = Qwen3MoeConfig(**{name: common[name] for name in names}, **sizes)
    folder = saved(Qwen3MoeForCausalLM(config), tmp_path_factory.mktemp("moe"))
    want = run_engine(folder, [drawn(5, 40)], NEW, PLAIN)
    got = run_engine(folder, [drawn(5, 40)], NEW, {"VA_COUNTERS": str(tmp_path)})
    assert got.code == 0, got.log
    figures(equal(want.result, got.result))
    assert got.log.count(KEEPS) == 1
    logs = {"version": 1, "disable_existing_loggers": False, "handlers": {"all": STDERR}}
    file = tmp_path / "logs.json"
    file.write_text(json.dumps(logs | {"root": {"level": "INFO", "handlers": ["all"]}}))
    environ = {"VA_FALLBACK": "allow", "VLLM_LOGGING_CONFIG_PATH": str(file)}
    allowed = run_engine(folder, [drawn(5, 40)], NEW, environ)
    assert allowed.code == 0, allowed.log
    equal(want.result, allowed.result)
    assert allowed.log.count(KEEPS) == 1
    refused = run_engine(folder, [drawn(5)], NEW, {"VA_FALLBACK": "error"})
    assert refused.code != 0
    assert "is a mixture of experts" in refused.log
    assert "Loading weights took" not in refused.log


def test_an_adapters_compiler_gets_the_model_as_one_graph(run_engine, qwen3, tmp_path, figures):
    prompts = [drawn(5, 40)]
    want = run_engine(qwen3, prompts, NEW, PLAIN)
    environ = {"COMPILER": "engine.backend", "VA_COUNTERS": str(tmp_path)}
    got = run_engine(qwen3, prompts, NEW, environ, enforce_eager=False)
    assert got.code == 0, got.log
    figures(equal(want.result, got.result))
    assert got.log.count("COMPILED ") == 1
    # What the graph holds is not counted; attention stays a node of vLLM's, and the head is after.
    assert set(calls_of(tmp_path)[1]) == {"paged_attention", "reshape_and_cache", "linear"}


def test_an_adapters_compiler_gets_the_pieces_of_a_model(run_engine, qwen3, tmp_path, figures):
    prompts = [drawn(5, 40)]
    want = run_engine(qwen3, prompts, NEW, PLAIN)
    counts = tmp_path / "counts"
    environ = {"COMPILER": "engine.backend", "PIECES": "1", "VA_COUNTERS": str(counts)}
    environ |= {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    # Fusions of norm and quantisation, which vLLM's CPU wheel lacks.
    fusions = {"fuse_norm_quant": False, "fuse_act_quant": False}
    pieces = {"mode": 3, "pass_config": fusions, "compile_sizes": [], "cudagraph_mode": "NONE"}
    got = run_engine(qwen3, prompts, NEW, environ, enforce_eager=False, compilation_config=pieces)
    assert got.code == 0, got.log
    figures(equal(want.result, got.result))
    # Before the first attention, between the two, after the last.
    assert got.log.count("COMPILED ") == 3
    assert set(calls_of(counts)[1]) == {"paged_attention", "reshape_and_cache", "linear"}


def test_an_encoder_gives_the_embeddings_of_plain_vllm(
    run_engine, tmp_path_factory, tmp_path, figures
):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=128,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    folder = saved(BertModel(config), tmp_path_factory.mktemp("bert"))
    with_tokenizer(folder)
    pooling = {"runner": "pooling"}
    prompts = [drawn(1, 7, 64, 33)]
    want = run_engine(folder, prompts, 1, PLAIN, **pooling)
    got = run_engine(folder, prompts, 1, {"VA_COUNTERS": str(tmp_path)}, **pooling)
    assert got.code == 0, got.log
    figures(near(want.result, got.result, 1e-5))
    calls = calls_of(tmp_path)[1]
    assert got.result["backends"] == ["CUSTOM"]
    # A layer: qkv, the result's projection, two of the MLP.
    assert calls["linear"] == 4 * calls["attention"] > 0
