"""L5's arithmetic and its judges, on figures that are given."""

from __future__ import annotations

import math
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.device_side.bins import bin_of
from vllm_adapter_conformance.performance import steady
from vllm_adapter_conformance.performance.baseline import (
    FELL,
    KEPT,
    NOT_RESOLVED,
    ROSE,
    RunConditions,
    compare,
)
from vllm_adapter_conformance.performance.figures import Figure, figure, outer_rank
from vllm_adapter_conformance.performance.roofline import (
    CEILING,
    Roofline,
    insane,
    shares,
    spell_rate,
    spell_seconds,
)
from vllm_adapter_conformance.performance.shapes import Shape, shrunk
from vllm_adapter_conformance.performance.work import Work, visible, work_of
from vllm_adapter_conformance.rules.l5_faults import INJECTED, judge_rounds, judge_too_much

pytestmark = pytest.mark.static

ROWS = {"tokens": 3, "hidden": 8, "item": 2}
HEADS = {"tokens": 3, "kv_heads": 2, "gqa_ratio": 4, "head_size": 16, "block_size": 8, "item": 2}
BATCH = {
    "sequences": 2,
    "query": 3,
    "context": 10,
    "kv_heads": 2,
    "gqa_ratio": 4,
    "head_size": 16,
    "block_size": 8,
    "item": 4,
}


@pytest.mark.parametrize(
    ("op", "dims", "bytes", "flops"),
    [
        # x 3x5, weight 7x5, result 3x7, of 4 bytes; two operations a product
        ("linear", {"tokens": 3, "in_features": 5, "out_features": 7, "item": 4}, 284, 210),
        # x and result of 24 elements, a weight of 8
        ("rms_norm", ROWS, 112, 96),
        # x, residual, result and sum
        ("fused_add_rms_norm", ROWS, 208, 120),
        ("layer_norm", ROWS, 128, 168),
        # two rows in, one out
        ("silu_and_mul", ROWS, 144, 120),
        ("gelu", ROWS, 96, 120),
        ("gelu_and_mul", ROWS, 144, 144),
        # an id, a row read, a row written
        ("embedding", ROWS, 3 * (8 + 32), 0),
        # positions; rows of 16 of the table; 3 x 10 heads of 16 read and written
        ("rotary_embedding", HEADS, 24 + 96 + 2 * 960, 1440),
        # slots; 2 x 96 elements read and written
        ("reshape_and_cache", HEADS, 24 + 2 * 384, 0),
        # queries and results of 768 elements each, 2 x 640 cached, 2 x 2 table entries; of three
        # queries behind seven keys the last sees ten: 27 pairs, two sequences, eight heads
        ("paged_attention", BATCH, (1536 + 1280) * 4 + 16, 4 * 2 * 27 * 8 * 16),
        # three tokens see three each: nine pairs
        ("attention", BATCH | {"causal": 0}, 2 * 2 * 3 * 10 * 16 * 4, 4 * 2 * 9 * 8 * 16),
        ("attention", BATCH | {"causal": 1}, 2 * 2 * 3 * 10 * 16 * 4, 4 * 2 * 6 * 8 * 16),
    ],
)
def test_work_of_a_call(op, dims, bytes, flops):
    assert work_of(op, dims) == Work(bytes, flops)


def test_every_operator_has_its_arithmetic():
    for op in OPERATORS:
        assert work_of(op, BATCH | ROWS | {"in_features": 1, "out_features": 1, "causal": 0}).bytes


@given(st.integers(0, 60), st.integers(0, 60))
def test_visible_pairs_are_those_of_a_mask(query, before):
    context = before + query
    pairs = sum(key <= before + row for row in range(query) for key in range(context))
    assert visible(query, context) == pairs


SAMPLES = st.lists(st.floats(1e-9, 1e15), min_size=1, max_size=60)


@given(SAMPLES)
def test_a_figure_encloses_its_median(samples):
    found = figure(samples, "s")
    assert found.least <= found.low <= found.median <= found.high <= found.most
    assert (found.least, found.most, found.samples) == (min(samples), max(samples), len(samples))
    assert Figure.from_json(found.to_json()) == found


