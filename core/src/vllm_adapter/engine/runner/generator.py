"""`Generator`: prompts that join and leave while others run, over one model and one device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.transformers.adapt import Adapted, adapted_of
from vllm_adapter.engine.integrations.transformers.decoder import PaddedDecoderLayer
from vllm_adapter.engine.kv_cache.blocks import BlockTable
from vllm_adapter.engine.runner.flat import FlatDecoder
from vllm_adapter.engine.runner.sampling import Draws, SamplingParams, next_tokens
from vllm_adapter.engine.runner.steps import StepRunner
from vllm_adapter.errors import InputError, OutOfMemory

PREFILL_TOKENS: Final = 8192
"""Tokens of prompts that one step takes."""


@dataclass(eq=False)
class Request:
    """One prompt and what has been generated for it. `reason` is set when it has ended:
    `stop` (a stop token), `length`, or `abort`."""

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: SamplingParams
    stop: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    _blocks: BlockTable | None = None
    _asked: int = 0
    """Tokens that were asked of the device, with those that have not come back."""
    _draws: Draws = field(init=False)

    def __post_init__(self) -> None:
        self._draws = Draws(self.sampling)


class Generator:
    """Generates with an adapted decoder. Not for several threads at once.

    Tokens come back one step late: the next step is queued before the last one's are read, so
    that the device does not wait for the host.
    """

    def __init__(
        self, model: Any, *, max_batch: int = 64, context: int | None = None, graphs: bool = True
    ) -> None:
        """`model` is a transformers decoder after `adapt()`; `context` the most tokens of one
        sequence (the model's own bound); `graphs=False` never captures a step.

        Raises:
            InputError: the model is not adapted, or an encoder; max_batch below 1.
        """
        adapted = adapted_of(model)
        if adapted is None:
            raise InputError("the model is not adapted", hint="adapt(model, device) comes first")
        if max_batch < 1:
            raise InputError(f"max_batch is {max_batch}", hint="give at least 1")
        bound = int(model.config.max_position_embeddings)
        self.context = min(context or bound, bound)
        self.max_batch = max_batch
        self._cache = adapted.kv
        self._base = getattr(model, model.base_model_prefix, model)
        decoder = _flat(model, adapted)
        steps: Any = adapted.steps
        self._steps = steps
        self.runner = StepRunner(decoder, steps.rope, self.context, graphs=graphs)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._pending: tuple[list[Request], torch.Tensor, Any] | None = None
        self._last: dict[Request, torch.Tensor] = {}

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int = 64,
        sampling: SamplingParams | None = None,
        stop: Sequence[int] = (),
    ) -> Request:
        """Queues a prompt of token ids; it joins the batch at the next step.

        Raises:
            InputError: an empty prompt, or one that the context cannot hold with one more token.
        """
        room = self.context - len(prompt)
        if not prompt:
            raise InputError("the prompt is empty", hint="give at least one token")
        if room < 1:
            raise InputError(
                f"the prompt has {len(prompt)} tokens, and the context is {self.context}",
                hint="shorten the prompt",
            )
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {max_new_tokens}", hint="give at least 1")
        request = Request(
            list(prompt), min(max_new_tokens, room), sampling or SamplingParams(), frozenset(stop)
        )
        self._waiting.append(request)
        return request

    def abort(self, request: Request) -> None:
        """Ends a request; its blocks are free at once, and what it has stays in it."""
        if request.reason is None:
            self._end(request, "abort")

    @property
    def busy(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self._waiting or self._running or self._pending)

    def step(self) -> list[tuple[Request, int]]:
        """One step of all that run; gives the tokens that came back, in order.

        Raises:
            OutOfMemory: one sequence alone does not fit the KV cache: its request has ended
                with what it has, and others go on at the next step.
            UnsupportedModel: the model was changed after it was adapted.
        """
        self._steps.check(self._base)
        queued = self._queue_decode()
        came = self._collect()
        self._pending = queued
        if queued is None or len(self._running) < self.max_batch:
            came += self._admit()
        return came

    def stream(self) -> Iterator[tuple[Request, int]]:
        """Steps until all requests have ended; gives each token as it comes."""
        while self.busy:
            yield from self.step()

    def generate(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """The new tokens of each prompt, all run together; options as `add` has them."""
        requests = [self.add(prompt, **options) for prompt in prompts]
        for _ in self.stream():
            pass
        return [request.tokens for request in requests]

    def _queue_decode(self) -> tuple[list[Request], torch.Tensor, Any] | None:
        """Starts one decode step of all that still want a token."""
        batch = [r for r in self._running if r._asked < r.max_new_tokens]
        if not batch:
            return None
        given = torch.stack([self._last[request] for request in batch])
        while True:
            try:
                logits = self.runner.decode([_blocks(r) for r in batch], given)
                break
            except OutOfMemory:
                if len(batch) == 1:
                    self._end(batch[0], "length")
                    raise
                # The last one waits: it begins again, with what it has, when others have ended.
                given = given[:-1]
                self._preempt(batch.pop())
        return self._sampled(batch, logits)

    def _admit(self) -> list[tuple[Request, int]]:
        """Prefills waiting prompts, as many as fit."""
        batch: list[Request] = []
        tokens = 0
        while self._waiting and len(self._running) + len(batch) < self.max_batch:
            request = self._waiting[0]
            tokens += len(request.prompt) + len(request.tokens)
            if batch and tokens > PREFILL_TOKENS:
                break
            batch.append(self._waiting.popleft())
        if not batch:
            return []
        for request in batch:
            request._blocks = self._cache.new_sequence()
        try:
            logits = self.runner.prefill(
                [_blocks(r) for r in batch], [[*r.prompt, *r.tokens] for r in batch]
            )
        except OutOfMemory:
            for request in reversed(batch):
                request._blocks = None
                self._waiting.appendleft(request)
            if not self._running and self._pending is None:
                self._alone()
            return []
        self._running += batch
        came = self._collect()
        self._pending = self._sampled(batch, logits)
        return came + self._collect()

    def _alone(self) -> None:
        """Nothing runs, and the first that waits does not fit: by itself, or not at all."""
        request = self._waiting.popleft()
        request._blocks = self._cache.new_sequence()
        try:
            logits = self.runner.prefill([_blocks(request)], [[*request.prompt, *request.tokens]])
        except OutOfMemory:
            self._end(request, "length")
            raise
        self._running.append(request)
        self._pending = self._sampled([request], logits)

    def _sampled(
        self, batch: list[Request], logits: torch.Tensor
    ) -> tuple[list[Request], torch.Tensor, Any]:
        """The batch, its new tokens on their way to the host, and when they are there."""
        chosen = next_tokens(logits, [request._draws for request in batch])
        for request, token in zip(batch, chosen.unbind(), strict=True):
            self._last[request] = token
            request._asked += 1
        if chosen.device.type != "cuda":
            return batch, chosen.cpu(), None
        host = torch.empty(chosen.shape, dtype=chosen.dtype, pin_memory=True)
        host.copy_(chosen, non_blocking=True)
        there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        there.record()
        return batch, host, there

    def _collect(self) -> list[tuple[Request, int]]:
        """The tokens of the step before, for requests that have not ended meanwhile."""
        if self._pending is None:
            return []
        batch, host, there = self._pending
        self._pending = None
        if there is not None:
            there.synchronize()
        came = []
        for request, token in zip(batch, host.tolist(), strict=True):
            if request.reason is not None or request._blocks is None:
                continue
            request.tokens.append(token)
            came.append((request, token))
            if token in request.stop:
                self._end(request, "stop")
            elif len(request.tokens) >= request.max_new_tokens:
                self._end(request, "length")
        return came

    def _preempt(self, request: Request) -> None:
        """Takes a request's blocks; it begins again from its tokens."""
        self._give_back(request)
        request._asked = len(request.tokens)
        request._draws = Draws(request.sampling)
        for _ in request.tokens:
            request._draws.next()
        self._waiting.appendleft(request)

    def _end(self, request: Request, reason: str) -> None:
        request.reason = reason
        self._give_back(request)
        if request in self._waiting:
            self._waiting.remove(request)

    def _give_back(self, request: Request) -> None:
        if request in self._running:
            self._running.remove(request)
        self._last.pop(request, None)
        if request._blocks is not None:
            self._cache.release([request._blocks])
            request._blocks = None


def _blocks(request: Request) -> BlockTable:
    assert request._blocks is not None
    return request._blocks


def _flat(model: Any, adapted: Adapted) -> FlatDecoder:
    """The model's layers, of which `adapt` made ours, as a flat list."""
    cache = adapted.kv
    base = getattr(model, model.base_model_prefix, model)
    layers = [m.inner for m in base.layers if isinstance(m, PaddedDecoderLayer)]
    head = getattr(model, "lm_head", None)
    if head is None:
        raise InputError(
            "the model has no head that gives logits", hint="load it as a causal language model"
        )
    return FlatDecoder(base.embed_tokens.weight.detach(), layers, base.norm, head, cache)
