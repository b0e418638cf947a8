"""vLLM's linear layers, whose method is ours where the layer is not quantised and binds."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor import custom_op
from vllm.model_executor.layers import linear as theirs

from vllm_adapter.engine.integrations.vllm import policy
from vllm_adapter.engine.integrations.vllm.replaced import replace as put
from vllm_adapter.engine.integrations.vllm.replaced import subclass
from vllm_adapter.engine.ops.bind import Binding
from vllm_adapter.errors import UnsupportedCase

CLASSES = (
    theirs.ReplicatedLinear,
    theirs.ColumnParallelLinear,
    theirs.MergedColumnParallelLinear,
    theirs.QKVParallelLinear,
    theirs.RowParallelLinear,
)


class PortableLinearMethod(theirs.UnquantizedLinearMethod):
    """x @ weight.T + bias by the operator `linear`; the weight is prepared once it is loaded."""

    def __init__(self, binding: Binding, out_features: int) -> None:
        super().__init__()
        self._binding = binding
        self._out_features = out_features
        self._run = policy.run_of(binding)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """The load moment. vLLM's own would pack the weight for its kernel and drop it."""
        weight: Any = layer.weight.data
        prepared = self._binding.prepare_weights(weight)
        if prepared is not weight:
            layer.weight = torch.nn.Parameter(prepared, requires_grad=False)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        result: torch.Tensor = self._run(x, layer.weight, bias, self._out_features)
        return result


def replace() -> None:
    """Has vLLM make our layers, if the policy concerns `linear`."""
    if not policy.concerns("linear"):
        return
    for base in CLASSES:
        put(custom_op, "PluggableLayer", base, subclass(base, {"__init__": _init_of(base)}))


def _init_of(base: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        # Another method (a quantised one, LoRA's) has weights of its own form.
        if type(self.quant_method) is theirs.UnquantizedLinearMethod:
            _adopt(self)
        else:
            leave_quantised(self)

    return __init__


def leave_quantised(layer: Any) -> None:
    """Leaves a layer whose weights have scales to vLLM, and says so.

    Raises:
        UnsupportedCase: VA_FALLBACK=error.
    """
    how = type(getattr(layer.quant_method, "scheme", None) or layer.quant_method).__name__
    refused = UnsupportedCase(
        f"the weights of a layer are quantised ({how}), and linear takes no scales",
        hint="VA_FALLBACK=warn leaves it to vLLM",
    )
    policy.report_fallback("linear", refused)


def _adopt(layer: Any) -> None:
    out_features, in_features = layer.weight.shape
    added = layer.bias is not None and not layer.skip_bias_add
    if isinstance(layer, theirs.RowParallelLinear):
        added = added and layer.tp_rank == 0  # the others' sums get it from there
    facts = {
        "dtype": str(layer.params_dtype).removeprefix("torch."),
        "in_features": in_features,
        "out_features": out_features,
        "bias": added,
    }
    binding = policy.bound("linear", facts)
    if binding is not None:
        layer.quant_method = PortableLinearMethod(binding, out_features)
