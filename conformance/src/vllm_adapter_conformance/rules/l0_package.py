"""L0: the package as it is installed. Nothing here needs torch or a device."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from vllm_adapter.contract.dotted import may_implement
from vllm_adapter.contract.hooks import not_called, only_not_called
from vllm_adapter.discovery.adapter import one_line
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import (
    Case,
    Failure,
    NotDeclaredCase,
    Observation,
    once,
    rule,
)
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules._inspection import inspect

NO_PLUGIN: Final = "the manifest names no plug-in"
_LIBRARY: Final = re.compile(
    r"(?:^|[\s:=,;])(/(?:[^/\s:]+/)*(?:[^/\s:]+\.(?:so(?:\.\d+)*|dylib|dll)|lib(?:64)?(?:/[^\s:]*)?))"
    r"(?=$|[\s:,;])"
)
"""An absolute path of a shared library, or of a folder named lib or lib64."""


def package(target: Target) -> Path:
    """The adapter's package folder; a target always has one."""
    assert target.record.path is not None
    return target.record.path


def if_plugin(target: Target) -> Iterator[Case | NotDeclaredCase]:
    """One case where the manifest names a plug-in."""
    manifest = target.record.manifest
    if manifest is None or manifest.plugin is None:
        yield NotDeclaredCase("plug-in", "/plugin", NO_PLUGIN)
    else:
        yield Case("plug-in", {"plugin": manifest.plugin})


@rule(
    "L0.manifest.schema",
    summary="adapter.json keeps its schema, and core's reader agrees",
    why="The manifest is what `list`, `doctor` and vLLM's broker read without importing the "
    "adapter. With a fault in it the adapter is listed as broken, and its devices stay unused. "
    "Run `vllm-adapter validate` on the file: it names every fault with the field's meaning. If "
    "the schema and core's reader disagree, core has the fault: please report it.",
    cases=once,
)
def check_manifest_schema(bench: Bench, case: Case) -> None:
    """Holds the file against the JSON Schema and against the reader of discovery."""
    from vllm_adapter.cli.checks import check_document
    from vllm_adapter.contract.manifest import check_torch_names, parse_manifest
    from vllm_adapter.contract.reading import Fault
    from vllm_adapter.files import read_json

    file = package(bench.target) / "adapter.json"
    raw = read_json(file, "the manifest")
    by_schema, by_reader = check_document(raw, str(file)).faults, []
    try:
        parse_manifest(raw)
        by_reader += check_torch_names(raw)
    except Fault as fault:
        by_reader.append(str(fault))
    if bool(by_schema) != bool(by_reader):
        raise Failure(
            "the schema and core's reader of the manifest to agree",
            f"by schema: {[str(f) for f in by_schema]}; by the reader: {by_reader}",
        )
    if by_schema:
        raise Failure(
            f"{file.name} to keep its schema",
            f"{len(by_schema)} fault(s), first {by_schema[0]}",
            detail="\n".join(map(str, by_schema)),
        )


@rule(
    "L0.manifest.name",
    summary="the entry point and the manifest give one name",
    why="The name is what users type, and becomes the name of the adapter's operator overloads. "
    "Under two names the adapter is listed as broken. Write `NAME = 'your_package'` in the "
    "entry-point group `vllm_adapter.adapters`, with the name that the manifest has.",
    cases=once,
    needs=("L0.manifest.schema",),
)
def check_manifest_name(bench: Bench, case: Case) -> None:
    """Compares the entry point with the manifest."""
    record = bench.target.record
    raw = json.loads((package(bench.target) / "adapter.json").read_bytes())
    if raw["name"] != record.name:
        raise Failure(
            f"the manifest to have the entry point's name {record.name}", repr(raw["name"])
        )


