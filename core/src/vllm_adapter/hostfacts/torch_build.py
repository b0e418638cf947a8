"""What the installed torch was built for, read from its version.py without importing torch."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from vllm_adapter.hostfacts.facts import TorchBuild


def installed_torch_build() -> TorchBuild | None:
    """The build of the torch that `import torch` would find; None if it would find none.

    A torch whose version.py cannot be read gives a TorchBuild of Nones.
    """
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # a stand-in in sys.modules that has no spec
        return None
    if spec is None or not spec.origin:  # no origin: a folder that happens to be named torch
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text("utf-8", "replace")
    except (OSError, ValueError):
        return TorchBuild()
    return parse_version_py(text)


def parse_version_py(text: str) -> TorchBuild:
    """Reads the literal assignments of a torch/version.py; text that is no Python gives Nones."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return TorchBuild()
    found: dict[str, str] = {}
    for statement in body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found.update(dict.fromkeys(names, statement.value.value))
    version = found.get("__version__")
    return TorchBuild(
        version=version,
        local=(version or "").partition("+")[2] or None,
        cuda=found.get("cuda"),
        hip=found.get("hip"),
        xpu=found.get("xpu"),
    )
