"""Linears of a model in fewer bits: who decides a tensor's form, and the module that runs it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

import torch

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.operators import FactValue
from vllm_adapter.contract.quantization import FormOffer, form_of, offers
from vllm_adapter.engine.integrations.layers import LayerShape, Linear, Product, Run, frozen
from vllm_adapter.engine.ops.bind import bind, resolved
from vllm_adapter.engine.ops.quantization import QuantizedWeight, quantize_weight
from vllm_adapter.engine.ops.spec import OpCase, dtype_name
from vllm_adapter.settings import Settings

_log = logging.getLogger("vllm_adapter.ops.quantization")
AS_IS: Final = "none"


@dataclass(frozen=True, slots=True)
class TensorDecision:
    """What became of one weight, and why. `scheme` is None where it stays as it is."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    scheme: str | None
    reasons: tuple[str, ...]
    """Why no better form was taken, best first."""
    bytes_before: int
    bytes_after: int
    providers: tuple[str, ...]

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return (
            f"{self.name} [{shape}]: {self.dtype} -> {self.scheme or 'as it is'}{why}, "
            f"{self.bytes_before} -> {self.bytes_after} bytes, by {', '.join(self.providers)}"
        )


@dataclass(slots=True)
class Quantizer:
    """Makes the linears of one model, each in the best form of `asked` that is served."""

    capability: Capability
    asked: str
    decisions: list[TensorDecision] = field(default_factory=list)
    accuracy: tuple[str, ...] = ()
    """What forms cost of the perplexity, those first that cost too much; empty: not measured."""

    def linear(
        self,
        name: str,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        settings: Settings | None = None,
    ) -> Product:
        """The module for a weight [out, in] called `name`; the decision is kept, and logged.

        Raises:
            UnsupportedCase: it stays as it is, and nothing runs it so.
            InputError: the weight holds what is no finite number.
        """
        reasons: list[str] = []
        for offer in offers(self.capability, self.asked):
            refusal = _refusal(offer, weight, bias, settings)
            if refusal is not None:
                reasons.append(f"{offer.form}: {refusal}")
                continue
            assert offer.scheme is not None
            fp8_max = self.capability.numerics.fp8_max
            made = quantize_weight(weight.detach(), offer.scheme, fp8_max=fp8_max)
            if made.nbytes >= weight.nbytes:
                reasons.append(f"{offer.form}: {made.nbytes} bytes are no fewer")
                continue
            module = QuantizedLinear(made, bias, dtype_name(weight), settings)
            self._note(name, weight, offer.scheme, reasons, made.nbytes, module)
            return module
        plain = Linear(weight, bias, settings)
        self._note(name, weight, None, reasons, weight.nbytes, plain)
        return plain

    def kv_dtype(
        self, shape: LayerShape, block_size: int, like: torch.Tensor, settings: Settings
    ) -> torch.dtype:
        """The dtype of a KV cache: a float of eight bits where that was asked for and is served.

        `like` has the dtype and the device of the queries; the decision is logged.
        """
        if self.asked != "fp8":
            return like.dtype
        (offer, *_) = offers(self.capability, self.asked)
        why = str(offer.reject)
        if offer.scheme is not None:
            facts: dict[str, FactValue] = {
                "dtype": dtype_name(like),
                "head_size": shape.head_size,
                "block_size": block_size,
                "kv_dtype": offer.scheme,
            }
            ratio = shape.heads // shape.kv_heads
            heads: dict[str, FactValue] = {"gqa_ratio": ratio, "window": 0, "soft_cap": 0.0}
            write = OpCase.of("reshape_and_cache", like.device, facts)
            read = OpCase.of("paged_attention", like.device, facts | heads)
            refused = [r for case in (write, read) if (r := _unserved(case, settings))]
            if not refused:
                _log.debug("KV cache: %s -> %s", facts["dtype"], offer.scheme)
                scheme: torch.dtype = getattr(torch, offer.scheme)
                return scheme
            why = refused[0]
        _log.debug("KV cache: %s -> as it is (fp8: %s)", dtype_name(like), why)
        return like.dtype

    @property
    def bytes_before(self) -> int:
        """Of all weights that were decided on, as they were."""
        return sum(one.bytes_before for one in self.decisions)

    @property
    def bytes_after(self) -> int:
        """Of all weights that were decided on, as they are run."""
        return sum(one.bytes_after for one in self.decisions)

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that weights have, each once: "int8", or "none" for as they are."""
        found = (AS_IS if d.scheme is None else form_of(d.scheme) for d in self.decisions)
        return tuple(dict.fromkeys(found))

    def _note(
        self,
        name: str,
        weight: torch.Tensor,
        scheme: str | None,
        reasons: list[str],
        after: int,
        module: Linear | QuantizedLinear,
    ) -> None:
        decision = TensorDecision(
            name,
            tuple(weight.shape),
            dtype_name(weight),
            scheme,
            tuple(reasons),
            weight.nbytes,
            after,
            module.bindings[0].providers,
        )
        self.decisions.append(decision)
        _log.debug("%s", decision)


class QuantizedLinear(Product):
    """x @ weight.T + bias by a weight in fewer bits, which no change of dtype reaches."""

    def __init__(
        self,
        weight: QuantizedWeight,
        bias: torch.Tensor | None,
        dtype: str,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        self.out_features = weight.values.shape[0]
        case = OpCase.of(
            "quantized_linear",
            weight.values.device,
            _facts(dtype, weight.values.shape[0], weight.in_features, bias, weight.scheme),
        )
        binding = bind(case, settings)
        self.bindings = (binding,)
        self._run = binding.run
        self.quantized = weight
        self._values = binding.prepare_weights(weight.values)
        self.bias = None if bias is None else frozen(bias)

    def bound(self) -> Run:
        """x[..., in] -> [..., out], without the module around it."""
        run, values, weight = self._run, self._values, self.quantized
        scale, zero, scheme = weight.scale, weight.zero, weight.scheme
        bias, out = self.bias, self.out_features
        return lambda x: run(x, values, scale, zero, bias, out, scheme)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        weight = self.quantized
        result: torch.Tensor = self._run(
            x,
            self._values,
            weight.scale,
            weight.zero,
            self.bias,
            self.out_features,
            weight.scheme,
        )
        return result


def _refusal(
    offer: FormOffer,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    settings: Settings | None,
) -> str | None:
    """Why a weight does not take a form: the chip, or no adapter that runs it."""
    if offer.scheme is None:
        return str(offer.reject)
    out, width = weight.shape
    facts = _facts(dtype_name(weight), out, width, bias, offer.scheme)
    return _unserved(OpCase.of("quantized_linear", weight.device, facts), settings)


def _unserved(case: OpCase, settings: Settings | None) -> str | None:
    """Why no adapter runs a case; None where one does."""
    found = resolved(case, settings or Settings.from_environ())
    if found.refusal is not None:
        return str(found.refusal.reject)
    # Core's portable code unpacks a weight at each call: slower than the weight as it is.
    fallback = next(iter(found.fallbacks.values()), None)
    return None if fallback is None else str(fallback)


def _facts(
    dtype: str, out: int, width: int, bias: torch.Tensor | None, scheme: str
) -> dict[str, FactValue]:
    return {
        "dtype": dtype,
        "in_features": width,
        "out_features": out,
        "bias": bias is not None,
        "scheme": scheme,
    }