@rule(
    "L0.package.paths",
    summary="no JSON or Python file of the package names a library by an absolute path",
    why="An absolute path of a library is right on the author's machine only: elsewhere the "
    "adapter fails, or loads another version that happens to lie there. Name the file alone and "
    "let the loader find it, ship it inside the package, or read the vendor's own variable.",
    cases=once,
)
def check_paths(bench: Bench, case: Case) -> Observation:
    """Looks at every string of every JSON and Python file."""
    folder, looked = package(bench.target), 0
    for file in sorted(folder.rglob("*")):
        if file.suffix not in (".json", ".py") or not file.is_file():
            continue
        looked += 1
        try:
            strings = list(_strings(file))
        except (ValueError, SyntaxError, RecursionError) as error:
            name = file.relative_to(folder)
            raise Failure("files that can be parsed", f"{name}: {one_line(error)}") from error
        for line, text in strings:
            found = _LIBRARY.search(text)
            if found:
                place = f"{file.relative_to(folder)}:{line}" if line else file.relative_to(folder)
                raise Failure("no absolute path of a library", f"{found[1]} in {place}")
    return Observation(note=f"{looked} files")


def _strings(file: Path) -> Iterator[tuple[int, str]]:
    """The string values of a file with their lines (0: unknown); docstrings are prose.

    Raises:
        ValueError, SyntaxError, RecursionError: the file cannot be parsed.
    """
    if file.suffix == ".json":
        yield from ((0, text) for text in _json_strings(json.loads(file.read_bytes())))
        return
    tree = ast.parse(file.read_bytes(), str(file))
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in prose:
                yield node.lineno, node.value


def _json_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key != "reference":  # prose: where a figure is from
                yield from _json_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _json_strings(item)


def _importables(target: Target) -> Iterator[Case | NotDeclaredCase]:
    yield Case("package", {"module": target.record.package})
    manifest = target.record.manifest
    if manifest is None or manifest.plugin is None:
        yield NotDeclaredCase("plug-in", "/plugin", NO_PLUGIN)
    else:
        yield Case("plug-in", {"module": manifest.plugin.partition(":")[0]})


@rule(
    "L0.package.imports",
    summary="importing the package or its plug-in loads neither torch nor the vendor's SDK",
    why="Core imports plug-ins to probe them, on boxes that have none of the hardware, in "
    "commands that should answer at once. A plug-in that pulls in torch or the vendor's stack "
    "makes all of them slow, and broken where the stack is. Import those inside the hooks that "
    "need them, and keep kernels in a module of their own.",
    cases=_importables,
    needs=("L0.manifest.schema",),
)
def check_imports(bench: Bench, case: Case) -> None:
    """Imports in a fresh process and looks at sys.modules."""
    manifest = bench.target.record.manifest
    section = manifest.device if manifest else None
    forbidden = ["torch", "transformers", "vllm"]
    if section is not None and section.torch_module:
        forbidden.append(section.torch_module)
    module = case.params["module"]
    loaded = inspect("imports", module=module, forbidden=forbidden)["loaded"]
    if loaded:
        raise Failure(
            f"importing {module} to load none of {', '.join(forbidden)}",
            f"it loads {', '.join(loaded)}",
        )


@rule(
    "L0.package.hooks",
    summary="the plug-in can be made and registered, its hooks are known, and one is called",
    why="A misspelt hook, or a method that lacks @hookimpl, is never called, and what it should "
    "have said is missing in silence. Import `hookimpl` from vllm_adapter.contract.hookspecs, and "
    "compare names and arguments with AdapterSpec there. The note names hooks that this release "
    "does not call yet; a plug-in of such hooks alone does nothing, and its certificate would say "
    "nothing.",
    cases=if_plugin,
    needs=("L0.manifest.schema",),
)
def check_hooks(bench: Bench, case: Case) -> Observation:
    """Registers the plug-in with pluggy in a fresh process."""
    answer = inspect("hooks", plugin=case.params["plugin"])
    if answer["unmarked"]:
        raise Failure(
            "every method that is named like a hook to be marked with @hookimpl",
            f"{', '.join(answer['unmarked'])} without it",
        )
    hooks, waiting = answer["hooks"], not_called(answer["hooks"])
    if only_not_called(hooks):
        raise Failure("a hook that this release calls", f"{waiting}")
    return Observation(note="; ".join(filter(None, (_listed(hooks), waiting))))


