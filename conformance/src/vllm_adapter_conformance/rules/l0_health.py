"""L0: the adapter's reader of health, run as the doctor runs it; mostly without the device."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Final

from vllm_adapter.discovery.distributions import EntryPoint, entry_points
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules._inspection import LIMIT_S
from vllm_adapter_doctor.live.children import run_all
from vllm_adapter_doctor.live.reader_lines import parse
from vllm_adapter_doctor.live.readers import GROUP, VendorReader, fault_of

_FORBIDDEN: Final = ("torch", "transformers", "vllm", "vllm_adapter", "vllm_adapter_doctor")
_IMPORT: Final = """
import importlib, json, sys
module, forbidden, *sys.path = sys.argv[1:]
importlib.import_module(module)
print()
print(json.dumps([name for name in json.loads(forbidden) if name in sys.modules]))
"""


def _readers(target: Target) -> Iterator[Case | NotDeclaredCase]:
    points = [
        point for point in entry_points(GROUP) if point.distribution == target.record.distribution
    ]
    for point in points:
        yield Case(point.name, {"module": point.value})
    if not points:
        reason = f"no entry point of group {GROUP}: the doctor asks the vendor's tool, if any"
        yield NotDeclaredCase("reader", "/name", reason)


@rule(
    "L0.package.health",
    summary="the reader of health is a module of the adapter, and prints lines that can be read",
    why="The doctor and `serve` run this module to learn whether devices are lost, throttled or "
    "held. It has to be the adapter's own (an entry point under its name, a module of its "
    "package), and to end by itself on any box: without the vendor's library it prints one object "
    "with `fault`, which says what to install. Lines that break the format are not believed, and "
    "then nothing of the reading is. It imports neither torch nor core, since it runs every few "
    "seconds. The fields are described in docs/formats.md.",
    cases=_readers,
    needs=("L0.manifest.name",),
    preview=True,
    since="0.1",
)
def check_health(bench: Bench, case: Case) -> Observation:
    """Holds the entry point against the adapter, then imports the module, then runs it."""
    record = bench.target.record
    module: str = case.params["module"]
    point = EntryPoint(case.id, module, record.distribution, "", False, "", ())
    fault = fault_of(point, record.package if case.id == record.name else None)
    if fault is not None:
        raise Failure(f"a module of {record.package}, under the name {record.name}", fault)
    folders = [folder for folder in sys.path if os.path.isabs(folder)]
    words = (_IMPORT, module, json.dumps(_FORBIDDEN), *folders)
    commands = [
        (sys.executable, "-P", "-B", "-c", *words),
        VendorReader(record.name, module, record.distribution).command,
    ]
    imported, ended = run_all(commands, timeout_s=LIMIT_S, environ=os.environ)
    if imported.fault:
        raise Failure(f"the import of {module} to return", imported.fault)
    loaded = json.loads(imported.output.splitlines()[-1])
    if loaded:
        raise Failure(f"the import of {module} to load none of them", ", ".join(loaded))
    if ended.fault:
        raise Failure("the reader to end by itself with exit code 0", ended.fault)
    said = parse(ended.output, record.name, module)
    wrong = (*said.wrong, *(f"unknown field {name}" for name in said.unknown))
    if wrong:
        raise Failure("lines of the documented fields", wrong[0], detail="\n".join(wrong))
    if not (said.accelerators or said.fault):
        raise Failure("a device, or a line with `fault`", "neither")
    count = len(said.accelerators)
    return Observation(note=f"{count} devices" if count else f"no device: {said.fault}")
