"""The plan of a step for a library's paged_attention: what all layers of the step have alike.

The step's own tensors are the same objects for each layer, so that their addresses are written
once a step; what differs between layers (queries, outputs, caches) is compared and patched.
"""

from __future__ import annotations

import torch

from vllm_adapter.engine.ops.step import Step
from vllm_adapter.engine.runtime.c_library.call import Frame, Key, PreparedCall, same_as

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class PinnedStep:
    """What is behind a plan's handle. Its caches' owner runs one step at a time.

    A step's tensors must not change shape until the next plan.
    """

    __slots__ = ("_call", "_fits", "_frame", "_key", "_step", "_words")

    def __init__(self) -> None:
        self._step: Three | None = None
        self._call: PreparedCall | None = None
        self._frame: Frame | None = None
        self._key: Key = ()
        self._words: tuple[int, ...] = ()

    def __call__(
        self, call: PreparedCall, key: Key, out: torch.Tensor, layer: Three, step: Three
    ) -> None:
        """Queues one layer's paged_attention; `layer` is query, key cache and value cache.

        Raises as PreparedCall.
        """
        frame = self._frame
        table, lengths, starts = step
        if (
            frame is None
            or self._call is not call
            or self._step is None
            or table is not self._step[0]
            or lengths is not self._step[1]
            or starts is not self._step[2]
            or key != self._key
            or not self._fits(*layer)
        ):
            frame = self._pin(call, key, out, layer, step)
        words = frame.words
        query, keys, values = layer
        at_out, at_query, at_keys, at_values = self._words
        words[at_out] = out.data_ptr()
        words[at_query] = query.data_ptr()
        words[at_keys] = keys.data_ptr()
        words[at_values] = values.data_ptr()
        call.send(frame)

    def _pin(
        self, call: PreparedCall, key: Key, out: torch.Tensor, layer: Three, step: Three
    ) -> Frame:
        inputs = (*layer, *step)
        frame = self._frame
        if (
            frame is None
            or self._call is not call
            or key != self._key
            or not frame.matches(*inputs)
        ):
            # Of its own: another step's call of the same shapes would write its addresses.
            frame = self._frame = call.new_frame(key, (out,), inputs)
            self._call, self._key, self._fits = call, key, same_as(layer)
            names = ("out", "query", "key_cache", "value_cache")
            self._words = tuple(call.word(name) for name in names)
        for name, tensor in zip(("block_table", "seq_lens", "query_start_loc"), step, strict=True):
            frame.words[call.word(name)] = tensor.data_ptr()
        self._step = step
        return frame


def plan_step(step: Step, kept: PinnedStep | None) -> PinnedStep:
    """The step moment: the last step's frame, if its shapes hold, gets this one's addresses."""
    return PinnedStep() if kept is None else kept
