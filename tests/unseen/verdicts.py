"""Runs one altered model plain and adapted, and says which of four verdicts it earns.

`equal`: the adapted model gives the numbers of the altered plain model. `refused`: one of the
product's own errors, in one sentence that names the reason, and the model still gives its plain
numbers where `adapt` itself refused. `vague`: refused, with a sentence that does not say why.
`WRONG`: other numbers in silence, or an error that is not the product's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from tiny_llama import batch, tiny
from transformers import BertConfig, BertModel

from vllm_adapter.engine.integrations.transformers import adapt, unadapt
from vllm_adapter.errors import VllmAdapterError

Tensors = Mapping[str, torch.Tensor]


class NoTarget(Exception):
    """The user's own tool found nothing to act on, and says so: not the product's silence."""


@dataclass(frozen=True)
class Case:
    """One way to alter a model. `before` and `after` are done around adapt, to both models.

    `names`: a refusal's sentence holds one of these words. `served`: a refusal is a failure too.
    `inert`: the alteration does not change the plain numbers, and that is the point. `adapt`
    replaces the call of adapt, where the call itself is the case.
    """

    name: str
    before: Callable[[Any], Any] | None = None
    after: Callable[[Any], Any] | None = None
    kind: str = "llama"
    config: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[], Any] | None = None
    given: Callable[[], dict[str, Any]] | None = None
    read: Callable[[Any, dict[str, Any]], Tensors] | None = None
    names: tuple[str, ...] = ()
    served: bool = False
    inert: bool = False
    world: Callable[[], AbstractContextManager[Any]] = nullcontext
    adapt: Callable[[Any], Any] | None = None
    tolerance: float = 1e-4


@dataclass(frozen=True)
class Verdict:
    """The word, and the largest difference or the error's text."""

    word: str
    why: str


def tiny_bert(model_class=BertModel, *, seed=0, **config):
    """A BERT of two layers with random weights, norms and biases."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 128,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
    }
    model = model_class(BertConfig(**(sizes | config)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "Norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def build(case):
    """A fresh model of the case, the same each time."""
    if case.make is not None:
        torch.manual_seed(0)
        return case.make()
    config = dict(case.config)
    return tiny_bert(**config) if case.kind == "bert" else tiny(case.kind, **config)


def padded():
    """Two prompts, padded at the left."""
    return batch(9, 14)


def unpadded():
    """Two prompts of one length, and no mask."""
    return {"input_ids": batch(12, 12)["input_ids"]}


def no_cache():
    """Two prompts of one length, and no cache."""
    return unpadded() | {"use_cache": False}


def real(values, given):
    """Values at the positions of real tokens alone."""
    mask = given.get("attention_mask")
    if mask is None or mask.ndim != 2 or values.ndim < 3:
        return values
    return values[mask[:, -values.shape[1] :].bool()]


def forward(model, given):
    """Logits or hidden states of one forward pass, and the pooled ones where there are any."""
    out = model(**given)
    found = {}
    for name in ("logits", "last_hidden_state", "pooler_output", "loss"):
        value = getattr(out, name, None)
        if value is not None:
            found[name] = real(value, given)
    mask = given.get("attention_mask")
    if "pooler_output" in found and mask is not None and mask.ndim == 2:
        # The pooler reads the first position: of a row padded at the left, that is no token.
        found["pooler_output"] = found["pooler_output"][mask[:, 0].bool()]
    return found


def two_steps(model, given):
    """A prefill, and one more token by way of the cache."""
    out = model(**given)
    found = {"prefill": real(out[0], given)}
    following = torch.full((out[0].shape[0], 1), 7)
    step = {"input_ids": following, "past_key_values": out.past_key_values}
    mask = given.get("attention_mask")
    if mask is not None:
        step["attention_mask"] = torch.cat((mask, torch.ones_like(following)), 1)
    return found | {"decode": model(**step)[0]}


def reader(case, given):
    """How the case's numbers are read."""
    if case.read is not None:
        return case.read
    plain = case.kind == "bert" or given.get("use_cache") is False
    return forward if plain else two_steps


def done(case, model, *steps):
    """The numbers of a model after some steps."""
    for step in filter(None, steps):
        changed = step(model)
        model = model if changed is None else changed
    given = (case.given or padded)()
    torch.manual_seed(5)
    with torch.no_grad():
        found = reader(case, given)(model, given)
    return {name: value.detach().double() for name, value in found.items()}


def difference(expected, seen):
    """The largest difference, in units of what is tolerated at tolerance 1."""
    if expected.keys() != seen.keys():
        return f"gives {sorted(seen)} and not {sorted(expected)}"
    worst = 0.0
    for name, value in expected.items():
        if value.shape != seen[name].shape:
            return f"{name} has shape {tuple(seen[name].shape)} and not {tuple(value.shape)}"
        if not torch.isfinite(seen[name]).all():
            return f"{name} is not finite"
        error = (value - seen[name]).abs() / value.abs().clamp(min=1)
        worst = max(worst, float(error.max())) if error.numel() else worst
    return worst


def plain_numbers(case, *, altered=True):
    """The oracle: the same model, altered the same way, without the product."""
    with warnings.catch_warnings(), case.world() if altered else nullcontext():
        warnings.simplefilter("ignore")
        steps = (case.before, case.after) if altered else ()
        return done(case, build(case), *steps)


def _refusal(case, error):
    sentence = getattr(error, "message", "")
    if not sentence or "\n" in sentence or not getattr(error, "hint", ""):
        return Verdict("vague", f"no sentence with a hint: {error!r}")
    if case.names and not any(word.lower() in sentence.lower() for word in case.names):
        return Verdict("vague", f"names none of {case.names}: {sentence}")
    return Verdict("refused", sentence)


def _cause(error):
    """The product's own error, also where a compiler wraps it."""
    while error is not None and not isinstance(error, VllmAdapterError):
        error = error.__cause__
    return error


def judge(case):
    """The verdict on one case."""
    expected = plain_numbers(case)
    with warnings.catch_warnings(), case.world():
        warnings.simplefilter("ignore")
        model = build(case)
        if case.before is not None:
            changed = case.before(model)
            model = model if changed is None else changed
        try:
            adapted = (case.adapt or (lambda it: adapt(it, "cpu")))(model)
        except VllmAdapterError as error:
            verdict = _refusal(case, error)
            left = difference(expected, done(case, model, case.after))
            if isinstance(left, str) or left > case.tolerance:
                return Verdict("WRONG", f"refused, and the model is left changed: {left}")
            return verdict
        except Exception as error:
            return Verdict("WRONG", f"adapt: {type(error).__name__}: {str(error)[:160]}")
        if isinstance(adapted, torch.nn.Module):
            model = adapted
        try:
            seen = done(case, model, case.after)
        except NoTarget as error:
            return Verdict("refused", f"by the user's tool: {error}")
        except Exception as error:
            own = _cause(error)
            if own is not None:
                return _refusal(case, own)
            return Verdict("WRONG", f"{type(error).__name__}: {str(error)[:160]}")
        finally:
            _free(model)
    apart = difference(expected, seen)
    if isinstance(apart, str):
        return Verdict("WRONG", apart)
    if apart > case.tolerance:
        return Verdict("WRONG", f"differs by {apart:.2g} in silence")
    return Verdict("equal", f"{apart:.1g}")


def _free(model):
    try:
        unadapt(model)
    except Exception:
        return
