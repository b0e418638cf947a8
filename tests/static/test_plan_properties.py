"""Properties of every plan, whatever the model, the chip and the demand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_configs import CONFIGS
from planning_boxes import GIB, box, plan

from vllm_adapter.planning.box import PlanDevice
from vllm_adapter.planning.operator_flags import own_values
from vllm_adapter.planning.sizing import size

pytestmark = pytest.mark.static

DECODERS = sorted(set(CONFIGS) - {"bert-base"})
MODELS = st.sampled_from(DECODERS)
MEMORY = st.integers(1 * GIB, 2000 * GIB)
CONTEXT = st.integers(1, 8192)
FEW = settings(max_examples=60)
FIGURES = {
    "memory__capacity_bytes": "memory is not known",
    "memory__bandwidth_gb_s": "memory bandwidth is not known",
    "memory__runtime_reserve_bytes": "the runtime's share is not known",
    "execution__graph_capture": "nothing says whether launches can be captured",
    "kv__preferred_block": "no block is said to be best",
}


@FEW
@given(MODELS, MEMORY, MEMORY, st.sampled_from(["latency", "throughput"]))
def test_more_memory_never_plans_fewer_blocks(model, one, other, objective):
    """With the same groups: two replicas of one device each have fewer than one of two."""
    less, more = sorted((one, other))
    found = [
        plan(model, box(2, memory__capacity_bytes=n), 512, None, objective, tensor_parallel="1")
        for n in (less, more)
    ]
    assert found[0].sizing.blocks <= found[1].sizing.blocks
    assert found[0].fits <= found[1].fits


@FEW
@given(MODELS, CONTEXT, CONTEXT, st.integers(1, 300))
def test_a_longer_context_never_needs_less(model, one, other, concurrency):
    short, long = sorted((one, other))
    found = [plan(model, context=n, concurrency=concurrency) for n in (short, long)]
    assert found[0].sizing.need <= found[1].sizing.need
    assert found[0].sizing.memory.activations <= found[1].sizing.memory.activations
    assert found[0].fits >= found[1].fits


@FEW
@given(MODELS, st.integers(8, 600), CONTEXT, st.integers(1, 500), st.integers(1, 8))
def test_it_fits_exactly_when_the_arithmetic_says_so(model, gib, context, concurrency, count):
    """The sum is made again here, from the plan's own figures."""
    found = plan(model, box(count, memory__capacity_bytes=gib * GIB), context, concurrency)
    memory, asked = found.sizing.memory, found.asked
    left = int(gib * GIB * asked.share) - memory.weights - memory.activations - memory.reserve
    each = found.demand.kv_bytes("bfloat16", context, asked.groups.tensor, asked.block)
    stage = -(-each * -(-found.demand.shape.layers // asked.groups.pipeline)
              // found.demand.shape.layers)  # fmt: skip
    sequences = -(-concurrency // asked.groups.data)
    assert found.fits == (left >= 0 and sequences * stage <= left)
    assert bool(found.remedies) != found.fits


@FEW
@given(MODELS, st.integers(4, 200), CONTEXT, st.integers(1, 300))
def test_what_is_said_to_make_it_fit_does_so(model, gib, context, concurrency):
    found = plan(model, box(1, memory__capacity_bytes=gib * GIB), context, concurrency)
    if found.fits:
        return
    names = [one.what for one in found.remedies]
    assert names == ["context", "concurrency", "kv_dtype", "weight_dtype", "devices"]
    by_name = {one.what: one for one in found.remedies}
    if by_name["context"].enough:
        value = by_name["context"].value
        assert size(replace(found.asked, context=value)).fits
        assert not size(replace(found.asked, context=value + 1)).fits
    if by_name["concurrency"].enough:
        value = by_name["concurrency"].value
        assert size(replace(found.asked, concurrency=value, sequences=value)).fits
    for one in found.remedies:
        assert one.cost


@FEW
@given(
    MODELS,
    st.integers(1, 8),
    st.sampled_from([1, 8, 24, 48, 128]),
    st.sampled_from(["latency", "throughput"]),
)
def test_no_plan_exceeds_a_limit(model, count, multiple, objective):
    chip = box(count, kv__block_multiple=multiple, kv__preferred_block=None)
    found = plan(model, chip, 2048, None, objective)
    asked, memory = found.asked, found.sizing.memory
    assert asked.block % multiple == 0
    assert asked.groups.devices <= count and asked.groups.tensor <= chip.domain_size
    assert asked.chunk >= asked.sequences
    if found.fits:
        used = memory.weights + memory.activations + memory.reserve + max(0, found.sizing.room)
        assert used <= memory.budget <= memory.capacity
        assert found.sizing.blocks * found.sizing.block_bytes <= found.sizing.room


@FEW
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.sampled_from(["Llama-3-8B", "Llama-3-70B", "SmolLM2-135M", "DeepSeek-V3"]),
    st.sampled_from(["latency", "throughput"]),
)
def test_a_tensor_parallel_group_stays_in_its_link_domain(domains, model, objective):
    """Whatever the order in which the devices of several domains are numbered."""
    devices = tuple(
        PlanDevice(f"acme:{i}", "Acme 1", domain, domain, f"{8 * i}-{8 * i + 7}", str(i))
        for i, domain in enumerate(domains)
    )
    numbers = tuple(map(str, range(len(domains))))
    chip = replace(
        box(len(domains)),
        devices=devices,
        numa_bound=True,
        visible=(("ACME_VISIBLE", "{numbers}"),),
        all_numbers=numbers,
    )
    found = plan(model, chip, 2048, None, objective)
    ranks, size = found.line("ranks").value, found.groups.tensor
    assert len({one["device"] for one in ranks}) == len(ranks) == found.groups.devices
    for at in range(0, len(ranks), size):
        assert len({one["domain"] for one in ranks[at : at + size]}) == 1
    # what the process sees is what the ranks are, in their order; so are the bindings
    order = tuple(one["device"].rpartition(":")[2] for one in ranks)
    variable = found.environment().get("ACME_VISIBLE")
    assert order == (tuple(variable.split(",")) if variable else numbers[: len(order)])
    flags = found.line("numa").flags
    assert flags[2 : 2 + len(ranks)] == tuple(str(one["node"]) for one in ranks)
    assert flags[3 + len(ranks) :] == tuple(one["cpus"] for one in ranks)


@pytest.mark.parametrize(("figure", "says"), FIGURES.items())
def test_an_unknown_figure_is_an_assumption_that_is_said(figure, says):
    found = plan("Qwen3-0.6B", box(**{figure: None}), 2048)
    said = [sentence for line in found.lines for sentence in line.assumptions]
    assert any(sentence.startswith(says) and "assumed" in sentence for sentence in said)
    known = plan("Qwen3-0.6B", box(), 2048)
    assert not any(line.assumptions for line in known.lines)


def test_nothing_but_an_empty_descriptor_still_gives_a_plan():
    chip = box(**dict.fromkeys((*FIGURES, "kv__block_multiple"), None))
    assert plan("Qwen3-0.6B", chip, 2048).fits


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_words_are_read_or_refused(words):
    from vllm_adapter.errors import InputError

    try:
        found = own_values(words)
    except InputError:
        return
    assert all(isinstance(value, str) and value for value in found.values())
