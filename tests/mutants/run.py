"""Certifies each mutant, and each right kernel, in an adapter of its own: who is caught?

    OMP_NUM_THREADS=1 python tests/mutants/run.py --all --output table.csv
    OMP_NUM_THREADS=1 python tests/mutants/run.py --set second --all --output second.csv
    OMP_NUM_THREADS=1 python tests/mutants/run.py NAME ... [--op OP] [--family FAMILY] [--seed S]

The adapter is the CPU's, with one operator run by the kernel under test; of the suite, only the
cases whose names hold that operator run, up to the first that fails. `caught` names its rule. The
table is written line by line, and names that it has already are left out with --resume.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import importlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from fake_dist import environment, install  # noqa: E402
from vllm_adapter_mutant.zoo import FAMILIES, RIGHT, Kernel  # noqa: E402

SETS = {"first": "vllm_adapter_mutant", "second": "vllm_adapter_mutant_second"}
ADAPTER = "mutant"
CPU = HERE.parents[1] / "adapters/cpu/src/vllm_adapter_cpu/capabilities"
COLUMNS = ("name", "operator", "family", "verdict", "rules", "cases", "run", "seconds", "message")
CERTIFICATE, JUNIT = "certificate.json", "junit.xml"
CLI = "import sys; from vllm_adapter.cli.main import main; sys.exit(main())"

OTHERS = {
    "rms_norm": " and not fused_add_rms_norm",
    "gelu": " and not gelu_and_mul",
    "attention": " and not paged_attention",
}
"""Of operators whose name is a part of another's."""

LATER = ("kv_dtype",)
"""Facts that the CPU's kernels had not when these were frozen."""

ALSO = {
    "reshape_and_cache": " or kv_cache",
    "paged_attention": " or kv_cache",
}
"""Rules of several operators at once."""


def selection(op: str) -> str:
    """pytest's expression for the cases of an operator, L0's left out."""
    return f"L2 and ({op}{OTHERS.get(op, '')}{ALSO.get(op, '')})"


def descriptor(raw: dict[str, Any], kernel: Kernel) -> dict[str, Any]:
    """The CPU's descriptor with the kernel in the place of all that run its operator."""
    raw = copy.deepcopy(raw)
    entries = raw["operators"][kernel.op]
    entries = entries if isinstance(entries, list) else [entries]
    served = next(e for e in reversed(entries) if e["support"] == "full")
    fresh = {k: v for k, v in served.items() if k not in ("variant", "plan")}
    extra = dict(kernel.entry)
    limits = {n: limit for n, limit in fresh.get("limits", {}).items() if n not in LATER}
    limits |= extra.pop("limits", {})
    fresh |= {"form": "kernel", "run": kernel.run} | extra
    fresh.pop("limits", None)
    if limits:
        fresh["limits"] = limits
    refused = [
        e for e in entries if e["support"] != "full" and not e.get("limits", {}).keys() & limits
    ]
    raw["operators"][kernel.op] = [fresh, *refused] if refused else fresh
    return raw


def make_site(folder: Path, kernel: Kernel, name: str) -> Path:
    """A site folder in which the adapter is installed."""
    source, site = folder / "source", folder / "site"
    package = source / name
    shutil.copytree(HERE / name, package, ignore=shutil.ignore_patterns("__pycache__"))
    manifest = {
        "schema": "vllm-adapter/manifest/1.0",
        "name": ADAPTER,
        "vendor": "Test",
        "api": ">=1.0,<2",
        "device": {"torch_type": "cpu"},
        "match": [{"machine": ["x86_64", "aarch64"]}],
    }
    (package / "adapter.json").write_text(json.dumps(manifest), "utf-8")
    (package / "capabilities").mkdir()
    for file in CPU.glob("*.json"):
        made = descriptor(json.loads(file.read_text("utf-8")), kernel)
        (package / "capabilities" / file.name).write_text(json.dumps(made, indent=1), "utf-8")
    site.mkdir()
    if name != SETS["first"]:  # whose plain kernels the others use
        shutil.copytree(HERE / SETS["first"], site / SETS["first"])
    install(source, site, name=f"vllm-adapter-{ADAPTER}", entry_name=ADAPTER)
    return site


def command(kernel: Kernel, given: argparse.Namespace, folder: Path) -> list[str]:
    """pytest as docs/conformance.md has it; with --case, `certify`."""
    if given.case:
        pattern = given.case.format(op=kernel.op)
        words = ["-c", CLI, "certify", ADAPTER, "--case", pattern]
        words += ["--json", *([] if given.whole else ["--fail-fast"])]
    else:
        words = ["-m", "pytest", "-q", "--pyargs", "vllm_adapter_conformance"]
        words += ["--adapter", ADAPTER, "--certificate", str(folder / CERTIFICATE)]
        words += ["-k", selection(kernel.op), f"--junitxml={folder / JUNIT}"]
        words += [] if given.whole else ["-x"]
    words += ["--level", given.level]
    return [sys.executable, *words, *(["--seed", str(given.seed)] if given.seed else [])]


