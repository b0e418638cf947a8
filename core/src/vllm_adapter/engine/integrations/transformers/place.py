"""Where a module of ours goes in a transformers model, and what an adapted one refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vllm_adapter.errors import UnsupportedModel

Replacement = tuple[torch.nn.Module, str, Any]
"""A parent, the name of its part, and the module in that place."""

Forward = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a forward as a pre-hook gives them."""


def refuse_outputs(model: Any, given: Mapping[str, Any]) -> None:
    """Outputs that our layers do not keep, and training.

    Raises:
        UnsupportedModel: one of them is asked for.
    """
    for name in ("output_attentions", "output_hidden_states"):
        asked = given.get(name)
        if getattr(model.config, name, False) if asked is None else asked:
            raise UnsupportedModel(
                f"{name} is not served by an adapted model",
                hint=f"leave {name} unset, or unadapt(model)",
            )
    if model.training:
        raise UnsupportedModel(
            "an adapted model serves inference only", hint="call model.eval() first"
        )


def refuse_state_dict(*args: Any) -> None:
    """A hook on `state_dict`.

    Raises:
        UnsupportedModel: always.
    """
    raise UnsupportedModel(
        "the weights of an adapted model have names and shapes of our own, and are not saved",
        hint="unadapt(model), save it, then adapt it again",
    )


def never_called(*args: Any, **kwargs: Any) -> Any:
    """What stands for attention in transformers' table: our layers call their own.

    Raises:
        UnsupportedModel: always.
    """
    raise UnsupportedModel(
        "an attention layer of transformers ran in an adapted model",
        hint="unadapt(model), then adapt it again",
    )
