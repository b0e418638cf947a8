"""Writes core/api.txt: the public names of vllm_adapter with their signatures, read from source.

`python scripts/make_api.py --check` writes nothing and exits 1 if the file is out of date. Its
change is a change for everybody's adapter, and needs a fragment `changes/<issue>.api.md`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "core/src"
PAGE = ROOT / "core/api.txt"
PACKAGE = "vllm_adapter"
MAKE = "python scripts/make_api.py"


def file_of(module: str) -> Path:
    """The source of a module of core."""
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def tree_of(module: str) -> ast.Module:
    """The parsed source of a module of core."""
    return ast.parse(file_of(module).read_text(encoding="utf-8"))


def value_of(module: str, name: str) -> ast.expr:
    """The value that a module's source gives to a name."""
    for node in tree_of(module).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = getattr(node, "value", None)
            assert isinstance(value, ast.expr)
            return value
    raise LookupError(f"{module} gives no value to {name}")


def public_names() -> list[str]:
    """`__all__` of the package."""
    names: list[str] = ast.literal_eval(value_of(PACKAGE, "__all__"))
    return names


def homes() -> dict[str, str]:
    """The module that defines each public name."""
    table: dict[str, tuple[str, ...]] = ast.literal_eval(value_of(PACKAGE, "_HOMES"))
    return {name: f"{PACKAGE}.{home}" for home, names in table.items() for name in names}


def signature(node: ast.FunctionDef) -> str:
    """`name(arguments) -> type`."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def members(node: ast.ClassDef) -> Iterator[str]:
    """A line for each public member that a class defines itself."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            if item.name.startswith("_") and item.name != "__init__":
                continue
            marks = [ast.unparse(mark).partition("(")[0] for mark in item.decorator_list]
            yield " ".join([*(f"@{mark}" for mark in marks), signature(item)])
        elif isinstance(item, ast.AnnAssign | ast.Assign):
            target = item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
            if not ast.unparse(target).startswith("_"):
                yield ast.unparse(item)


def described(name: str, module: str) -> Iterator[str]:
    """The lines of one public name."""
    body = tree_of(module).body
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            yield signature(node)
            return
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = [ast.unparse(base) for base in node.bases]
            yield f"class {name}({', '.join(bases)})" if bases else f"class {name}"
            yield from (f"    {line}" for line in members(node))
            return
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            yield ast.unparse(node)
            return
        if isinstance(node, ast.ImportFrom) and any(one.name == name for one in node.names):
            yield from described(name, str(node.module))
            return
    yield f"module {name}"
    inside = f"{module}.{name}"
    for one in ast.literal_eval(value_of(inside, "__all__")):
        yield from (f"    {line}" for line in described(one, inside))


def page() -> str:
    """The whole text."""
    where = homes()
    lines = [f"# The public names of {PACKAGE}, made by `{MAKE}`."]
    for name in public_names():
        lines += described(name, where[name])
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the file, or with --check compares it."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(
        "core/api.txt is out of date: a public name or its signature changed.\n"
        f"Run `{MAKE}`, and say what changes for adapters in changes/<issue>.api.md."
    )
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
