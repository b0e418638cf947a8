"""Targets made of a descriptor alone, and rules run against them in this process."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fake_dist import PLUGINS

from vllm_adapter.contract.capability import load_capability
from vllm_adapter.contract.manifest import DeviceSection, Manifest
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.engine.registries import reset
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.judge.outcome import Result
from vllm_adapter_conformance.plan.suite import SuiteItem
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run.execution import run_item

MUTANTS = PLUGINS / "mutants"
BASE = json.loads((MUTANTS / "vllm_adapter_mutants/capabilities/any.json").read_text("utf-8"))


def descriptor(operators: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """The healthy descriptor with some keys of some operators' entries replaced.

    A list replaces an operator's entries; None takes the operator away.
    """
    raw = copy.deepcopy(BASE) | sections
    for op, change in operators.items():
        if change is None:
            del raw["operators"][op]
        elif isinstance(change, list):
            raw["operators"][op] = [raw["operators"].get(op, {}) | entry for entry in change]
        else:
            raw["operators"][op] = raw["operators"].get(op, {}) | change
    return raw


def target_of(name: str, raw: Mapping[str, Any], folder: Path) -> Target:
    """An adapter of that name on the CPU with that descriptor; nothing is installed."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(raw), encoding="utf-8")
    section = DeviceSection(torch_type="cpu")
    manifest = Manifest(name, "Test", ">=1.0,<2", folder / "adapter.json", section)
    device = DeviceRecord(0, "cpu", "any", capability_file=file)
    record = AdapterRecord(
        name,
        f"vllm-adapter-{name}",
        "1.0",
        f"vllm_adapter_{name}",
        status=Status.OK,
        manifest=manifest,
        path=folder,
        devices=(device,),
    )
    return Target(record, HostFacts(), load_capability(file), device)


@contextmanager
def alone() -> Iterator[None]:
    """The mutants can be imported, and no adapter but those opened inside is in use.

    One thread: small tensors on a busy machine wait for the others' time slices.
    """
    sys.path.insert(0, str(MUTANTS))
    reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        sys.path.remove(str(MUTANTS))
        reset()


def run_rules(target: Target, *ids: str) -> dict[str, list[Result]]:
    """The result of each case of some rules, by rule; what they need is not run."""
    with alone():
        bench = Bench(target)
        return {
            id: [
                run_item(bench, SuiteItem(registered()[id], case))
                for case in registered()[id].cases(target)
                if isinstance(case, Case)
            ]
            for id in ids
        }


def first_failure(target: Target, id: str) -> Result | None:
    """The first case of a rule that does not pass."""
    with alone():
        bench = Bench(target)
        for case in registered()[id].cases(target):
            if isinstance(case, Case):
                result = run_item(bench, SuiteItem(registered()[id], case))
                if result.outcome != "pass":
                    return result
    return None


def failed(results: list[Result]) -> list[Result]:
    """Those that did not pass."""
    return [result for result in results if result.outcome != "pass"]
