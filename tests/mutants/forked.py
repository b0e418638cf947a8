"""As `run.py`, in forks of one process that has the suite imported: in a part of the time.

    OMP_NUM_THREADS=1 python tests/mutants/forked.py [--set second] NAME ... --output table.csv
    OMP_NUM_THREADS=1 python tests/mutants/forked.py --family right --seeds 1-20 --drawn

Judge and kernel share a process here, and nothing is installed; the cases are the same. `--drawn`
leaves out what no seed changes, for many seeds of right kernels: a fork then has all kernels of an
operator, and one reference for all of them.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import hashlib
import json
import os
import platform
import secrets
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import run as mutants  # which has tests on the path

COLUMNS = (*mutants.COLUMNS[:3], "seed", *mutants.COLUMNS[3:])
SEEDED = ("L2.many_calls", "L2.threads", "L2.kv_cache")
"""Rules beside the drawn cases whose inputs a seed changes."""
LAST = ("L2.leak", "L2.offsets")
LIMIT_S = 3600


def target_of(kernel: Any, folder: Path, seed: int) -> Any:
    """The target of a kernel, which is not installed; an overload is of one kernel for good."""
    from vllm_adapter.contract.capability import load_capability
    from vllm_adapter.contract.manifest import DeviceSection, Manifest
    from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
    from vllm_adapter.hostfacts.facts import HostFacts
    from vllm_adapter_conformance.base.target import Target

    raw = json.loads((mutants.CPU / f"{platform.machine()}.json").read_text("utf-8"))
    file = folder / f"{kernel.name}.json"
    file.write_text(json.dumps(mutants.descriptor(raw, kernel)), "utf-8")
    section = DeviceSection(torch_type="cpu")
    manifest = Manifest(kernel.name, "Test", ">=1.0,<2", folder / "adapter.json", section)
    device = DeviceRecord(0, "cpu", "any", capability_file=file)
    record = AdapterRecord(
        kernel.name,
        "vllm-adapter-mutant",
        "1.0",
        "vllm_adapter_mutant",
        status=Status.OK,
        manifest=manifest,
        path=folder,
        devices=(device,),
    )
    return Target(record, HostFacts(), load_capability(file), device, seed)


def is_of(item: Any, op: str, *, drawn: bool) -> bool:
    """Whether a case is one that `run.selection` means."""
    if item.rule.level != "L2":
        return False
    if drawn and "draws" not in item.case.params and item.rule.id not in SEEDED:
        return False
    others = mutants.OTHERS.get(op, "").removeprefix(" and not ")
    also = mutants.ALSO.get(op, "").removeprefix(" or ")
    mine = op in item.id and not (others and others in item.id)
    return mine or bool(also and also in item.id)


def without_needs(rules: dict[str, Any]) -> dict[str, Any]:
    """The rules of L2, which here need none that is not among them."""
    kept = {id: one for id, one in rules.items() if one.level == "L2"}
    return {
        id: dataclasses.replace(one, needs=tuple(n for n in one.needs if n in kept))
        for id, one in kept.items()
    }


def judged(kernel: Any, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """The line of a kernel, in this process."""
    from vllm_adapter.engine.registries import reset
    from vllm_adapter_conformance.base.bench import Bench
    from vllm_adapter_conformance.plan.suite import make_plan
    from vllm_adapter_conformance.rules import registered
    from vllm_adapter_conformance.run.execution import run_item

    reset()
    began, ran, bad = time.process_time(), 0, []
    with tempfile.TemporaryDirectory() as name:
        target = target_of(kernel, Path(name), seed)
        bench = Bench(target)
        # Whole spaces are not drawn for cases that are left out.
        rules = {
            id: one
            for id, one in registered().items()
            if not id.endswith(".correct") or id == f"L2.{kernel.op}.correct"
        }
        items = make_plan(target, "L2", without_needs(rules)).items
        # Up to the first failure: what takes longest comes last, for it may not be needed.
        for item in sorted(items, key=lambda item: item.rule.id in LAST):
            if is_of(item, kernel.op, drawn=given.drawn):
                result = run_item(bench, item)
                ran += 1
                if result.outcome != "pass":
                    bad.append((item, result))
                    if not given.whole:
                        break
    line = {"name": kernel.name, "operator": kernel.op, "family": kernel.family, "seed": seed}
    line |= {"verdict": "survived", "run": ran, "seconds": round(time.process_time() - began, 1)}
    if bad:
        line |= {
            "verdict": "caught",
            "rules": " ".join(dict.fromkeys(item.rule.id for item, _ in bad)),
            "cases": " ".join(item.case.id for item, _ in bad[:3]),
            "message": " ".join(str(bad[0][1].message).split())[:600],
        }
    return line


def cached(reference: Callable[..., Any]) -> Callable[..., Any]:
    """References by what they are of: kernels of one operator and seed get the same arguments."""
    import torch

    kept: dict[bytes, Any] = {}

    def found(spec: Any, args: Sequence[Any]) -> Any:
        digest = hashlib.blake2b(spec.name.encode())
        for arg in args:
            if isinstance(arg, torch.Tensor):
                digest.update(f"{arg.dtype}{tuple(arg.shape)}".encode())
                whole = arg.flatten().clone(memory_format=torch.contiguous_format)
                digest.update(whole.view(torch.uint8).numpy())
            else:
                digest.update(repr(arg).encode())
        key = digest.digest()
        if key not in kept:
            kept[key] = reference(spec, args)
        return kept[key]

    return found


def in_fork(kernels: Sequence[Any], seed: int, given: argparse.Namespace) -> Iterator[dict]:
    """The lines of some kernels, each as it is there; what ends the fork is that kernel's."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            if len(kernels) > 1:
                runs = import_module("vllm_adapter_conformance.ops.runs")
                runs.reference = cached(runs.reference)
            for kernel in kernels:
                os.write(theirs, json.dumps(judged(kernel, seed, given)).encode() + b"\n")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(theirs)
    text, left, began = b"", list(kernels), time.monotonic()
    while select.select([ours], [], [], max(0.0, began + LIMIT_S - time.monotonic()))[0]:
        part = os.read(ours, 1 << 16)
        if not part:
            break
        *lines, text = (text + part).split(b"\n")
        for line in lines:
            left.pop(0)
            yield json.loads(line)
    os.close(ours)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if left:
        kernel = left[0]
        yield {
            "name": kernel.name,
            "operator": kernel.op,
            "family": kernel.family,
            "seed": seed,
            "verdict": "error",
            "message": "the process ended, or hangs",
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="kernels by name")
    parser.add_argument("--set", choices=mutants.SETS, default="first")
    parser.add_argument("--family", choices=[*mutants.FAMILIES, mutants.RIGHT])
    parser.add_argument("--op", help="those of one operator")
    parser.add_argument("--seeds", help="1-20; a fresh one by default")
    parser.add_argument("--drawn", action="store_true", help="only what a seed changes")
    parser.add_argument("--whole", action="store_true", help="go on after a first failure")
    parser.add_argument("--output", type=Path, default=Path("forked.csv"))
    given = parser.parse_args()
    kernels = import_module(f"{mutants.SETS[given.set]}.all").KERNELS
    if unknown := set(given.names) - kernels.keys():
        parser.error(f"no kernel is named {', '.join(sorted(unknown))}")
    if not (given.names or given.family or given.op):
        parser.error("name kernels, or --family or --op")
    chosen = [
        kernel
        for kernel in [kernels[name] for name in given.names or kernels]
        if given.family in (None, kernel.family) and given.op in (None, kernel.op)
    ]
    first, _, last = (given.seeds or "").partition("-")
    seeds = range(int(first), int(last or first) + 1) if first else [None]
    import_module("vllm_adapter.engine.device")
    import_module("vllm_adapter_conformance.run.execution")
    import_module("vllm_adapter_conformance.rules").registered()
    import_module("vllm_adapter_conformance.ops.runs")
    import_module("torch._dynamo")
    import_module("numpy.random")
    groups = [[kernel] for kernel in chosen]
    if given.drawn:
        by_op: dict[str, list[Any]] = {}
        for kernel in chosen:
            by_op.setdefault(kernel.op, []).append(kernel)
        groups = list(by_op.values())
    wrong, new = 0, not given.output.is_file()
    with given.output.open("a", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        if new:
            table.writeheader()
        for seed in seeds:
            for group in groups:
                chance = secrets.randbelow(1 << 31) if seed is None else seed
                for line in in_fork(group, chance, given):
                    table.writerow(line)
                    file.flush()
                    right = line["family"] == mutants.RIGHT
                    good = line["verdict"] == ("survived" if right else "caught")
                    wrong += not good
                    words = (line.get(c, "") for c in COLUMNS)
                    print("ok " if good else "BAD", *words, flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
