"""Compiling without a compiler, and seeing which operators ran. Imports torch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_adapter_conformance.base.rule import Failure

Fn = Callable[..., Any]
CLOSE: Final = 8.0
"""Functionalisation may hand a kernel other strides: a few roundings, where eager is exact."""
_OVERLOAD: Final = re.compile(r"\bvllm_adapter\.(\w+)\.(\w+)")


@dataclass
class Graphs:
    """The graphs that a compiled function was turned into, in order."""

    modules: list[GraphModule] = field(default_factory=list)

    def operators(self) -> list[str]:
        """Our overloads that they call, such as "vllm_adapter.rms_norm.acme"."""
        text = "\n".join(str(module.graph) for module in self.modules)
        return [found.group() for found in _OVERLOAD.finditer(text)]


def compiled(function: Fn) -> tuple[Fn, Graphs]:
    """`function` under torch.compile without a graph break, its graphs run as they are.

    As backend="aot_eager", which does not show them. Compiled code of before is forgotten.
    """
    torch._dynamo.reset()
    graphs = Graphs()

    def keep(module: GraphModule, inputs: Any) -> Fn:
        graphs.modules.append(module)
        return module.forward

    backend = aot_autograd(fw_compiler=keep)
    return torch.compile(lambda *args: function(*args), fullgraph=True, backend=backend), graphs


@contextlib.contextmanager
def dispatched() -> Iterator[list[str]]:
    """The names of all operators that are called inside."""
    names: list[str] = []

    class Names(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Names():  # type: ignore[no-untyped-call] # torch's
        yield names


def distance(where: str, got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, in roundings of the largest value.

    got, want: [...], one shape; compared in float64 on the host.

    Raises:
        Failure: more than `CLOSE`, or not a number.
    """
    # On the host: a device need not have float64, nor kernels for what the suite alone does.
    ours, theirs = got.cpu().double(), want.cpu().double()
    largest = float(theirs.abs().max()) * torch.finfo(want.dtype).eps
    seen = float((ours - theirs).abs().max()) / largest
    if not seen <= CLOSE:
        raise Failure(
            f"compiled to equal eager in {where}", f"a difference of {seen:.3g} roundings"
        )
    return seen
