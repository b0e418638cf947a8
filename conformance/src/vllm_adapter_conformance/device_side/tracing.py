"""Compiling without a compiler, seeing which operators ran, torch's own check of an operator."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from vllm_adapter.engine.device_process.held import HeldDevice

Fn = Callable[..., Any]
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
    from torch._dynamo.backends.common import aot_autograd  # slow, and for this process alone

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
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Names(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Names():  # type: ignore[no-untyped-call] # torch's
        yield names


def trace(device: HeldDevice, function: int) -> dict[str, int]:
    """Numbers of a function's compiled form, and of its graphs, for `operators`."""
    run, graphs = compiled(device.kept(function))
    return {"function": device.keep(run), "graphs": device.keep(graphs)}


def operators(device: HeldDevice, graphs: int) -> list[str]:
    """Our overloads in the graphs that a compiled function was turned into."""
    found: Graphs = device.kept(graphs)
    return found.operators()


def run_named(device: HeldDevice, call: int, function: int) -> dict[str, Any]:
    """As `HeldDevice.do_run`, with the names of all operators that ran."""
    with dispatched() as names:
        found = device.do_run(call, function)
    return found | {"names": names}


def opcheck(
    device: HeldDevice, call: int, packet: str | None, binding: int, utilities: Sequence[str]
) -> dict[str, str]:
    """What torch.library.opcheck says of an operator's default overload, or of what is bound."""
    if packet is not None:
        overload = getattr(torch.ops.vllm_adapter, packet).default
    else:
        overload = device.kept(binding).run
    try:
        torch.library.opcheck(
            overload, tuple(device.kept(call).arguments), test_utils=tuple(utilities)
        )
    except Exception as error:
        return {"overload": str(overload), "kind": type(error).__name__, "error": str(error)}
    return {"overload": str(overload)}
