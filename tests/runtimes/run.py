"""Runs the rules of L1 over wrong runtimes, and right ones of other builds: who is caught?

    OMP_NUM_THREADS=1 python tests/runtimes/run.py --all --output table.csv [--seed S] [--resume]
    OMP_NUM_THREADS=1 python tests/runtimes/run.py NAME ... [--part 1/2] [--certify]

Each is judged in a forked process of its own, up to its first failure; `--whole` goes on, and
`--certify` has the command `certify` judge an installed adapter instead. `caught` names the rules.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import platform
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import msgspec  # noqa: E402
import patches  # noqa: E402
import sim_library  # noqa: E402
import table  # noqa: E402
from fake_dist import environment, install  # noqa: E402

PACKAGE = "vllm_adapter_wrong"
ADAPTERS = HERE.parents[1] / "adapters"
COLUMNS = ("name", "kind", "verdict", "rules", "cases", "seconds", "message")
CLI = "import sys; from vllm_adapter.cli.main import main; sys.exit(main())"
LIMIT_S = 600
LAST = (
    "L1.memory.slope",
    "L1.memory.returned",
    "L1.event.time",
    "L1.memory.free",
    "L1.copy.round_trip[to 256 MiB]",
    "L1.memory.exhaust",
)
THEMES = {
    "copies": ("L1.copy", "L1.device.threads"),
    "memory": ("L1.memory", "L1.device"),
    "pinned": ("L1.memory.pinned",),
    "devices": ("L1.device", "L1.stream", "L1.copy"),
    "queue.c": ("L1.event", "L1.stream", "L1.library", "L1.emulated"),
    "heap.c": ("L1.memory", "L1.library", "L1.device", "L1.emulated"),
    "copy.c": ("L1.copy", "L1.memory.pinned", "L1.stream", "L1.library.link"),
    "api.c": ("L1.device", "L1.library", "L1.memory"),
    "error.c": ("L1.library",),
}
"""The rules that are tried first, by where a runtime's fault is: all others come after them."""
RIGHT = (
    "L1.copy.offset",
    "L1.copy.again",
    "L1.memory.free",
    "L1.memory.disjoint",
    "L1.event.query",
)
"""What a test tries of a right runtime; the whole is tried by this command."""
KINDS = ("host", "on the library", "library")


def runtimes() -> dict[str, Any]:
    """The runtimes in Python, by name."""
    for module in ("copies", "devices", "memory", "pinned", "rights"):
        import_module(f"{PACKAGE}.{module}")
    found: dict[str, Any] = import_module(f"{PACKAGE}.zoo").RUNTIMES
    return found


def kinds() -> dict[str, str]:
    """Each by its name: on the host, in Python on the library, or a library."""
    found = {name: KINDS[1] if kind.on_library else KINDS[0] for name, kind in runtimes().items()}
    return found | dict.fromkeys(patches.PATCHES, KINDS[2])


