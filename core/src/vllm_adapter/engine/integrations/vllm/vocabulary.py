"""vLLM's table of words and its head, by the operators `embedding` and `linear`.

A model may use one weight for both, and vLLM reads the head's weight past its method (a head of
another dtype, drafts), so that the weight stays as it was loaded; what `linear` prepares of it
stands beside it.

# upstream: vllm@0.32 model_executor/layers/vocab_parallel_embedding.py:40, logits_processor.py:131
"""

from __future__ import annotations

from typing import Any, Final

import torch
from vllm.model_executor import custom_op
from vllm.model_executor.layers import vocab_parallel_embedding as theirs

from vllm_adapter.engine.integrations.vllm import policy
from vllm_adapter.engine.integrations.vllm.linear import leave_quantised
from vllm_adapter.engine.integrations.vllm.replaced import replace as put
from vllm_adapter.engine.integrations.vllm.replaced import subclass
from vllm_adapter.engine.ops.bind import Binding
from vllm_adapter.engine.ops.spec import Facts

CLASSES: Final = (theirs.VocabParallelEmbedding, theirs.ParallelLMHead)
_PREPARED: Final = "_vllm_adapter_prepared"


class PortableEmbeddingMethod(theirs.UnquantizedEmbeddingMethod):
    """Rows of the table, and the logits; each is vLLM's own where its operator does not bind.

    A table that is no head binds `linear` when it is first used as one: most never are.
    """

    def __init__(self, facts: Facts, rows: Binding | None, head: Binding | None) -> None:
        super().__init__()
        self._facts, self._head = facts, head
        self._rows = None if rows is None else policy.run_of(rows)
        self._run = None if head is None else policy.run_of(head)
        self._is_bound = False

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """The load moment of a head."""
        if self._head is not None:
            self._prepare(layer)
        elif isinstance(layer, theirs.ParallelLMHead):
            super().process_weights_after_loading(layer)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states[T, in] -> logits[T, words]."""
        if not (self._is_bound or isinstance(layer, theirs.ParallelLMHead)):
            self._bind(layer)
        if self._run is None or (bias is not None) != self._facts["bias"]:
            kept: torch.Tensor = super().apply(layer, x, bias)
            return kept
        (weight,) = getattr(layer, _PREPARED)
        result: torch.Tensor = self._run(x, weight, bias, self._facts["out_features"])
        return result

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """Ids[T] -> rows[T, width]."""
        if self._rows is None:
            kept: torch.Tensor = super().embedding(layer, input_)
            return kept
        rows: torch.Tensor = self._rows(input_, layer.weight)
        return rows

    def _bind(self, layer: torch.nn.Module) -> None:
        self._is_bound = True
        self._head = policy.bound("linear", self._facts)
        if self._head is None:
            super().process_weights_after_loading(layer)
        else:
            self._run = policy.run_of(self._head)
            self._prepare(layer)

    def _prepare(self, layer: torch.nn.Module) -> None:
        assert self._head is not None, "prepared only where it binds"
        weight: Any = layer.weight.data
        # In a tuple: torch would register a tensor, and vLLM would look for it in a checkpoint.
        setattr(layer, _PREPARED, (self._head.prepare_weights(weight),))


def replace() -> None:
    """Has vLLM make our classes, if the policy concerns one of the operators."""
    if not (policy.concerns("linear") or policy.concerns("embedding")):
        return
    for base in CLASSES:
        put(custom_op, "PluggableLayer", base, subclass(base, {"__init__": _init_of(base)}))


def _init_of(base: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        if type(self.quant_method) is theirs.UnquantizedEmbeddingMethod:
            _adopt(self)
        else:
            leave_quantised(self)

    return __init__


def _adopt(layer: Any) -> None:
    out_features, in_features = layer.weight.shape
    dtype = str(layer.params_dtype).removeprefix("torch.")
    facts: Facts = {
        "dtype": dtype,
        "in_features": in_features,
        "out_features": out_features,
        "bias": bool(getattr(layer, "has_bias", False)),
    }
    rows = head = None
    if isinstance(layer, theirs.ParallelLMHead):
        head = policy.bound("linear", facts)
        is_ours = head is not None
    else:
        rows = policy.bound("embedding", {"dtype": dtype, "hidden": in_features})
        is_ours = rows is not None or policy.concerns("linear")
    if is_ours:
        layer.quant_method = PortableEmbeddingMethod(facts, rows, head)
