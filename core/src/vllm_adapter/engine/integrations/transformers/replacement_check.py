"""What a release of transformers calls the cache, and whether a model takes the one we give it.

transformers renames arguments between minor releases, and passes on what it does not know: a
model that leaves our cache out answers nonsense without an error. So `adapt` asks each model.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import transformers
from packaging.requirements import Requirement
from transformers.cache_utils import DynamicCache

from vllm_adapter.engine.integrations.transformers.place import Replacement
from vllm_adapter.errors import UnsupportedModel, VllmAdapterError

CACHE_NAMES: Final = ("cache", "past_key_values")
"""The cache's argument: from 5.24 on, and before."""


def cache_argument(model: Any) -> str:
    """What the model's forward calls its cache.

    Raises:
        UnsupportedModel: none of the names that we know.
    """
    # The class's own: a wrapper on the instance tells nothing of its arguments, and the witnesses
    # show whether it hands them on.
    kind: Any = model if isinstance(model, type) else type(model)
    parameters = inspect.signature(kind.forward).parameters
    found = next((name for name in CACHE_NAMES if name in parameters), None)
    if found is None:
        names = " or ".join(CACHE_NAMES)
        raise _not_taken(f"the forward of {type(model).__name__} has no argument {names}")
    return found


def one_cache(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arguments with the cache under `name` alone, whichever of its names was used.

    Raises:
        UnsupportedModel: two caches are given.
    """
    found = given.get(name)
    rest = {key: value for key, value in given.items() if key not in CACHE_NAMES}
    for alias in CACHE_NAMES:
        other = given.get(alias)
        if found is None:
            found = other
        elif other is not None and other is not found:
            raise UnsupportedModel(
                f"two caches are given, as {' and as '.join(CACHE_NAMES)}",
                hint=f"give {name} alone",
            )
    return rest | {name: found}


def check_decoder(model: Any, base: Any, replaced: Sequence[Replacement], layer: type) -> None:
    """Two forwards of one token, with witnesses in the place of our modules: no kernel runs.

    The first is given an empty DynamicCache, as generate() does; the second what the first one
    gave back. Each layer, of class `layer`, must see our step and our cache in both.

    Raises:
        UnsupportedModel: the model leaves out what it was given; names the releases that do not.
        OutOfMemory: the KV cache has no block.
    """
    subject = model if model.can_generate() else base
    name, inner = cache_argument(subject), cache_argument(base)
    carried: Any = DynamicCache(config=base.config)
    for columns in (1, 2):
        given = {name: carried, "use_cache": True}
        calls, output = _recorded_calls(subject, base, replaced, layer, columns, given)
        _check_steps(calls)
        carried = calls[0]["va_step"].owner
        if any(call.get(inner) is not carried for call in calls):
            raise _not_taken("its layers are not given the cache")
        if output.get(name) is not carried or carried.get_seq_length() != columns:
            raise _not_taken("it does not carry the cache on")
    carried.reset()


def check_encoder(base: Any, replaced: Sequence[Replacement], layer: type) -> None:
    """One forward of one token: each layer must be given our step.

    Raises:
        UnsupportedModel: the model leaves it out; names the releases that do not.
    """
    calls, _ = _recorded_calls(base, base, replaced, layer, 1, {})
    _check_steps(calls)


class _CallRecorder(torch.nn.Module):
    """Stands in the place of a module of ours: notes its call, and gives its input back."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first argument, or what embeddings were given in the place of words."""
        self.calls.append(kwargs)
        return args[0] if args else kwargs.get("inputs_embeds", kwargs.get("hidden_states"))


def _recorded_calls(
    subject: Any,
    base: Any,
    replaced: Sequence[Replacement],
    layer: type,
    columns: int,
    given: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], Any]:
    """The calls of the layers in a forward of the last of `columns` tokens, and its output."""
    calls: list[dict[str, Any]] = []
    device = base.device
    nothing = torch.zeros(1, 1, base.config.hidden_size, dtype=base.dtype, device=device)
    with _in_place(base, replaced, layer, calls), torch.no_grad():
        try:
            output = subject(
                inputs_embeds=nothing,
                attention_mask=torch.ones(1, columns, dtype=torch.long, device=device),
                output_attentions=False,
                output_hidden_states=False,
                return_dict=True,
                **given,
            )
        except VllmAdapterError:
            raise
        except Exception as error:  # whatever another release makes of our arguments
            line = " ".join(str(error).split())[:200]
            raise _not_taken(f"its forward ends in {type(error).__name__}: {line}") from error
    return calls, output


@contextmanager
def _in_place(
    base: Any, replaced: Sequence[Replacement], layer: type, calls: list[dict[str, Any]]
) -> Iterator[None]:
    """Witnesses in the place of our modules; those of layers write to `calls`."""
    training, base.training = base.training, False  # an adapted model in training is refused
    try:
        for parent, name, module in replaced:
            parent._modules[name] = _CallRecorder(calls if isinstance(module, layer) else [])
        yield
    finally:
        for parent, name, module in replaced:
            parent._modules[name] = module
        base.training = training


def _check_steps(calls: Sequence[Mapping[str, Any]]) -> None:
    if not calls or any(call.get("va_step") is None for call in calls):
        raise _not_taken("its layers are not given the step")


def _not_taken(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"transformers {transformers.__version__} does not take the cache and the step of an "
        f"adapted model: {what}",
        hint=f"pip install '{tested_releases()}', which were tried",
    )


def tested_releases() -> str:
    """The releases of transformers that were tried, as a requirement: what core declares."""
    from importlib_metadata import requires

    for line in requires("vllm-adapter-core") or ():
        requirement = Requirement(line)
        if requirement.name == "transformers":
            bounds = sorted(map(str, requirement.specifier), reverse=True)
            return f"transformers{','.join(bounds)}"
    raise AssertionError("core declares its transformers in pyproject.toml")