def make_site(folder: Path, *, on_library: bool, library: Path) -> Path:
    """A site folder in which the adapter `wrong` is installed."""
    source, site = folder / "source", folder / "site"
    package = source / PACKAGE
    shutil.copytree(HERE / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    device: dict[str, Any] = {"torch_type": "cpu"}
    lender = ADAPTERS / "cpu/src/vllm_adapter_cpu"
    if on_library:
        lender = ADAPTERS / "sim/src/vllm_adapter_sim"
        device = {"library": "lib/lib.so", "torch_type": "sim"}
        (package / "lib").mkdir()
        shutil.copy(library, package / "lib/lib.so")
    shutil.copytree(lender / "capabilities", package / "capabilities")
    for file in (package / "capabilities").iterdir():
        raw = json.loads(file.read_text("utf-8")) | {"operators": {}}
        file.write_text(json.dumps(raw), "utf-8")
    manifest = {
        "schema": "vllm-adapter/manifest/1.0",
        "name": "wrong",
        "vendor": "Test",
        "api": ">=1.0,<2",
        "device": device,
        "match": [{"machine": ["x86_64", "aarch64"]}],
        "plugin": f"{PACKAGE}.plugin:Plugin",
        "emulated": on_library,
    }
    (package / "adapter.json").write_text(json.dumps(manifest), "utf-8")
    site.mkdir()
    install(source, site, name="vllm-adapter-wrong", entry_name="wrong")
    return site


def _short(message: str) -> str:
    """One line, with files of the tree by their place in it."""
    root = f"{Path(__file__).resolve().parents[2]}/"
    return " ".join(message.replace(root, "").split())[:300]


def judge(file: Path, output: str) -> dict[str, Any]:
    """The verdict that a certificate holds: rules of L1 alone."""
    if not file.is_file():
        return {"verdict": "error", "message": " ".join(output.split())[-300:]}
    rules = json.loads(file.read_text("utf-8"))["rules"]
    bad = [
        (rule["rule"], case)
        for rule in rules
        for case in rule["cases"]
        if rule["rule"].startswith("L1.") and case["outcome"] == "fail"
    ]
    if not bad:
        return {"verdict": "survived"}
    return {
        "verdict": "caught",
        "rules": " ".join(dict.fromkeys(name for name, _ in bad)),
        "cases": "; ".join(case["case"] for _, case in bad[:4]),
        "message": _short(str(bad[0][1].get("message", ""))),
    }


def certified(name: str, kind: str, seed: int | None, libraries: Path) -> dict[str, Any]:
    """One line of the table."""
    libraries.mkdir(parents=True, exist_ok=True)
    if kind == KINDS[2]:
        library = patches.build(libraries, name)
    else:
        library = sim_library.build_sim(libraries)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        variables = {} if kind == KINDS[0] else {"VA_LIBRARY": str(library)}
        if kind == KINDS[2]:
            adapter, site = "sim", folder / "site"
            site.mkdir()
        else:
            adapter = "wrong"
            site = make_site(folder, on_library=kind == KINDS[1], library=library)
            variables["WRONG_RUNTIME"] = name
        words = ["certify", adapter, "--level", "L1", "--output", str(folder / "c.json")]
        words += ["--seed", str(seed)] if seed is not None else []
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-c", CLI, *words],
                env=environment(site) | variables,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            found = judge(folder / "c.json", done.stdout + done.stderr)
        except subprocess.TimeoutExpired:
            found = {"verdict": "error", "message": f"longer than {LIMIT_S} s"}
    seconds = round(time.monotonic() - began, 1)
    return {"name": name, "kind": kind} | found | {"seconds": seconds}


def target_of(kind: str, library: Path, seed: int) -> Any:
    """The target of a run without an installed adapter."""
    from vllm_adapter.contract.capability import load_capability
    from vllm_adapter.contract.manifest import read_manifest
    from vllm_adapter.discovery.adapter import Adapter
    from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
    from vllm_adapter.hostfacts.live import collect
    from vllm_adapter.settings import Settings
    from vllm_adapter_conformance.base.target import Target

    name = "cpu" if kind == KINDS[0] else "sim"
    path = ADAPTERS / name / "src" / f"vllm_adapter_{name}"
    file = next(
        (path / "capabilities").glob(f"{platform.machine()}.json" if name == "cpu" else "*")
    )
    arch = load_capability(file).identity.arch
    devices = tuple(
        DeviceRecord(i, "cpu" if name == "cpu" else f"sim:{i}", name, arch, file)
        for i in range(1 if name == "cpu" else 2)
    )
    record = AdapterRecord(
        name,
        f"vllm-adapter-{name}",
        "1.0",
        path.name,
        Status.OK,
        manifest=read_manifest(path / "adapter.json"),
        path=path,
        devices=devices,
    )
    capability = Adapter(record).capability(devices[0], Settings.from_environ())
    return Target(record, collect(), capability, devices[0], seed)


def look(name: str, kind: str, library: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """What failed, in this process, which ends after that."""
    from vllm_adapter_conformance.base.bench import Bench
    from vllm_adapter_conformance.plan.suite import make_plan
    from vllm_adapter_conformance.rules import registered
    from vllm_adapter_conformance.run.execution import run_item

    if kind != KINDS[0]:
        os.environ["VA_LIBRARY"] = str(library)
    target = target_of(kind, library, given.seed or secrets.randbelow(1 << 31))
    if name in patches.STEPS:
        assert target.capability is not None
        memory = msgspec.structs.replace(
            target.capability.memory, free_step_bytes=patches.STEPS[name]
        )
        raw = msgspec.structs.replace(target.capability, memory=memory)
        target = dataclasses.replace(target, capability=raw)
    bench = Bench(target)
    if kind != KINDS[2]:
        runtime = runtimes()[name]
        made = runtime("sim") if kind == KINDS[1] else runtime()
        bench.held.opened = dataclasses.replace(bench.held.opened, runtime=made)
    rules = tuple(given.rules or ())
    if given.expected:
        rules = tuple(table.QUICK[_group(kind)][name].split()) or RIGHT
    found: list[dict[str, Any]] = []
    failed: set[str] = set()
    where = patches.PATCHES[name][0]["file"] if kind == KINDS[2] else ""
    where = where or runtimes()[name].__module__.rpartition(".")[2]
    first = THEMES.get(where, ())
    # Up to the first failure: what takes longest comes last, for it may not be needed.
    items = sorted(
        make_plan(target, "L1", registered()).items,
        key=lambda item: (_late(item), not item.rule.id.startswith(first)),
    )
    for item in items:
        if item.rule.level != "L1" or failed & set(item.rule.needs):
            continue
        if rules and not item.rule.id.startswith(rules):
            continue
        if given.theme and (_late(item) or not item.rule.id.startswith(first)):
            continue
        result = run_item(bench, item)
        if given.times:
            print(f"{result.seconds:7.2f} {result.item} {result.note}", file=sys.stderr)
        if result.outcome != "pass":
            failed.add(item.rule.id)
            found.append(
                {"rule": item.rule.id, "case": item.case.id, "message": result.message or ""}
            )
            if not given.whole:
                break
    return found


def _group(kind: str) -> str:
    return KINDS[0] if kind == KINDS[0] else KINDS[2]


def _late(item: Any) -> int:
    """The place of an item's rule in LAST, from 1 on; 0: it is quick."""
    exact = (n for n, name in enumerate(LAST, 1) if item.id.startswith(name + "["))
    return next(exact, LAST.index(item.id) + 1 if item.id in LAST else 0)


def looked_at(name: str, kind: str, given: argparse.Namespace, libraries: Path) -> dict[str, Any]:
    """One line of the table, by a forked process."""
    libraries.mkdir(parents=True, exist_ok=True)
    if kind == KINDS[2]:
        library = patches.build(libraries, name)
    else:
        library = sim_library.build_sim(libraries)
    began = time.monotonic()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            os.write(theirs, json.dumps(look(name, kind, library, given)).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(theirs)
    text = b""
    while select.select([ours], [], [], max(0.0, began + LIMIT_S - time.monotonic()))[0]:
        part = os.read(ours, 1 << 16)
        if not part:
            break
        text += part
    os.close(ours)
    late = time.monotonic() - began >= LIMIT_S
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found: list[dict[str, Any]] = json.loads(text) if text else []
    if not text:
        # what `certify` calls a failure: the worker hung, or died
        end = {"verdict": "caught", "rules": "hang" if late else "crash"}
    elif not found:
        end = {"verdict": "survived"}
    else:
        end = {
            "verdict": "caught",
            "rules": " ".join(dict.fromkeys(line["rule"] for line in found)),
            "cases": "; ".join(line["case"] for line in found[:4]),
            "message": _short(found[0]["message"]),
        }
    return {"name": name, "kind": kind} | end | {"seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--part", default="1/1", help="2/4: the second of four shares")
    parser.add_argument("--seed", type=int, help="of the suite's draws")
    parser.add_argument("--theme", action="store_true", help="only the quick rules of its fault")
    parser.add_argument("--expected", action="store_true", help="only the rule of seen_by.toml")
    parser.add_argument("--certify", action="store_true", help="by the command, as installed")
    parser.add_argument("--whole", action="store_true", help="go on after a first failure")
    parser.add_argument("--times", action="store_true", help="print what each case took")
    parser.add_argument("--rules", nargs="*", help="only these, by the beginning of their ids")
    parser.add_argument("--output", type=Path, default=Path("runtimes.csv"))
    parser.add_argument("--resume", action="store_true", help="keep the table's lines")
    parser.add_argument("--libraries", type=Path, default=Path(tempfile.gettempdir()) / "va-wrong")
    given = parser.parse_args()
    known = kinds()
    if unknown := set(given.names) - known.keys():
        parser.error(f"no runtime is named {', '.join(sorted(unknown))}")
    if not (given.names or given.all):
        parser.error("name runtimes, or --all")
    part, parts = (int(number) for number in given.part.split("/"))
    chosen = [name for name in known if not given.names or name in given.names]
    chosen.sort(key=lambda name: name.startswith("right_"))  # these run to the end
    chosen = chosen[part - 1 :: parts]
    resumed = given.resume and given.output.is_file()
    done = set()
    if resumed:
        with given.output.open(newline="", encoding="utf-8") as file:
            done = {line["name"] for line in csv.DictReader(file)}
    if not given.certify:  # once, for all children
        import_module("vllm_adapter.engine.device")
        import_module("vllm_adapter_conformance.run.execution")
        import_module("vllm_adapter_conformance.rules").registered()
        import_module("vllm_adapter.engine.runtime.device_from_clib")
        import_module("torch._dynamo")
        import_module("numpy.random")
    wrong = 0
    with given.output.open("a" if resumed else "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        if not resumed:
            table.writeheader()
        for name in chosen:
            if name in done:
                continue
            if given.certify:
                line = certified(name, known[name], given.seed, given.libraries)
            else:
                line = looked_at(name, known[name], given, given.libraries)
            table.writerow(line)
            file.flush()
            good = line["verdict"] == ("survived" if name.startswith("right_") else "caught")
            wrong += not good
            print("ok " if good else "BAD", *(line.get(c, "") for c in COLUMNS), flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
