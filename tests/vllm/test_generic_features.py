"""What of vLLM the generic shape serves on the simulated device beside plain generation: held
against transformers in float32. A row of docs/vllm.md each; those refused are in tests/null."""

from __future__ import annotations

import json

import pytest
import tiny_llama
import torch
from plain_vllm import NEW, drawn, saved, with_tokenizer
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

pytest.importorskip("vllm_adapter_sim", reason="adapters/sim is built with a C compiler")
pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SIM = {"VA_ADAPTERS": "sim"}
SMALL = {"block_size": None, "gpu_memory_utilization": 0.05}
PROMPTS = drawn(1, 31, 32, 33, 5)
GREEDY = {"sampling": {"logprobs": None}}
RANK, ALPHA = 8, 16
TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")


@torch.no_grad()
def greedy(model, prompt):
    """The tokens that transformers gives."""
    given = torch.tensor([prompt])
    kept = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(given, **kept)[0, len(prompt) :].tolist()


def tokens(ran):
    assert ran.code == 0, ran.log
    return [answer["tokens"] for answer in ran.result["answers"]]


def lora(model, folder, seed):
    """A LoRA with random weights as a folder, and a copy of the model with it merged."""
    generator = torch.Generator().manual_seed(seed)
    tensors, merged = {}, tiny_llama.tiny("llama").eval()
    for name, module in merged.named_modules():
        if name.rpartition(".")[2] not in TARGETS:
            continue
        rows, columns = module.weight.shape
        a = torch.randn(RANK, columns, generator=generator) * 0.1
        b = torch.randn(rows, RANK, generator=generator) * 0.1
        tensors |= {f"base_model.model.{name}.lora_{k}.weight": t for k, t in (("A", a), ("B", b))}
        module.weight.data += b @ a * (ALPHA / RANK)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    config |= {"target_modules": list(TARGETS), "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return merged


def test_rows_with_different_loras_and_none_in_one_batch(run_engine, tmp_path):
    model = tiny_llama.tiny("llama").eval()
    folder = saved(model, tmp_path / "model")
    loras = [tmp_path / "one", tmp_path / "two"]
    models = [model, *(lora(model, path, seed) for seed, path in enumerate(loras, start=1))]
    more = GREEDY | {"loras": [str(path) for path in loras]}
    flags = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK}
    got = run_engine(folder, [PROMPTS], NEW, SIM, more=more, **SMALL, **flags)
    want = [greedy(models[row % 3], prompt) for row, prompt in enumerate(PROMPTS)]
    assert tokens(got) == want
    assert want[1] != greedy(model, PROMPTS[1]), "the LoRA changes nothing"


def test_a_mixture_of_experts_in_torch(run_engine, tmp_path):
    torch.manual_seed(0)
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    common = tiny_llama.tiny("qwen3").config.to_dict()
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
    names += ("num_attention_heads", "num_key_value_heads", "initializer_range")
    config = Qwen3MoeConfig(**{name: common[name] for name in names}, **sizes)
    model = Qwen3MoeForCausalLM(config).eval()
    got = run_engine(saved(model, tmp_path), [PROMPTS], NEW, SIM, more=GREEDY, **SMALL)
    assert tokens(got) == [greedy(model, prompt) for prompt in PROMPTS]
    assert got.result["fallbacks"] == {}


def test_the_adapter_s_compiler_gets_the_model_as_one_graph(run_engine, tmp_path):
    model = tiny_llama.tiny("qwen3").eval()
    environ = SIM | {"COMPILER": "engine.backend"}
    folder = saved(model, tmp_path)
    got = run_engine(folder, [PROMPTS], NEW, environ, more=GREEDY, enforce_eager=False, **SMALL)
    assert tokens(got) == [greedy(model, prompt) for prompt in PROMPTS]
    assert got.log.count("COMPILED ") == 1


def test_a_grammar_s_tokens_alone_are_given(run_engine, tmp_path):
    folder = with_tokenizer(saved(tiny_llama.tiny("qwen3"), tmp_path))
    choice = {"sampling": {"logprobs": None, "choice": ["5", "7 9"]}}
    flags = {"skip_tokenizer_init": False}
    got = run_engine(folder, [[[5, 6, 7]]], 4, SIM, more=choice, **SMALL, **flags)
    assert tokens(got)[0][0] in (5, 7)


def test_speculative_decoding_is_refused_before_weights_are_read(run_engine, tmp_path):
    folder = saved(tiny_llama.tiny("qwen3"), tmp_path)
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    got = run_engine(folder, [PROMPTS], NEW, SIM, speculative_config=ngram, **SMALL)
    assert got.code != 0
    assert "speculative decoding is not served on sim yet" in got.log
    assert "Loading weights took" not in got.log
