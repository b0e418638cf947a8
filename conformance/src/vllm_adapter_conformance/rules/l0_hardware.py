"""L0: what an adapter says of hardware it has, or has not, run on, and of its vendor's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vllm_adapter.contract.capability import Capability, load_capability
from vllm_adapter.errors import CapabilityError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules.l0_descriptor import SECTIONS, descriptor_files, figures

ASSUMED_SHARE: Final = 0.2
"""The greatest share of a descriptor's figures that may be assumed."""
_NAMES: Final = ("dist_backend", "visible_devices_variable")


def kinds(capability: Capability) -> Counter[str]:
    """How many figures of a descriptor are of each kind of source."""
    return Counter(
        capability.source(pointer).kind
        for section in SECTIONS
        for pointer in figures(capability.raw.get(section, {}), f"/{section}")
    )


def _files(target: Target) -> Iterator[Case]:
    for name, file in descriptor_files(target).items():
        yield Case(name, {"file": str(file)})


@rule(
    "L0.descriptor.assumed",
    summary="at most a fifth of a descriptor's figures are assumed",
    why="A plan made from guesses is a guess. Take a figure from a document, ask the driver, or "
    "measure it, and say so in its `source`; write null for what is not known, which planning "
    "treats as unknown and never as a number.",
    cases=_files,
    needs=("L0.descriptor.sources",),
)
def check_assumed(bench: Bench, case: Case) -> Observation:
    """Counts the figures by the kind of their source."""
    found = kinds(load_capability(Path(case.params["file"])))
    total = sum(found.values())
    if found["assumed"] > ASSUMED_SHARE * total:
        raise Failure(
            f"at most {ASSUMED_SHARE:.0%} of {total} figures to be assumed", f"{found['assumed']}"
        )
    return Observation(note=", ".join(f"{n} {kind}" for kind, n in sorted(found.items())))


def no_accelerator(target: Target) -> str | None:
    """Why the adapter is for no device apart from the host's CPU, or None."""
    manifest = target.record.manifest
    if manifest is None or manifest.device is None:
        return "the adapter brings no device"
    if manifest.device.torch_type == "cpu":
        return "the device is the host's CPU"
    return "the device is emulated" if manifest.emulated else None


def _hardware(target: Target) -> Iterator[Case | NotDeclaredCase]:
    reason = no_accelerator(target)
    if reason is not None and target.record.manifest is not None:
        yield NotDeclaredCase("manifest", "/tested_on", reason)
        return
    yield Case("manifest")
    for name, file in descriptor_files(target).items():
        yield Case(name, {"file": str(file)})


@rule(
    "L0.manifest.hardware",
    summary="the manifest says on which of its devices this has run, and none else is measured",
    why="A descriptor can be written from documents alone, and whoever installs it should know. "
    "Put into the manifest's `tested_on` the names of the descriptors, without .json, whose "
    "device has run this suite; an empty list says that none has, and `list` and certificates "
    "then say `not run on hardware`. A figure whose source is `measured` needs such a run.",
    cases=_hardware,
    needs=("L0.manifest.schema", "L0.descriptor.sources"),
)
def check_hardware(bench: Bench, case: Case) -> Observation:
    """Looks for the list, for its files, and for measured figures of devices that never ran."""
    manifest = bench.target.record.manifest
    assert manifest is not None
    tested = manifest.tested_on
    if tested is None:
        raise Failure('"tested_on" in the manifest, empty where nothing has run', "no such key")
    if "file" not in case.params:
        stems = {file.stem for file in descriptor_files(bench.target).values()}
        unknown = [name for name in tested if name not in stems]
        if unknown:
            raise Failure("each name in tested_on to be a descriptor's", ", ".join(unknown))
        return Observation(note=f"run on {', '.join(tested)}" if tested else "not run on hardware")
    file = Path(case.params["file"])
    measured = kinds(load_capability(file))["measured"]
    if measured and file.stem not in tested:
        raise Failure(
            f"no measured figure where tested_on does not name {file.stem}", f"{measured} of them"
        )
    return Observation(note="run on hardware" if file.stem in tested else "not run on hardware")


def _vllm(target: Target) -> Iterator[Case | NotDeclaredCase]:
    reason = no_accelerator(target)
    for name, file in descriptor_files(target).items():
        if reason is None or target.record.manifest is None:
            yield Case(name, {"file": str(file)})
        else:
            yield NotDeclaredCase(name, "/vllm", reason)


@rule(
    "L0.descriptor.vllm",
    summary="the descriptor names the collectives and the variable that hides devices",
    why="vLLM asks a platform for both when it starts workers. Where they are missing, several "
    "workers take the same device, or none can talk to another. Write them under `vllm`, and "
    "null where the chip has no such thing.",
    cases=_vllm,
    needs=("L0.descriptor.schema",),
)
def check_vllm(bench: Bench, case: Case) -> Observation:
    """Looks for both keys."""
    try:
        section = load_capability(Path(case.params["file"])).raw.get("vllm", {})
    except CapabilityError as error:  # the schema's rule says more
        raise Failure("a descriptor that can be read", error.message) from error
    missing = [key for key in _NAMES if key not in section]
    if missing:
        raise Failure(f"/vllm to hold {' and '.join(_NAMES)}", f"no {' and no '.join(missing)}")
    return Observation(note=", ".join(str(section[key]) for key in _NAMES))
