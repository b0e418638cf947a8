"""L0: on boxes of many vendors an adapter finds its own devices, and none on others'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from vllm_adapter.contract.manifest import Manifest
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.match import match
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules._boxes import SimulatedHost, boxes
from vllm_adapter_conformance.rules._inspection import inspect
from vllm_adapter_conformance.rules.l0_hardware import no_accelerator
from vllm_adapter_doctor.devices.recognition import recognise

OWN: Final = "own"
_WHY: Final = (
    "Two adapters that claim one device make a tie, and vLLM then starts on neither; one that "
    "takes another maker's chip for its own runs kernels that chip cannot run. Many chips wear "
    "another's face: Hygon has /dev/kfd, MetaX says True to torch.cuda.is_available(), a server's "
    "console and a laptop's processor are display controllers. Match by the PCI vendor together "
    "with a class or device ids, and in a `probe` hook look at the bus, never at torch."
)


def _boxes(target: Target) -> Iterator[Case | NotDeclaredCase]:
    reason, manifest = no_accelerator(target), target.record.manifest
    if reason is not None and manifest is not None:
        yield NotDeclaredCase("boxes", "/match", reason)
        return
    yield from (Case(name, {"box": name}) for name in boxes())
    if manifest is not None and any(box.of(manifest) for box in boxes().values()):
        yield Case(OWN)


@rule(
    "L0.probe.boxes",
    summary="match and probe find the adapter's devices, and none on other vendors' boxes",
    why=_WHY,
    cases=_boxes,
    needs=("L0.manifest.schema", "L0.descriptor.schema"),
)
def check_boxes(bench: Bench, case: Case) -> Observation:
    """Holds one box's facts against the manifest and the plug-in, as discovery does."""
    manifest = bench.target.record.manifest
    assert manifest is not None
    if case.id == OWN:
        mine = [box for box in boxes().values() if box.of(manifest)]
        seen = [box.id for box in mine if _found(manifest, box) is not None]
        if not seen:
            raise Failure(
                f"devices on one of {len(mine)} boxes of this vendor at least", "none on any"
            )
        return Observation(note=f"{len(seen)} of {len(mine)} boxes of this vendor")
    box = boxes()[case.params["box"]]
    found, own = _found(manifest, box), box.of(manifest)
    if found is None:
        return Observation(note="no device" if own is None else f"{own} devices, not matched")
    if own is None:
        owner = ", ".join(sorted(box.devices)) or "nobody"
        raise Failure(
            f"no device on {box.id}, whose devices are of {owner}",
            f"{found} claimed",
            detail=box.origin,
        )
    if manifest.name in VENDORS and found != own:
        raise Failure(f"{own} devices on {box.id}", f"{found}", detail=box.origin)
    return Observation(note=f"{found} devices")


def _found(manifest: Manifest, box: SimulatedHost) -> int | None:
    """How many devices the adapter finds; None if it says that the box is not for it.

    Raises:
        Failure: its plug-in cannot be imported, or its hook raises on this box.
    """
    seen = match(manifest.match, box.facts)
    if seen is None:
        return None
    given = None if manifest.plugin is None else _probed(manifest.plugin)[box.id]
    if isinstance(given, str):
        raise Failure(f"the hook `probe` to answer on {box.id}", given, detail=box.origin)
    if given is not None:
        return given or None
    if manifest.name in VENDORS:
        return len(recognise(manifest, box.facts))
    return len(seen.pci) or 1


@cache
def _probed(plugin: str) -> Mapping[str, int | str | None]:
    """How many devices a plug-in's `probe` gives of each box; None: it leaves it to `match`."""
    hosts = {name: box.facts.to_json() for name, box in boxes().items()}
    answer: dict[str, Any] = inspect("probe", plugin=plugin, hosts=hosts)
    counts: dict[str, int | str | None] = answer["counts"]
    return counts