@given(SAMPLES, st.randoms())
def test_a_figure_does_not_depend_on_the_order(samples, chance):
    mixed = list(samples)
    chance.shuffle(mixed)
    assert figure(mixed, "s") == figure(samples, "s")


@given(st.integers(6, 400))
def test_the_interval_has_its_confidence_and_no_smaller_one_has(count):
    def outside(rank):
        return 2 * sum(math.comb(count, k) for k in range(rank + 1)) / 2**count

    rank = outer_rank(count)
    assert outside(rank) <= 0.05 or rank == 0
    assert outside(rank + 1) > 0.05 or 2 * (rank + 1) >= count


@pytest.mark.parametrize("samples", [[], [math.nan], [1.0, math.inf]])
def test_no_figure_of_nothing(samples):
    with pytest.raises(ValueError, match="no figure"):
        figure(samples, "s")


ROOF = Roofline(memory=1e10, compute=1e11, launch=2e-6, best_memory=5e10, best_compute=1.2e11)
STREAMS = Work(bytes=10**7, flops=10**6)
PRODUCT = Work(bytes=10**6, flops=10**10)


def test_the_roofline_of_a_call():
    assert (ROOF.bound(STREAMS), ROOF.seconds(STREAMS)) == ("memory", 1e-3)
    assert (ROOF.bound(PRODUCT), ROOF.seconds(PRODUCT)) == ("compute", 0.1)


def test_a_share_is_by_the_rate_that_was_measured_beside_it():
    # The machine slows down by half between the samples, and the call with it.
    share = shares(ROOF, STREAMS, [2e-3, 4e-3], [1e10, 5e9])
    assert (share.least, share.most, share.unit) == (0.5, 0.5, "share")
    assert shares(ROOF, PRODUCT, [0.2], [1e11]).median == 0.5


@pytest.mark.parametrize(
    ("work", "seconds", "words"),
    [
        (STREAMS, 1e-3, None),
        (STREAMS, 2.1e-4, None),  # five times the memory's rate, in a cache
        (STREAMS, 1.5e-4, "work is left out"),
        (PRODUCT, 0.08, None),
        (PRODUCT, 0.07, "work is left out"),
        (STREAMS, 0.9, None),
        (STREAMS, 1.1, "goes over the host"),
        (Work(4096, 0), 3e-4, None),
        (Work(4096, 0), 3e-3, "a sleep"),
    ],
)
def test_what_no_device_can_have_done(work, seconds, words):
    found = insane(ROOF, work, figure([seconds] * 6, "s"), share_of(work, [seconds] * 6))
    assert found is None if words is None else words in found


def share_of(work, seconds, slower=1.0):
    """The share where the device itself has become so many times as slow."""
    return figure([slower * ROOF.seconds(work) / second for second in seconds], "share")


def test_a_machine_that_has_become_busy_is_no_fault_of_the_kernel():
    taken = [1.1] * 6
    assert insane(ROOF, STREAMS, figure(taken, "s"), share_of(STREAMS, taken, 5)) is None


@given(st.floats(1e-7, 1e3), st.floats(1e-7, 1e3))
def test_only_a_resolved_time_is_insane(one, other):
    taken = figure([one, other], "s")
    if insane(ROOF, STREAMS, taken, share_of(STREAMS, [one, other])) is None:
        return
    lowest, most = ROOF.lowest_seconds(STREAMS), 300 * ROOF.launch + 1000 * ROOF.seconds(STREAMS)
    assert max(one, other) * CEILING < lowest or min(one, other) > most


FIGURES = st.lists(st.floats(1e-4, 10), min_size=1, max_size=12).map(lambda s: figure(s, "share"))


