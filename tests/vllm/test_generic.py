"""The generic shape: our platform, worker and runner, without a kernel of vLLM's, on the simulated
device and on the CPU as its stand-in; tokens equal to plain vLLM."""

from __future__ import annotations

import importlib.util

import pytest
import tiny_llama
from plain_vllm import NEW, OPERATORS, PLAIN, drawn, equal, near, saved, with_tokenizer

from vllm_adapter.engine.integrations.vllm.counters import read_counts

pytestmark = pytest.mark.vllm
needs_sim = pytest.mark.skipif(
    importlib.util.find_spec("vllm_adapter_sim") is None,
    reason="adapters/sim is not installed: there is no C compiler",
)
DEVICES = {
    "sim": {"VA_ADAPTERS": "sim"},
    "cpu": {"VA_ADAPTERS": "cpu", "VA_SHAPE": "generic"},
}
EACH = [pytest.param("sim", marks=needs_sim), "cpu"]
BLOCK = {"sim": 24, "cpu": 16}
"""What each descriptor prefers; for the CPU it says nothing, and vLLM's own default is taken."""
SMALL = {"block_size": None, "gpu_memory_utilization": 0.05}
"""No block size is asked for; a small share of the memory, which many of us share here."""
SHARED = drawn(70, seed=2)[0]
BATCHES = [
    drawn(1, 31, 32, 33, 5),
    [SHARED + tail for tail in drawn(3, 40, seed=3)],
    [SHARED + tail for tail in drawn(9, 1, seed=4)],
    drawn(90, 91, 92, 93, seed=5),
]
"""Unequal rows; a long beginning; rows that have it in the cache; more than the cache holds."""
CROWDED = {"max_num_batched_tokens": 48}
BLOCKS = {32: 12, 24: 15, 16: 24}
"""By their size, so many that three rows of 90 begin in the cache, and do not end there."""


def crowded(size):
    return CROWDED | {"num_gpu_blocks_override": BLOCKS[size]}


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return with_tokenizer(saved(tiny_llama.tiny("qwen3"), tmp_path_factory.mktemp("qwen3")))


@pytest.fixture(scope="module")
def plain(run_engine, qwen3):
    ran = run_engine(qwen3, BATCHES, NEW, PLAIN, **crowded(32))
    assert ran.code == 0, ran.log
    return ran.result


def counted(folder, adapter):
    """Process -> operator -> calls by that adapter, of the processes that made any."""
    found = {}
    for counts in read_counts(folder):
        ops = {op: n for (op, who), n in counts.calls.items() if who == adapter}
        found[counts.process] = ops
    return found


@pytest.mark.parametrize("device", EACH)
def test_in_process_tokens_are_those_of_plain_vllm(
    run_engine, qwen3, plain, tmp_path, figures, device
):
    environ = {**DEVICES[device], "VA_COUNTERS": str(tmp_path)}
    size = BLOCK[device]
    got = run_engine(qwen3, BATCHES, NEW, environ, **SMALL, **crowded(size))
    assert got.code == 0, got.log
    figures(equal(plain, got.result))
    result = got.result
    assert (result["platform"], result["device"]) == ("Generic", device)
    assert result["kernels"] == [], "a C kernel of vLLM's was imported"
    assert result["block_size"] == size
    assert [a["cached"] for a in result["answers"][7:9]] == [70 // size * size] * 2
    assert result["preemptions"] > 0
    assert set(counted(tmp_path, device)["MainProcess"]) == set(OPERATORS)


@needs_sim
@pytest.mark.slow
def test_nothing_of_a_decode_step_runs_on_the_host(run_engine, qwen3, plain):
    greedy = {"sampling": {"logprobs": None}}
    got = run_engine(qwen3, BATCHES[:1], NEW, DEVICES["sim"], more=greedy, **SMALL)
    assert got.code == 0, got.log
    assert [a["tokens"] for a in got.result["answers"]] == [
        a["tokens"] for a in plain["answers"][:5]
    ]
    assert got.result["fallbacks"] == {}


@needs_sim
@pytest.mark.slow
def test_the_cache_gets_what_the_device_says_is_free(run_engine, qwen3):
    few, more = (
        run_engine(qwen3, [drawn(5)], 2, DEVICES["sim"], block_size=None, gpu_memory_utilization=u)
        for u in (0.05, 0.1)
    )
    assert few.code == more.code == 0, more.log
    # 5% of 3 GiB more, in blocks of 24 tokens, 2 layers, 2 heads of 32, K and V, four bytes each.
    expected = 0.05 * 3 * 2**30 / (24 * 2 * 2 * 32 * 2 * 4)
    assert more.result["blocks"] - few.result["blocks"] == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("device", EACH)
def test_embeddings_are_those_of_plain_vllm(run_engine, qwen3, tmp_path, figures, device):
    pooling, prompts = {"runner": "pooling"}, [drawn(1, 7, 64, 33)]
    want = run_engine(qwen3, prompts, 1, PLAIN, **pooling)
    got = run_engine(
        qwen3, prompts, 1, {**DEVICES[device], "VA_COUNTERS": str(tmp_path)}, **SMALL, **pooling
    )
    assert got.code == 0, got.log
    figures(near(want.result, got.result, 1e-5))
    assert "paged_attention" in counted(tmp_path, device)["MainProcess"]


@pytest.mark.slow
@pytest.mark.parametrize("device", EACH)
def test_the_worker_of_an_engine_process_runs_our_operators(
    run_engine, qwen3, plain, tmp_path, figures, device
):
    environ = DEVICES[device] | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environ |= {"VA_COUNTERS": str(tmp_path)}
    got = run_engine(qwen3, BATCHES[:1], NEW, environ, **SMALL)
    assert got.code == 0, got.log
    figures(equal({"answers": plain["answers"][:5]}, got.result))
    ran = {process: ops for process, ops in counted(tmp_path, device).items() if ops}
    assert [set(ops) for ops in ran.values()] == [set(OPERATORS)]
    assert "MainProcess" not in ran


@pytest.mark.slow
@pytest.mark.parametrize("device", EACH)
def test_two_ranks_share_a_model_each_on_a_device_of_its_own(
    run_engine, qwen3, plain, tmp_path, figures, device
):
    environ = DEVICES[device] | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environ |= {"VA_COUNTERS": str(tmp_path)}
    got = run_engine(qwen3, BATCHES[:1], NEW, environ, **SMALL, tensor_parallel_size=2)
    assert got.code == 0, got.log
    figures(equal({"answers": plain["answers"][:5]}, got.result))
    ran = {process: ops for process, ops in counted(tmp_path, device).items() if ops}
    assert len(ran) == 2, ran
    assert all(set(ops) == set(OPERATORS) for ops in ran.values())
