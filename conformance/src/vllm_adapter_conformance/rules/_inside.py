"""A whole check in the device's process: for rules whose looks are not apart from their judging.

What is drawn and judged there is what an adapter can reach. No rule about numbers may be one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, Observation
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules import registered

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

LEVELS: Final = ("L1",)


def check(bench: Bench, rule: str, case: Case) -> Observation:
    """Checks a case there.

    Raises:
        Failure: as it was raised there.
    """
    # The run's own seed stays here: operators' cases are drawn from it.
    seed = int.from_bytes(sha256(f"inside/{bench.target.seed}".encode()).digest()[:3])
    target = replace(bench.target, seed=seed).to_json()
    params = dict(case.params)
    seen = bench.observe(look, rule=rule, case=case.id, params=params, target=target)
    if "failure" in seen:
        failure = seen["failure"]
        raise Failure(
            failure["expected"],
            failure["seen"],
            share=failure["share"],
            detail=failure["detail"],
            cause=failure["cause"],
        )
    return Observation(seen["share"], seen["note"])


def look(
    device: HeldDevice,
    rule: str,
    case: str,
    params: Mapping[str, Any],
    target: Mapping[str, Any],
) -> dict[str, Any]:
    """The check of one case, and how it ended."""
    bench = Bench(Target.from_json(target))
    bench.held = device
    try:
        found = registered()[rule].check(bench, Case(case, params)) or Observation()
    except Failure as failure:
        names = ("expected", "seen", "share", "detail", "cause")
        return {"failure": {name: getattr(failure, name) for name in names}}
    return {"share": found.share, "note": found.note}