@given(FIGURES, FIGURES)
def test_a_fall_and_a_rise_are_each_others_mirror(one, other):
    mirror = {FELL: ROSE, ROSE: FELL, KEPT: KEPT, NOT_RESOLVED: NOT_RESOLVED}
    found = compare(one, other)
    # The ends are not rounded alike on both sides.
    if not any(math.isclose(a, b) for a, b in _ends(one, other)):
        assert compare(other, one) == mirror[found]


def _ends(one, other):
    for a in (one.low, one.high):
        for b in (other.low, other.high):
            yield from ((a, b * 0.9), (b, a * 0.9))


@given(FIGURES, FIGURES)
def test_intervals_that_overlap_are_no_fall(one, other):
    if one.high >= other.low and other.high >= one.low:
        assert compare(one, other) not in (FELL, ROSE)


def test_falls():
    then = figure([0.50, 0.51, 0.49, 0.50, 0.50, 0.50], "share")

    def now(*samples):
        return compare(figure(samples, "share"), then)

    assert now(0.40, 0.42, 0.41, 0.40, 0.41, 0.40) == FELL
    assert now(0.47, 0.48, 0.47, 0.47, 0.48, 0.48) == KEPT
    assert now(0.60, 0.61, 0.60, 0.60, 0.62, 0.60) == ROSE
    assert now(0.30, 0.55, 0.40, 0.44, 0.50, 0.41) == NOT_RESOLVED


def test_other_conditions_are_named():
    mine = RunConditions("a board", "2.11", {"driver": "1"}, 4)
    assert mine.difference(mine.to_json()) is None
    assert mine.difference(mine.to_json() | {"torch": "2.12"}) == "torch was 2.12 and is 2.11"
    assert "drivers was" in mine.difference(mine.to_json() | {"drivers": {"driver": "2"}})


def test_shapes_are_halved_until_one_token_is_left():
    shape = Shape("paged_attention", "prefill", "large", {}, BATCH | {"query": 10})
    seen = []
    while shape is not None:
        seen.append((shape.dims["sequences"], shape.dims["context"], shape.dims["query"]))
        shape = shrunk(shape)
    assert seen == [(2, 10, 10), (1, 10, 10), (1, 5, 5), (1, 2, 2), (1, 1, 1)]
    decode = Shape("paged_attention", "decode", "large", {}, BATCH | {"query": 1, "sequences": 1})
    assert shrunk(decode).dims["query"] == 1


def test_words():
    fast = figure([4.1e12], "bytes/s")
    assert spell_rate(fast) == "4.1 (4.1 to 4.1) TB/s"
    assert (spell_seconds(0.00314), spell_seconds(2e-7)) == ("3.14 ms", "0.2 us")


@given(st.lists(st.floats(2e-6, 600), min_size=1, max_size=200))
def test_quantiles_of_bins_are_within_a_hundredth(values):
    latencies = steady.Latencies()
    latencies.add((bin_of(value), 1) for value in values)
    ordered = sorted(values)
    for part in (0.5, 0.9, 0.99):
        want = ordered[math.ceil(part * len(values)) - 1]
        assert latencies.quantile(part) == pytest.approx(want, rel=0.0101)


def windows(grow, *, count=24, steps=100, seed=0, noise=0.0, saw=0.0):
    chance = random.Random(seed)
    made = [steps * (i + 1) for i in range(count)]
    held = [
        1e6 + grow * n + noise * chance.gauss(0, 1) + saw * (i % 2) for i, n in enumerate(made)
    ]
    return {"steps": array("d", made), "bytes on the device": array("d", held)}


@pytest.mark.parametrize("grow", [64, 512])
def test_bytes_that_each_step_keeps_are_a_leak(grow):
    (found,) = steady.leaks(windows(grow, noise=grow * 20))
    assert "bytes on the device" in found


