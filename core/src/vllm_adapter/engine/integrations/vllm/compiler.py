"""An adapter's compiler, as vLLM's own compilation of pieces wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule
from vllm.compilation.compiler_interface import CompilerInterface
from vllm.utils.import_utils import resolve_obj_by_qualname

from vllm_adapter.engine.integrations.vllm import policy


class AdapterCompiler(CompilerInterface):
    """Calls the adapter's `(graph_module, inputs)` for each piece; keeps nothing between runs."""

    name = "vllm_adapter"

    def compile(
        self,
        graph: GraphModule,
        example_inputs: list[Any],
        *args: object,
        **kwargs: object,
    ) -> tuple[Callable[..., Any], None]:
        """The compiled piece, and no handle: vLLM's cache cannot load it again."""
        chosen = policy.in_use()
        assert chosen is not None and chosen.compiler is not None, "only then are we its compiler"
        compiled = resolve_obj_by_qualname(chosen.compiler)(graph, example_inputs)
        return compiled, None
