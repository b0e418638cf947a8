"""L1: the device that was opened is the one that the descriptor is about."""

from __future__ import annotations

import re
from typing import Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, Observation, once, rule
from vllm_adapter_conformance.device_side.evidence import device_evidence

_WORD: Final = re.compile(r"[a-z0-9]+")


@rule(
    "L1.device.identity",
    summary="name and arch of the opened device are the descriptor's, and what is behind it shows",
    why="A certificate is about one chip. The device's own name (torch's, or the C library's) "
    "must have the model's number from the descriptor's `identity.name`, and a C library's arch "
    "must be `identity.arch`: else cases of one chip were run on another. What stands behind the "
    "device goes into the certificate: the device nodes that the process has open, and the "
    "library's own name. Where the host's CPU ran the cases of another device, or no device node "
    "is open, nothing was said of a chip, and there is no badge. Choose the descriptor by "
    "`match`, or mend its identity.",
    cases=once,
    needs=("L1.device.open",),
)
def check_identity(bench: Bench, case: Case) -> Observation:
    """Asks the device, and compares with the descriptor."""
    seen = bench.observe(device_evidence)
    capability = bench.target.capability
    assert capability is not None  # a target with a device has one
    identity, emulator = capability.identity, bench.target.emulator
    if emulator is None and bench.target.device is not None:
        on_cpu = bench.target.device.torch.partition(":")[0] == "cpu"
        if not on_cpu and not names_agree(identity.name, seen["name"], identity.arch):
            raise Failure(f"the descriptor's device {identity.name}", f"{seen['name']}")
        if seen["arch"] is not None and seen["arch"] != identity.arch:
            raise Failure(f"the descriptor's arch {identity.arch}", f"{seen['arch']}")
    return Observation(note=_note(seen), facts=seen)


def names_agree(declared: str | None, live: str | None, arch: str) -> bool:
    """Whether a name by the device has a model number of the descriptor's name, or its arch.

    A model number is a word with a digit, apart from memory sizes and form factors; remarks in
    brackets are left out. Without any, or without a name, there is nothing to compare.
    """
    if declared is None or live is None:
        return True
    plain = re.sub(r"\(.*?\)", " ", declared.casefold())
    plain = re.sub(r"\d+ ?gi?b\b|\bsxm\d*|\bpcie\d*|\boam\b", " ", plain)
    numbers = [word for word in _WORD.findall(plain) if re.search(r"\d", word)]
    text = live.casefold()
    return (
        not numbers
        or any(re.search(rf"{word}(?![0-9a-z])", text) for word in numbers)
        or arch.casefold() in text
    )


def _note(seen: dict[str, Any]) -> str:
    library = seen["library"]
    by = f", library of {library['vendor']} {library['version']}" if library else ""
    nodes = ", ".join(seen["nodes"]) or "none"
    return f"{seen['name'] or 'no name'}{by}; device nodes: {nodes}"