def _listed(hooks: list[str]) -> str:
    return f"hooks: {', '.join(hooks) or 'none'}"


def _extra_providers(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for case in if_plugin(target):
        if isinstance(case, NotDeclaredCase):
            yield case
            continue
        if not may_implement(case.params["plugin"], "implementations"):
            reason = "the plug-in has no hook `implementations`"
            yield NotDeclaredCase(case.id, "/plugin", reason)
        elif target.host.torch is None:
            yield NotDeclaredCase(case.id, "/plugin", "torch is not installed here")
        else:
            yield case


@rule(
    "L0.package.implementations",
    summary="functions marked with @implementation declare what the descriptor declares",
    why="The descriptor is the one declaration of coverage: cases, documents and the planner are "
    "made from it. A function whose mark says something else would be bound for cases that "
    "nobody tests. Make both say the same, or name the function in only one place.",
    cases=_extra_providers,
    needs=("L0.package.hooks", "L0.descriptor.schema"),
)
def check_implementations(bench: Bench, case: Case) -> Observation:
    """Compares each marked function with the descriptor entries that name it."""
    given = inspect("implementations", plugin=case.params["plugin"])["implementations"]
    for function in given or ():
        if function["entry"] is None:
            raise Failure("functions marked with @implementation", function["name"])
        declared = list(_declarations(bench.target, function["op"], function["name"]))
        if declared and function["entry"] not in declared:
            raise Failure(
                f"the mark of {function['name']} to say what the descriptor says: {declared[0]}",
                str(function["entry"]),
            )
    return Observation(note=f"{len(given or ())} functions")


def _declarations(target: Target, op: str, run: str) -> Iterator[dict[str, Any]]:
    from vllm_adapter.contract.capability import load_capability

    assert target.record.manifest is not None
    for file in target.record.manifest.capability_files():
        for entry in load_capability(file).operators.get(op, ()):
            if entry.run == run:
                limits = {
                    k: list(v) if isinstance(v, tuple) else dict(v)
                    for k, v in entry.limits.items()
                }
                yield {
                    "dtypes": sorted(entry.dtypes),
                    "limits": limits,
                    "form": entry.form,
                    "variant": entry.variant,
                }


def _requirements(target: Target) -> Iterator[Case | NotDeclaredCase]:
    yield Case("core")
    manifest = target.record.manifest
    section = manifest.device if manifest else None
    if section is not None and section.torch_module:
        yield Case("torch", {"module": section.torch_module})
    else:
        yield NotDeclaredCase(
            "torch", "/device/torch_module", "the chip uses stock torch, or none"
        )


@rule(
    "L0.package.requires",
    summary="the distribution needs core, and no stock torch where the vendor has his own",
    why="Without core among its requirements the adapter cannot be installed alone. With stock "
    "torch among them, `pip install` puts the wrong build onto the vendor's box and breaks what "
    "worked. Leave torch to the vendor's own package, which the manifest's torch_module names.",
    cases=_requirements,
)
def check_requires(bench: Bench, case: Case) -> None:
    """Reads Requires-Dist."""
    import importlib_metadata
    from packaging.requirements import Requirement

    name = bench.target.record.distribution
    lines = importlib_metadata.distribution(name).requires or []
    hard = [r for r in map(Requirement, lines) if "extra" not in str(r.marker or "")]
    by_name = {re.sub(r"[-_.]+", "-", r.name).lower(): r for r in hard}
    core = by_name.get("vllm-adapter-core")
    if case.id == "core":
        if core is None:
            raise Failure(f"{name} to require vllm-adapter-core", ", ".join(lines) or "nothing")
        return
    guilty = by_name.get("torch") or (
        core if core is not None and "torch" in core.extras else None
    )
    if guilty is not None:
        raise Failure(
            f"no stock torch, since the device needs {case.params['module']}", str(guilty)
        )
