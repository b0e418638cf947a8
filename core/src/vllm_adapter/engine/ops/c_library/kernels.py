"""An operator's implementation out of a function of the device's C library.

Each `_<operator>` makes the function that takes the operator's own arguments, of `<op>.default`'s
schema; a planned operator's takes its plan's state in place of the handle. Outputs are allocated
here, contiguous; strides of inputs are passed to the library, which refuses what it cannot take.
Nothing is copied to suit it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.ops.c_library.steps import PinnedStep
from vllm_adapter.engine.ops.spec import Fn
from vllm_adapter.engine.runtime.c_library.call import PreparedCall
from vllm_adapter.engine.runtime.c_library.streams import CurrentStreams
from vllm_adapter.engine.runtime.device_from_clib.storage import empty

Tensor = torch.Tensor


class KernelPreparation:
    """What the makers need of a library: prepared calls, and memory for outputs."""

    def __init__(self, library: Library, streams: CurrentStreams) -> None:
        self.call = partial(PreparedCall, library, streams)
        self._empty = partial(empty, library)

    def new(self, like: Tensor, *shape: int) -> Tensor:
        """A contiguous output of the dtype and device of `like`. Not through the dispatcher.

        shape: [*shape], in elements.
        """
        return self._empty(shape, like.dtype, like.get_device())


def make_kernel(library: Library, streams: CurrentStreams, op: str) -> Fn:
    """The implementation of an operator that the library has a function for."""
    kernel: Fn = _MAKERS[op](KernelPreparation(library, streams))
    return kernel


def _linear(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    with_bias = prepare.call("linear", outputs="out", inputs="x weight bias")
    without = prepare.call("linear", outputs="out", inputs="x weight", absent="bias")

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
        """x: [..., in], weight: [out, in], bias: [out] or None -> [..., out]."""
        out = new(x, *x.shape[:-1], out_features)
        if bias is None:
            without((out_features,), (out,), (x, weight))
        else:
            with_bias((out_features,), (out,), (x, weight, bias))
        return out

    return linear


def _rms_norm(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    call = prepare.call("rms_norm", outputs="out", inputs="x weight", fields="eps")

    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x: [..., hidden], weight: [hidden] -> [..., hidden]."""
        out = new(x, *x.shape)
        call((eps,), (out,), (x, weight))
        return out

    return rms_norm


