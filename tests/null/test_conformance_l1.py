"""The rules of L1 are themselves tested: each fault of a runtime is seen by a named rule."""

from __future__ import annotations

import ctypes
import dataclasses
import random
import subprocess
import sys

import pytest
import torch
from fake_dist import PLUGINS

from vllm_adapter.contract.capability import load_capability
from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.hostfacts.live import collect
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side import leaks
from vllm_adapter_conformance.plan.suite import make_plan
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run.execution import run_item

pytestmark = pytest.mark.null

FOLDER = PLUGINS / "faulty_runtime"
PACKAGE = FOLDER / "vllm_adapter_faulty_runtime"
SEEN_BY = {
    "no_copy_to": "L1.copy.round_trip",
    "no_copy_back": "L1.copy.round_trip",
    "copies_later": "L1.copy.detached",
    "last_first": "L1.copy.stream",
    "whole_granules": "L1.copy.offset",
    "clips_copies": "L1.copy.bounds",
    "refuses_too_late": "L1.copy.bounds",
    "writes_constants": "L1.copy.read_only",
    "needs_bytes": "L1.copy.empty",
    "frees_twice": "L1.memory.freed",
    "counts_forever": "L1.memory.leak",
    "keeps_memory": "L1.memory.returned",
    "misaligned": "L1.memory.alignment",
    "takes_any_alignment": "L1.memory.request",
    "one_byte_short": "L1.memory.allocate",
    "overlapping": "L1.memory.disjoint",
    "grants_too_much": "L1.memory.out_of_memory",
    "untyped_out_of_memory": "L1.memory.out_of_memory",
    "counts_one_more": "L1.device.count",
    "counts_none": "L1.device.count",
    "wraps_index": "L1.device.index",
    "capability_changes": "L1.device.capability",
    "more_free_than_total": "L1.memory.capacity",
    "not_unified": "L1.memory.capacity",
    "one_staging_buffer": "L1.device.threads",
    "short_pinned": "L1.memory.pinned",
    "does_not_open": "L1.device.open",
}
SEEN_ALONE = {"not_unified", "wraps_index", "capability_changes"}
"""Faults that no other rule may see: one cause, one failing rule."""


@pytest.fixture
def target():
    manifest = read_manifest(PACKAGE / "adapter.json")
    file = PACKAGE / "capabilities/any.json"
    device = DeviceRecord(0, "cpu", "Test", "any", file)
    record = AdapterRecord(
        "faulty_runtime",
        "vllm-adapter-faulty-runtime",
        "1.0",
        "vllm_adapter_faulty_runtime",
        Status.OK,
        manifest=manifest,
        path=PACKAGE,
        devices=(device,),
    )
    return Target(record, collect(), load_capability(file), device)


def failing(target: Target, fault: str, monkeypatch, *, only: str = "L1.") -> dict[str, str]:
    """The rules of L1 that fail with a fault, each with what its first failure says."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("FAULTY_RUNTIME", fault)
    monkeypatch.setenv("VA_FALLBACK", "error")
    bench, found = Bench(target), {}
    for item in make_plan(target, "L1", registered()).items:
        chosen = item.rule.id == only or (only == "L1." and item.rule.level == "L1")
        if chosen and item.rule.id not in found:
            result = run_item(bench, item)
            if result.outcome != "pass":
                found[item.rule.id] = f"{result.expected} / {result.seen}"
    return found


def test_a_healthy_runtime_passes_every_rule(target, monkeypatch):
    assert failing(target, "none", monkeypatch) == {}


@pytest.mark.parametrize("fault", SEEN_BY)
def test_each_fault_is_seen_by_its_rule(target, fault, monkeypatch):
    only = "L1." if fault in SEEN_ALONE else SEEN_BY[fault]
    found = set(failing(target, fault, monkeypatch, only=only))
    also = {"L1.memory.freed_once"} if fault == "frees_twice" else set()
    assert found - also == {SEEN_BY[fault]}


def test_a_leak_is_seen_while_another_part_of_the_process_gives_memory_back(target, monkeypatch):
    ballast = [torch.ones(192 << 20, dtype=torch.uint8)]
    measure = leaks.held_by_process

    def measured_after_the_ballast_went() -> int:
        used = measure()
        ballast.clear()
        return used

    monkeypatch.setattr(leaks, "held_by_process", measured_after_the_ballast_went)
    rule = "L1.memory.returned"
    assert set(failing(target, "keeps_memory", monkeypatch, only=rule)) == {rule}
    assert not ballast


HOLDS_FREE_MEMORY = """
import ctypes
from vllm_adapter_conformance.device_side.memory import held_by_process

libc = ctypes.CDLL(None)
libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD: large pieces come from the heap, too
libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: and stay there when they are freed
pieces = [bytearray(b"1" * (64 << 20)) for _ in range(6)]
last = bytearray(1 << 20)
del pieces
before = held_by_process()
leak = [bytearray(b"2" * (64 << 20)) for _ in range(3)]
print((held_by_process() - before) >> 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")
def test_a_leak_is_seen_where_the_allocator_holds_much_free_memory():
    done = subprocess.run(
        [sys.executable, "-c", HOLDS_FREE_MEMORY], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) in range(180, 260)


def test_the_zoo_is_complete(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from vllm_adapter_faulty_runtime.faults import FAULTS

    assert set(FAULTS) == {*SEEN_BY, "none", "crashes_and_hangs"}


def test_a_missing_copy_back_is_named(target, monkeypatch):
    rule = "L1.copy.round_trip"
    said = failing(target, "no_copy_back", monkeypatch, only=rule)[rule]
    assert "byte 0 to be 0x" in said and "1 of 1 bytes differ" in said


def test_the_seed_fixes_contents_and_cases(target):
    from vllm_adapter_conformance.rules._drawn import content

    assert content((1, "a"), 64) == content((1, "a"), 64) != content((2, "a"), 64)

    def drawn(seed):
        items = make_plan(dataclasses.replace(target, seed=seed), "L1", registered()).items
        return {item.id: item.case.params for item in items}

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1).keys() == drawn(2).keys()


@pytest.mark.parametrize("seed", range(40))
def test_drawn_sizes_stay_within_256_mib_and_reach_it(seed):
    from vllm_adapter_conformance.rules._drawn import LARGEST, SIZES

    drawn = {kind: draw(random.Random(seed)) for kind, draw in SIZES.items()}
    assert all(1 <= size <= LARGEST for sizes in drawn.values() for size in sizes)
    assert max(drawn["to 256 MiB"]) >= LARGEST - 1
    assert any(size % 2 for size in drawn["odd"]) and 4097 in drawn["about a page"]


def test_contents_have_no_page_twice():
    from vllm_adapter_conformance.rules._drawn import PAGE, content

    data = content((5, "pages"), 40 * PAGE)
    pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
    assert len(set(pages)) == len(pages) and bytes(PAGE) in pages
