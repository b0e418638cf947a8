"""LoRA in torch: one pair of matrix products for each adapter of weights that is loaded."""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class TorchPunica(PunicaWrapperCPU):
    """As vLLM's wrapper in torch, but rows are told apart by a factor of 0 or 1.

    Vllm's own gathers one whole matrix for each token, and reads the last adapter's for a token
    that has none.
    """

    def _shrink_prefill(
        self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, scale: float
    ) -> None:
        self._shrink(y, x, w_t_all, scale)

    _shrink_decode = _shrink_prefill

    def _expand_prefill(
        self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, add_inputs: bool
    ) -> None:
        self._expand(y, x, w_t_all, self.token_lora_indices, add_inputs)

    _expand_decode = _expand_prefill

    def _expand_slice_prefill(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        w_t_all: torch.Tensor,
        y_offset: int,
        y_slice_size: int,
        add_inputs: bool,
    ) -> None:
        part = y[:, y_offset : y_offset + y_slice_size]
        self._expand(part, x, w_t_all, self.token_lora_indices, add_inputs)

    _expand_slice_decode = _expand_slice_prefill

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        *,
        buffer: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """y[rows, vocabulary] += the rows' low-rank logits of x[rows, hidden]."""
        rows = y.view(-1, y.shape[-1])
        given = x.view(-1, x.shape[-1])
        low = given.new_zeros(given.shape[0], lora_b_stacked.shape[-1])
        product(low, given, lora_a_stacked, self.sampler_indices, scale)
        self._expand(rows, low, lora_b_stacked, self.sampler_indices, True)

    def _shrink(
        self, y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, scale: float
    ) -> None:
        if not (self.is_prefill and self.no_lora):  # upstream: only a prefill's step sets it
            product(y, x, weights, self.token_lora_indices, scale)

    def _expand(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        weights: torch.Tensor,
        indices: torch.Tensor,
        add_inputs: bool,
    ) -> None:
        if self.is_prefill and self.no_lora:
            return
        width = min(y.shape[1], weights.shape[-2])
        part = y[:, :width]
        made = part.new_zeros(x.shape[0], width)
        product(made, x.to(made.dtype), weights, indices, 1.0)
        if add_inputs:
            part += made
        else:
            part.copy_(made)


def product(
    out: torch.Tensor,
    x: torch.Tensor,
    weights: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
) -> None:
    """out[:, :o] += scale * x @ weights[i].T, for each row's adapter i; nothing where i < 0.

    x: [tokens, in]; weights: [adapters, (1,) o, in]; indices: int64[tokens or more].
    """
    stacked = weights.squeeze(1) if weights.dim() == 4 else weights
    width = min(out.shape[1], stacked.shape[1])
    own = indices[: x.shape[0]]
    for index in range(stacked.shape[0]):
        factor = (own == index).to(out.dtype)[:, None] * scale
        weight = stacked[index, :width].to(out.dtype)
        out[:, :width] += torch.nn.functional.linear(x.to(out.dtype), weight) * factor