def _fused_add_rms_norm(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    call = prepare.call(
        "fused_add_rms_norm", outputs="out sum", inputs="x residual weight", fields="eps"
    )

    def fused_add_rms_norm(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """x, residual: [..., hidden], weight: [hidden] -> the norm and the sum, [..., hidden]."""
        out, total = new(x, *x.shape), new(x, *x.shape)
        call((eps,), (out, total), (x, residual, weight))
        return out, total

    return fused_add_rms_norm


def _layer_norm(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    with_bias = prepare.call("layer_norm", outputs="out", inputs="x weight bias", fields="eps")
    without = prepare.call(
        "layer_norm", outputs="out", inputs="x weight", absent="bias", fields="eps"
    )

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """x: [..., hidden], weight: [hidden], bias: [hidden] or None -> [..., hidden]."""
        out = new(x, *x.shape)
        if bias is None:
            without((eps,), (out,), (x, weight))
        else:
            with_bias((eps,), (out,), (x, weight, bias))
        return out

    return layer_norm


def _silu_and_mul(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    call = prepare.call("silu_and_mul", outputs="out", inputs="x")

    def silu_and_mul(x: Tensor) -> Tensor:
        """x: [..., 2 width] -> [..., width]."""
        out = new(x, *x.shape[:-1], x.shape[-1] // 2)
        call((), (out,), (x,))
        return out

    return silu_and_mul


def _gelu(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    call = prepare.call("gelu", outputs="out", inputs="x", fields="tanh")

    def gelu(x: Tensor, tanh: bool) -> Tensor:
        """x: [..., width] -> [..., width]."""
        out = new(x, *x.shape)
        call((tanh,), (out,), (x,))
        return out

    return gelu


def _gelu_and_mul(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    call = prepare.call("gelu_and_mul", outputs="out", inputs="x", fields="tanh")

    def gelu_and_mul(x: Tensor, tanh: bool) -> Tensor:
        """x: [..., 2 width] -> [..., width]."""
        out = new(x, *x.shape[:-1], x.shape[-1] // 2)
        call((tanh,), (out,), (x,))
        return out

    return gelu_and_mul


def _embedding(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    call = prepare.call("embedding", outputs="out", inputs="weight ids")

    def embedding(ids: Tensor, weight: Tensor) -> Tensor:
        """ids: int64 [...], weight: [rows, hidden] -> [..., hidden]."""
        out = new(weight, *ids.shape, weight.shape[-1])
        call((), (out,), (weight, ids))
        return out

    return embedding


def _rotary_embedding(prepare: KernelPreparation) -> Fn:
    call = prepare.call(
        "rotary_embedding", inputs="positions query key cos_sin_cache", fields="interleaved"
    )

    def rotary_embedding(
        positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, interleaved: bool
    ) -> None:
        """query: [tokens, heads, head_size], key: [tokens, kv_heads, head_size], in place.

        positions: int64 [tokens]; cos_sin_cache: [max_position, rotated], cos then sin.
        """
        call((interleaved,), (), (positions, query, key, cos_sin_cache))

    return rotary_embedding


def _reshape_and_cache(prepare: KernelPreparation) -> Fn:
    call = prepare.call("reshape_and_cache", inputs="key value key_cache value_cache slot_mapping")

    def reshape_and_cache(
        key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """key, value: [tokens, kv_heads, head_size] -> caches, by slot_mapping: int64 [tokens].

        Caches: [blocks, block_size, kv_heads, head_size].
        """
        call((), (), (key, value, key_cache, value_cache, slot_mapping))

    return reshape_and_cache


def _paged_attention(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    call = prepare.call(
        "paged_attention",
        outputs="out",
        inputs="query key_cache value_cache block_table seq_lens query_start_loc",
        fields="scale window soft_cap",
    )

    def paged_attention(
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        query_start_loc: Tensor,
        scale: float,
        window: int,
        soft_cap: float,
        pinned: PinnedStep | None,
    ) -> Tensor:
        """query: [tokens, heads, head_size] -> [tokens, heads, head_size].

        Caches: [blocks, block_size, kv_heads, head_size]; block_table: int32 [batch, width];
        seq_lens: int32 [batch]; query_start_loc: int32 [batch + 1]; window in tokens.
        """
        out = new(query, *query.shape)
        key = (scale, window, soft_cap)
        step = (block_table, seq_lens, query_start_loc)
        if pinned is None:
            call(key, (out,), (query, key_cache, value_cache, *step))
        else:
            pinned(call, key, out, (query, key_cache, value_cache), step)
        return out

    return paged_attention


def _attention(prepare: KernelPreparation) -> Fn:
    new = prepare.new
    call = prepare.call(
        "attention",
        outputs="out",
        inputs="query key value query_start_loc",
        fields="scale causal window soft_cap",
    )

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_start_loc: Tensor,
        scale: float,
        causal: bool,
        window: int,
        soft_cap: float,
    ) -> Tensor:
        """query: [tokens, heads, head_size]; key, value: [tokens, kv_heads, head_size].

        query_start_loc: int32 [batch + 1]; window in tokens. Gives the shape of query.
        """
        out = new(query, *query.shape)
        call((scale, causal, window, soft_cap), (out,), (query, key, value, query_start_loc))
        return out

    return attention


_MAKERS: Final[Mapping[str, Callable[[KernelPreparation], Any]]] = {
    "linear": _linear,
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "silu_and_mul": _silu_and_mul,
    "layer_norm": _layer_norm,
    "gelu": _gelu,
    "gelu_and_mul": _gelu_and_mul,
    "embedding": _embedding,
    "rotary_embedding": _rotary_embedding,
    "reshape_and_cache": _reshape_and_cache,
    "paged_attention": _paged_attention,
    "attention": _attention,
}
