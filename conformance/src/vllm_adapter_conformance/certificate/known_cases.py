"""Which rules have the same cases for every adapter: run for one, not declared for another.

Found by planning for adapters that are as unlike as descriptors can be. What differs among them
depends on the descriptor or the package, and no list can know it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.contract.manifest import DeviceSection, Manifest
from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules import registered

_NAME: Final = "unlike"
_BUDGET_S: Final = 0.01
"""Draws are no constant cases, and need not be made."""


@cache
def constant_cases() -> Mapping[str, frozenset[str]]:
    """The ids of the rules from L1 on whose cases are the same for all of the unlike adapters."""
    found: dict[str, set[frozenset[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in _targets(Path(folder)):
            for rule in registered().values():
                if rule.level != "L0":
                    ids = frozenset(case.id for case in rule.cases(target))
                    found.setdefault(rule.id, set()).add(ids)
    return {id: next(iter(sets)) for id, sets in found.items() if len(sets) == 1 and all(sets)}


def _targets(folder: Path) -> Iterator[Target]:
    for number, (section, entries, sections) in enumerate(_UNLIKE):
        yield _target(folder, number, section, entries, sections)


def _target(
    folder: Path,
    number: int,
    section: Mapping[str, Any],
    entries: Mapping[str, Any],
    sections: Mapping[str, Any],
) -> Target:
    kind = section.get("torch_type") or _NAME
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Unlike", "arch": "u1", "torch_type": kind},
        "operators": dict(entries),
        **sections,
    }
    emulated = number % 2 == 1
    device = DeviceSection(**section)
    path = folder / "adapter.json"
    manifest = Manifest(_NAME, "Unlike", ">=1.0,<2", path, device, emulated=emulated)
    devices = tuple(DeviceRecord(i, f"{kind}:{i}", "unlike") for i in range(1 + number % 3))
    record = AdapterRecord(
        *(_NAME, "vllm-adapter-unlike", "1.0", "vllm_adapter_unlike"),
        status=Status.OK,
        manifest=manifest,
        path=folder,
        devices=devices,
    )
    capability = parse_capability(raw, str(folder / f"{number}.json"))
    return Target(record, HostFacts(), capability, devices[0], number, _BUDGET_S)


def _every(dtypes: tuple[str, ...], run: str | None) -> dict[str, Any]:
    """An entry for every operator, without limits."""
    return {
        op: {
            "support": "full",
            "dtypes": list(dtypes),
            "form": "torch" if run is None else "kernel",
            "run": run or f"vllm_adapter.engine.ops.generic:{op}",
        }
        for op in OPERATORS
    }


def _narrow() -> dict[str, Any]:
    """One attention, of one head and block size and with a plan, and one linear, in float16."""
    both = {"support": "full", "dtypes": ["float16"], "form": "kernel"}
    limits = {"head_size": [128], "block_size": {"multiple_of": 24}, "window": {"min": 0}}
    return {
        "paged_attention": {**both, "limits": limits, "run": "unlike.kernels:attend"},
        "linear": {**both, "limits": {"in_features": {"max": 99}}, "run": "unlike.kernels:linear"},
    }


_UNLIKE: Final[tuple[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], ...]] = (
    ({"torch_type": "cpu"}, {}, {}),
    ({"library": "lib/libunlike.so"}, {}, {}),
    (
        {"library": "lib/libunlike.so"},
        {op: entry | {"run": f"library:{op}"} for op, entry in _every(DTYPES, "x:y").items()},
        {"memory": {"alignment_bytes": 384, "unified": False}},
    ),
    (
        {"torch_type": "unlike"},
        _every(DTYPES[1:], None),
        {"numerics": {"deterministic": False}, "kv": {"block_multiple": 24}},
    ),
    ({"torch_type": "unlike"}, _narrow(), {"kv": {"preferred_block": 24}}),
    ({"torch_type": "cpu"}, _every(DTYPES, None), {}),
)
