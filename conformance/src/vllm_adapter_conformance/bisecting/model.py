"""The model that is searched, and what it is given: from a folder, a file, or tiny and random."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.transformers import cache_argument
from vllm_adapter.errors import InputError
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import model_shape

PROMPTS: Final = (
    "The capital of France is",
    "Hi",
    "A list of prime numbers: 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47. A list of "
    "planets: Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune. A list of colours:",
)
"""Three rows: a few tokens, one or two, and more than several blocks of a cache hold."""
ENCODER: Final = "bert"

Watch = Callable[[int], None]
"""Told the number of a forward before it runs."""


@dataclass(frozen=True)
class ModelInputs:
    """Rows of tokens: int64 [rows, columns], and a mask of the same shape, 1 where real."""

    ids: torch.Tensor
    mask: torch.Tensor

    @property
    def lengths(self) -> list[int]:
        """Real tokens of each row."""
        found: list[int] = self.mask.sum(1).tolist()
        return found


@dataclass
class Trace:
    """What a model gave for all real tokens: logits (or hidden states), and each layer's states.

    Both have one tensor [real tokens, width] a forward.
    """

    final: list[torch.Tensor] = field(default_factory=list)
    layers: list[list[torch.Tensor]] = field(default_factory=list)
    tokens: torch.Tensor | None = None
    """int64 [rows, steps]: the greedy tokens that were given on."""


def load(source: str, dtype: str, prompts: Sequence[str]) -> tuple[Any, ModelInputs]:
    """A model in a folder, a .gguf file or a package, and its prompts as tokens.

    Raises:
        InputError: nothing is there, or transformers cannot read it, or a prompt is too long.
    """
    from transformers import AutoModel, AutoTokenizer

    from vllm_adapter.engine.integrations.transformers import load as loading

    folder, gguf = loading.locate(source)
    encoder = gguf is None and _type_of(folder) == ENCODER
    if encoder:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    else:
        model, tokenizer = loading.load(source, dtype)
    rows = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    longest, room = max(map(len, rows)), model.config.max_position_embeddings
    if not all(rows) or longest > room:
        raise InputError(
            f"a prompt has {longest} tokens, and the model takes 1 to {room}",
            hint="give a shorter --prompt, with something in it",
        )
    return model, _padded(rows, left=not encoder)


def tiny(target: Target, kind: str, dtype: str) -> tuple[Any, ModelInputs]:
    """A tiny random model that fits the adapter's descriptor, as level L3 has it.

    Raises:
        InputError: the descriptor declares no such model, with what is missing.
    """
    from vllm_adapter.contract.decision import Reject
    from vllm_adapter_conformance.models import tiny as models
    from vllm_adapter_conformance.ops.cases import declared

    shape = model_shape(declared(target), kind, dtype)
    if isinstance(shape, Reject):
        raise InputError(
            f"adapter {target.record.name} declares no tiny {kind} in {dtype}: {shape}",
            hint="another --dtype, or another model",
        )
    given = models.padded(target.seed, left=kind != ENCODER)
    return models.plain(shape, target.seed), ModelInputs(
        given["input_ids"], given["attention_mask"]
    )


def layers_of(model: Any) -> Sequence[torch.nn.Module]:
    """The layers, in order."""
    base = getattr(model, getattr(model, "base_model_prefix", ""), model)
    found = base.encoder.layer if hasattr(base, "encoder") else base.layers
    return list(found)


@torch.no_grad()
def run(model: Any, given: ModelInputs, steps: int, tokens: Any, watch: Watch) -> Trace:
    """A prefill of all rows and `steps` decode steps; an encoder has one forward.

    tokens: int64 [rows, steps] to give on, or None: then the greedy ones.
    """
    trace = Trace()
    with _layers_watched(model, trace) as running:
        if model.config.model_type == ENCODER:
            watch(0)
            running.mask = given.mask.bool()
            there = {"input_ids": given.ids, "attention_mask": given.mask}
            out = model(**{name: t.to(model.device) for name, t in there.items()})
            trace.final.append(out.last_hidden_state.cpu()[running.mask])
            return trace
        _decode(model, given, steps, tokens, watch, trace, running)
    return trace


def _decode(
    model: Any,
    given: ModelInputs,
    steps: int,
    tokens: torch.Tensor | None,
    watch: Watch,
    trace: Trace,
    running: _Running,
) -> None:
    cache, device = cache_argument(model), model.device
    ids, mask = given.ids.to(device), given.mask.to(device)
    carried: dict[str, Any] = {}
    chosen = []
    for number in range(steps + 1):
        watch(number)
        columns = ids.shape[1]
        running.mask = mask[:, -columns:].cpu().bool()
        out = model(
            ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, -columns:],
            use_cache=True,
            **carried,
        )
        found = out.logits.cpu()
        trace.final.append(found[running.mask])
        carried = {cache: out[cache]}
        if number < steps:
            token = found[:, -1].argmax(-1) if tokens is None else tokens[:, number]
            chosen.append(token)
            ids = token[:, None].to(device)
            mask = torch.cat((mask, torch.ones_like(ids)), 1)
    trace.tokens = torch.stack(chosen, 1) if chosen else None


class _Running:
    """The real tokens of the forward that runs: bool [rows, columns]."""

    mask: torch.Tensor


class _layers_watched:
    """Keeps what each layer gives, while it is entered."""

    def __init__(self, model: Any, trace: Trace) -> None:
        self._layers, self._running = layers_of(model), _Running()
        trace.layers = [[] for _ in self._layers]
        for layer, kept in zip(self._layers, trace.layers, strict=True):
            # In the instance's own names: an adapted model's layers take no hook.
            vars(layer)["forward"] = self._keeping(layer.forward, kept)

    def _keeping(
        self, forward: Callable[..., Any], kept: list[torch.Tensor]
    ) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            states = out[0] if isinstance(out, tuple) else out
            kept.append(states.detach().cpu()[self._running.mask])
            return out

        return run

    def __enter__(self) -> _Running:
        return self._running

    def __exit__(self, *_: object) -> None:
        for layer in self._layers:
            vars(layer).pop("forward", None)


def _padded(rows: Sequence[Sequence[int]], *, left: bool) -> ModelInputs:
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        place = slice(width - len(row), None) if left else slice(0, len(row))
        ids[number, place], mask[number, place] = torch.tensor(row), 1
    return ModelInputs(ids, mask)


def _type_of(folder: Any) -> str | None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return str(config.get("model_type"))
    except (OSError, ValueError, AttributeError):
        return None
