"""L0: the adapter's Python registers nothing with torch for core's operators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, Observation, once, rule
from vllm_adapter_conformance.rules.l0_package import package

NAMESPACE: Final = "vllm_adapter"
_REGISTER: Final = frozenset(
    "Library custom_op define get_ctx impl impl_abstract register_autocast register_autograd "
    "register_fake register_kernel register_torch_dispatch register_vmap triton_op".split()
)
"""Functions and classes of torch.library that take an operator's name or a namespace."""


@rule(
    "L0.package.registrations",
    summary="no file of the package registers anything in torch's namespace vllm_adapter",
    why="Core registers each kernel that a descriptor names, once, as the overload of its "
    "adapter. Whoever loads a torch.library of that namespace himself can put his function under "
    "another adapter's name, or core's, and torch runs it in silence. Name the kernel in the "
    "descriptor as `run`, and keep operators of your own in a namespace of your own.",
    cases=once,
)
def check_registrations(bench: Bench, case: Case) -> Observation:
    """Reads the source of every module; nothing is imported."""
    files = sorted(package(bench.target).rglob("*.py"))
    for file in files:
        for line, text in _registrations(file):
            raise Failure(
                f"no call that registers in the namespace {NAMESPACE}",
                f"{file.relative_to(package(bench.target))}:{line}: {text}",
            )
    return Observation(note=f"{len(files)} files")


def _registrations(file: Path) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # L0.package.paths and the import say so
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name not in _REGISTER:
            continue
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                if value.value.partition("::")[0] == NAMESPACE:
                    yield node.lineno, f"{name}({value.value!r}, ...)"
                    break
