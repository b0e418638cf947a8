"""An adapted Llama under torch.compile: one graph, few compilations, no extra kernels."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from plain_llama import PlainLlama
from tiny_llama import BLOCK, batch, twins

from vllm_adapter.engine.integrations.transformers import adapt

pytestmark = pytest.mark.device
HERE = Path(__file__).parent


class Compiled:
    """The base model of an adapted one, compiled; the step is prepared outside of the graph."""

    def __init__(self, model, adapted, backend="aot_eager"):
        torch._dynamo.reset()
        self.graphs = []
        self.adapted, self.base = adapted, model.model
        if backend == "aot_eager":
            backend = self.count
        self.run = torch.compile(self.base, fullgraph=True, backend=backend)

    def count(self, graph, inputs):
        self.graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    @torch.no_grad()
    def __call__(self, ids, mask=None, cache=None, eager=False):
        """(hidden states, cache)."""
        cache, step = self.adapted.prepare(ids, mask, cache)
        run = self.base if eager else self.run
        out = run(input_ids=ids, attention_mask=mask, past_key_values=cache, va_step=step)
        return out.last_hidden_state, cache


@pytest.fixture(autouse=True)
def nothing_traced_is_left():
    """Fake tensors that stayed alive would be counted by tests of leaks."""
    yield
    torch._dynamo.reset()
    gc.collect()


@pytest.fixture
def pair():
    plain, mine = twins()
    return plain, mine, adapt(mine)


def test_one_graph_for_prefill_and_one_for_decode_equal_to_eager(pair):
    plain, mine, adapted = pair
    compiled = Compiled(mine, adapted)
    given = batch(5, BLOCK, BLOCK - 3)
    ids, mask = given["input_ids"], given["attention_mask"]
    hidden, cache = compiled(ids, mask)
    eager, eager_cache = compiled(ids, mask, eager=True)
    assert torch.equal(hidden, eager)
    assert len(compiled.graphs) == 1
    with torch.no_grad():
        want = plain.model(ids, mask).last_hidden_state[mask.bool()]
    torch.testing.assert_close(hidden[mask.bool()], want, rtol=1e-4, atol=1e-4)
    for step in range(6):  # the second row needs a new block at once, the third at step 3
        ids = batch(1, 1, 1, seed=step)["input_ids"]
        mask = torch.cat((mask, torch.ones_like(ids)), 1)
        hidden, cache = compiled(ids, mask, cache)
        eager, eager_cache = compiled(ids, mask, eager_cache, eager=True)
        assert torch.equal(hidden, eager)
        assert len(compiled.graphs) == 2, f"compiled again at decode step {step}"


def test_growth_of_the_cache_compiles_once_more_and_not_again(pair):
    _, mine, adapted = pair
    compiled = Compiled(mine, adapted)
    _, cache = compiled(batch(4, 4)["input_ids"])
    held, counts = [], []
    for step in range(4):
        ids = batch(1, 1, seed=step)["input_ids"]
        _, cache = compiled(ids, None, cache)
        counts.append((adapted.kv.pool.count, len(compiled.graphs)))
        wanted = adapted.kv.pool.free // 15 + 1
        held.append(adapted.prepare(torch.ones(wanted, 15 * BLOCK, dtype=torch.long))[0])
    pools, graphs = zip(*counts, strict=True)
    assert len(set(pools)) == 4
    assert graphs == (2, 3, 3, 3)


NAMED = """
import torch
from tiny_llama import batch, tiny
from vllm_adapter.engine.device import open_device
from vllm_adapter.engine.integrations.transformers import adapt
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.implementation import implementation
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.settings import Settings

@implementation(op="rms_norm", dtypes=["float32"])
def rms_norm(x, weight, eps):
    return generic.rms_norm(x, weight, eps)

@implementation(op="silu_and_mul", dtypes=["float32"], variant="wide")
def silu_and_mul(x):
    return generic.silu_and_mul(x)

opened, model, names = open_device("cpu"), tiny(), []
none = type("None_", (), {"operators": {}})
PROVIDERS.use("acme", none, "cpu", extra=[rms_norm, silu_and_mul])
chosen = {"rms_norm": "acme", "silu_and_mul": "acme", "paged_attention": "torch"}
adapted = adapt(model, opened, settings=Settings(ops=chosen))

def backend(graph, inputs):
    names.extend(str(n.target) for n in graph.graph.nodes if "vllm_adapter" in str(n.target))
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

ids = batch(7)["input_ids"]
cache, step = adapted.prepare(ids)
with torch.no_grad():
    run = torch.compile(model.model, fullgraph=True, backend=backend)
    got = run(input_ids=ids, past_key_values=cache, va_step=step).last_hidden_state
    want = model.model(input_ids=ids).last_hidden_state
assert torch.equal(got, want)
print(*sorted(set(names)))
"""


def test_graphs_name_the_providers_and_the_process_ends_well():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", NAMED],
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "vllm_adapter.paged_attention.core",
        "vllm_adapter.rms_norm.acme",
        "vllm_adapter.silu_and_mul.acme_wide",
    ]


@pytest.mark.compiler
def test_inductor_makes_no_more_kernels_than_of_plain_torch(pair, figures):
    from torch._inductor import metrics

    _, mine, adapted = pair
    prompt, token = batch(BLOCK, BLOCK)["input_ids"], batch(1, 1)["input_ids"]

    def kernels(run):
        """Kernels of a prefill and of a decode step, and what they compute."""
        torch._dynamo.reset()
        counts, results, cache = [], [], None
        for ids in (prompt, token):
            cache, step = adapted.prepare(ids, None, cache)
            metrics.reset()
            with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
                results.append(run(ids, cache, step))
            counts.append(metrics.generated_kernel_count)
        return counts, results

    base = torch.compile(mine.model, fullgraph=True)
    hand = torch.compile(PlainLlama(mine), fullgraph=True)
    ours, got = kernels(
        lambda ids, cache, step: (
            base(input_ids=ids, past_key_values=cache, va_step=step).last_hidden_state
        )
    )
    theirs, want = kernels(lambda ids, cache, step: hand(ids, step))
    figures(f"kernels by inductor (prefill, decode): adapted {ours}, plain torch {theirs}")
    for mine_, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine_, other, rtol=1e-4, atol=1e-4)
    assert all(0 < a <= b for a, b in zip(ours, theirs, strict=True))


def test_without_a_compiler_one_sentence_says_what_was_left_out():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "compiler",
            "-p",
            "no:cacheprovider",
            __file__,
        ],
        env=os.environ | {"CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
    sentence = "The tests marked `compiler` were left out: there is no C++ compiler"
    assert done.stdout.count(sentence) == 1
    assert "skipped" not in done.stdout