def outcomes(folder: Path, output: str) -> list[tuple[str, str | None]]:
    """Each case that ran, and its message if it failed."""
    with contextlib.suppress(ValueError):  # pytest's words are no JSON
        return [
            (item["item"], item["message"] if item["outcome"] == "fail" else None)
            for item in json.loads(output)["items"]
            if item["outcome"] in ("pass", "fail")
        ]
    if (folder / JUNIT).is_file():
        found = []
        for case in ElementTree.parse(folder / JUNIT).iter("testcase"):
            bad = next((part for part in case if part.tag in ("failure", "error")), None)
            told = None if bad is None else f"{bad.get('message') or ''} {bad.text or ''}"
            found.append((case.get("name", ""), told))
        return found
    return []


def judge(folder: Path, output: str, errors: str) -> dict[str, Any]:
    """The verdict of a run."""
    ran = outcomes(folder, output)
    bad = [(case, told) for case, told in ran if told is not None]
    if not ran:
        return {
            "verdict": "error",
            "message": " ".join((output + errors).split())[-300:],
            "run": 0,
        }
    if not bad:
        return {"verdict": "survived", "run": len(ran)}
    return {
        "verdict": "caught",
        "rules": " ".join(dict.fromkeys(case.partition("[")[0] for case, _ in bad)),
        "cases": " ".join(case.partition("[")[2].rstrip("]") for case, _ in bad[:3]),
        "run": len(ran),
        "message": " ".join((bad[0][1] or "").split())[:300],
    }


def certified(kernel: Kernel, given: argparse.Namespace) -> dict[str, Any]:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        site = make_site(folder, kernel, SETS[given.set])
        began = time.monotonic()
        try:
            done = subprocess.run(
                command(kernel, given, folder),
                env=environment(site),
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=given.limit,
            )
            found = judge(folder, done.stdout, done.stderr)
        except subprocess.TimeoutExpired:
            found = {"verdict": "error", "message": f"longer than {given.limit:.0f} s"}
        seconds = round(time.monotonic() - began, 1)
    line = {"name": kernel.name, "operator": kernel.op, "family": kernel.family}
    return line | found | {"seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="kernels by name")
    parser.add_argument("--set", choices=SETS, default="first")
    parser.add_argument("--all", action="store_true", help="all mutants and right kernels")
    parser.add_argument("--family", choices=[*FAMILIES, RIGHT])
    parser.add_argument("--op", help="those of one operator")
    parser.add_argument("--part", default="1/1", help="2/4: the second of four shares")
    parser.add_argument("--level", default="L2")
    parser.add_argument("--seed", type=int, help="of the suite's samples")
    parser.add_argument("--whole", action="store_true", help="go on after a first failure")
    parser.add_argument(
        "--case", help="run `certify --case` with this pattern, in which {op} is the operator"
    )
    parser.add_argument("--limit", type=float, default=900, help="seconds of one kernel")
    parser.add_argument("--output", type=Path, default=Path("mutants.csv"))
    parser.add_argument("--resume", action="store_true", help="keep the table's lines")
    given = parser.parse_args()
    kernels = importlib.import_module(f"{SETS[given.set]}.all").KERNELS
    if unknown := set(given.names) - kernels.keys():
        parser.error(f"no kernel is named {', '.join(sorted(unknown))}")
    if not (given.names or given.all or given.family or given.op):
        parser.error("name kernels, or --all, --family or --op")
    chosen = [
        kernel
        for kernel in kernels.values()
        if (not given.names or kernel.name in given.names)
        and given.family in (None, kernel.family)
        and given.op in (None, kernel.op)
    ]
    part, parts = (int(number) for number in given.part.split("/"))
    chosen = chosen[part - 1 :: parts]
    resumed = given.resume and given.output.is_file()
    done = set()
    if resumed:
        with given.output.open(newline="", encoding="utf-8") as file:
            done = {line["name"] for line in csv.DictReader(file)}
    wrong = 0
    with given.output.open("a" if resumed else "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        if not resumed:
            table.writeheader()
        for kernel in chosen:
            if kernel.name in done:
                continue
            line = certified(kernel, given)
            table.writerow(line)
            file.flush()
            good = line["verdict"] == ("survived" if kernel.family == RIGHT else "caught")
            wrong += not good
            print("ok " if good else "BAD", *(line.get(c, "") for c in COLUMNS[:8]), flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