@given(st.integers(0, 10**6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_noise_is_hardly_ever_a_leak(seed, noise, saw):
    found = [
        bool(steady.leaks(windows(0, seed=seed + i, noise=noise, saw=saw))) for i in range(20)
    ]
    assert sum(found) <= 2  # each with a confidence of 99.9 %


def test_a_step_up_and_too_few_windows_are_no_leak():
    once = windows(0)
    for i in range(12, 24):
        once["bytes on the device"][i] += 1e6
    assert steady.leaks(once) == []
    assert steady.leaks(windows(512, count=6)) == []


def test_growth_must_be_more_than_what_pages_come_in():
    made = windows(1e4)
    column = {"steps": made["steps"], "bytes of the process": made["bytes on the device"]}
    assert len(steady.leaks(column)) == 1
    small = array("d", (value / 100 for value in column["bytes of the process"]))
    assert steady.leaks(column | {"bytes of the process": small}) == []


def test_drift_is_beside_what_the_machine_does():
    first, last = steady.Latencies(), steady.Latencies()
    first.add([(bin_of(1e-3), 100)])
    last.add([(bin_of(3e-3), 100)])
    assert steady.drift(first, last, (1.0, 1.0)) == pytest.approx(3, rel=0.02)
    assert steady.drift(first, last, (1.0, 3.0)) == pytest.approx(1, rel=0.02)
    assert steady.drift(first, last, (3.0, 1.0)) == pytest.approx(3, rel=0.02)
    assert steady.drift(first, steady.Latencies(), (1.0, 1.0)) is None


RIGHT = {"error": None, "typed": True, "digest": "d", "left": 0, "words": ""}
LAUNCH = RIGHT | {"error": "LaunchFailed", "digest": None}
DIED = "the process was killed by SIGSEGV"
LOST = RIGHT | {"error": "DeviceLost", "digest": None, "left": None}


def rounds(*rows, **other):
    return {"begun": True, "rounds": rows, "hung": False, "ended": None, "words": ""} | other


def test_faults_that_end_well():
    fault = INJECTED["failed launches"]
    assert "LaunchFailed, right" in judge_rounds("x", fault, rounds(LAUNCH, RIGHT), "d")
    lost = INJECTED["lost device"]
    assert "DeviceLost" in judge_rounds("x", lost, rounds(RIGHT, LOST, LOST), "d")
    assert "outside" in judge_rounds("x", INJECTED["hang"], rounds(hung=True, ended="hangs"), "d")


@pytest.mark.parametrize(
    ("kind", "seen", "words"),
    [
        ("failed launches", rounds(LAUNCH, RIGHT | {"digest": "other"}), "a wrong number"),
        ("failed launches", rounds(LAUNCH | {"typed": False}, RIGHT), "core types"),
        ("failed launches", rounds(RIGHT, RIGHT), "LaunchFailed in some round"),
        ("failed launches", rounds(LAUNCH, LAUNCH), "a right round after the error"),
        ("failed launches", rounds(LAUNCH, RIGHT | {"left": 2}), "as many allocations"),
        ("failed launches", rounds(LAUNCH, RIGHT, ended=DIED), "killed by SIGSEGV"),
        ("failed launches", rounds(LAUNCH, hung=True, ended="hangs"), "it hangs"),
        ("failed launches", rounds(begun=False), "open the device"),
        ("lost device", rounds(LOST, RIGHT), "every round from then on"),
        ("hang", rounds(RIGHT), "no answer"),
    ],
)
def test_faults_that_do_not(kind, seen, words):
    with pytest.raises(Failure) as caught:
        judge_rounds(kind, INJECTED[kind], seen, "d")
    assert words in str(caught.value)


class _Results:
    def __init__(self, value):
        self.value = value

    def equal(self, other):
        return self.value == other.value


@pytest.mark.parametrize(
    ("typed", "after", "words"),
    [(True, 1, None), (False, 1, "OutOfMemory for"), (True, 2, "others")],
)
def test_more_memory_than_there_is(typed, after, words):
    error = {"what": "9 bytes", "error": "OutOfMemory", "typed": typed}
    seen = {"errors": [error], "first": _Results(1), "after": _Results(after)}
    if words is None:
        assert "9 bytes" in judge_too_much(seen).note
        return
    with pytest.raises(Failure) as caught:
        judge_too_much(seen)
    assert words in str(caught.value)
