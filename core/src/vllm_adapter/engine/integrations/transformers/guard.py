"""What keeps an adapted model true: nothing is put where it would have no effect.

Our modules refuse hooks and new parts; transformers' modules that ours stand for refuse them too,
for whoever still holds one; the model refuses whole what would reach only half of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch

from vllm_adapter.engine.integrations.layers import Linear
from vllm_adapter.engine.integrations.transformers.binding_snapshot import (
    BindingSnapshot,
    configured,
    global_hooks,
)
from vllm_adapter.errors import UnsupportedModel

HINT: Final = "unadapt(model), change it, then adapt it again"
SETTABLE: Final = frozenset({"training", "_compiled_call_impl"})
HOOKS: Final = tuple(
    name for name in dir(torch.nn.Module) if name.startswith(("register_", "add_"))
)
"""register_forward_hook, register_parameter, register_buffer, register_module and the others."""
ALTERING: Final = (
    "__deepcopy__",
    "__reduce_ex__",
    "activation_checkpointing_enable",
    "add_adapter",
    "dequantize",
    "enable_adapters",
    "enable_input_require_grads",
    "gradient_checkpointing_enable",  # its name before transformers 5.24
    "init_weights",
    "load_adapter",
    "resize_token_embeddings",
    "set_adapter",
    "tie_weights",
)
"""Methods of a transformers model that change modules of which some are ours."""


def refuse(what: str) -> NoReturn:
    """Refuses a change of an adapted model.

    Raises:
        UnsupportedModel: always.
    """
    raise UnsupportedModel(f"{what} is not served while the model is adapted", hint=HINT)


class SealedModule:
    """A module in an adapted model that takes neither hooks, parts nor weights once sealed."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refused once sealed, except for the mode."""
        if name not in SETTABLE and vars(self).get("_va_sealed"):
            refuse(f"setting {name} of {_what(self)}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Refused once sealed."""
        if vars(self).get("_va_sealed"):
            refuse(f"deleting {name} of {_what(self)}")
        super().__delattr__(name)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        if not is_no_change(fn, self):
            refuse("a change of dtype or device")
        return super()._apply(fn, recurse)  # type: ignore[misc]  # of torch.nn.Module

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        refuse("load_state_dict")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused: copies and pickles."""
        refuse("copying or pickling")


def _refusing(name: str) -> Any:
    original = getattr(torch.nn.Module, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if vars(self).get("_va_sealed"):
            refuse(f"{name} on {_what(self)}")
        return original(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, "Refused once sealed."
    return method


for _name in HOOKS:
    setattr(SealedModule, _name, _refusing(_name))


class NotThere(UnsupportedModel, AttributeError):
    """What is asked of a module of ours was the replaced module's; `hasattr` is just False."""


class ReplacementModule(SealedModule):
    """Goes before `torch.nn.Module` in the bases of our modules that stand in a model."""

    def __getattr__(self, name: str) -> Any:
        """Torch's; what is in no table of its own is not there.

        Raises:
            NotThere: always, of public names.
        """
        try:
            return super().__getattr__(name)  # type: ignore[misc]  # of torch.nn.Module
        except AttributeError:
            if name.startswith("_"):
                raise
        raise NotThere(
            f"{name} is not there while the model is adapted: {_what(self)} has it not", hint=HINT
        )


class PlacedLinear(ReplacementModule, Linear):
    """A linear outside of the layers."""


def seal(module: Any) -> None:
    """From here on the module refuses."""
    vars(module)["_va_sealed"] = True


class ReplacedModules:
    """Modules for which ours stand, while they do: each is of a class that refuses."""

    def __init__(self, roots: list[torch.nn.Module]) -> None:
        self._was: list[tuple[torch.nn.Module, type]] = []
        for module in dict.fromkeys(m for root in roots for m in root.modules()):
            self._was.append((module, type(module)))
            module.__class__ = _retired_class(type(module))
            seal(module)

    def restore(self) -> None:
        """Gives each its class back."""
        for module, kind in self._was:
            del vars(module)["_va_sealed"]
            module.__class__ = kind


_CLASSES: Final[dict[type, type]] = {}


def _retired_class(kind: type) -> type:
    if kind not in _CLASSES:
        space = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _CLASSES[kind] = type(kind.__name__, (SealedModule, kind), space)
    return _CLASSES[kind]


def guard_model(model: Any, base: Any) -> Callable[[], None]:
    """Makes the model refuse whole what would reach only half of it; returns the way back."""
    hooks, names = [], []
    for part in dict.fromkeys((model, base)):
        hooks.append(part.register_load_state_dict_pre_hook(_no_load))
        for name in ALTERING:
            if name == "__deepcopy__" or hasattr(type(part), name):
                vars(part)[name] = _refuser(name)
                names.append((part, name))
        vars(part)["_apply"] = _Applying(part)
        names.append((part, "_apply"))

    def undo() -> None:
        for hook in hooks:
            hook.remove()
        for part, name in names:
            vars(part).pop(name, None)

    return undo


def _refuser(name: str) -> Callable[..., None]:
    def method(*args: Any, **kwargs: Any) -> None:
        refuse(name)

    method.__name__ = name
    return method


@dataclass(eq=False)
class _Applying:
    """What `half()`, `to(...)` and the like go through: only what changes nothing."""

    module: Any

    def __call__(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_no_change(fn, self.module):
            refuse("a change of dtype or device")
        return type(self.module)._apply(self.module, fn, *args, **kwargs)


def is_no_change(fn: Callable[[torch.Tensor], torch.Tensor], module: Any) -> bool:
    """Whether what `Module.to` and the like apply gives such tensors back as they are."""
    like = next(module.parameters(), None)
    if like is None:
        return True
    probe = torch.empty(0, dtype=like.dtype, device=like.device)
    return fn(probe) is probe


def _no_load(*args: Any) -> None:
    refuse("load_state_dict")


def refuse_mode_and_dtype(module: Any, given: torch.Tensor, weight: torch.Tensor) -> None:
    """What torch would find too late, or never.

    Raises:
        UnsupportedModel: a layer alone is training, or states of another dtype come in.
    """
    if module.training:
        raise UnsupportedModel(
            "a layer of the adapted model is in training mode, and it serves inference only",
            hint="call model.eval() first",
        )
    if given.dtype != weight.dtype:
        raise UnsupportedModel(
            f"hidden states are {given.dtype}, and the adapted layers {weight.dtype}", hint=HINT
        )


@dataclass(eq=False)
class StepCheck:
    """What is looked at before each step; see `BindingSnapshot` for the rest."""

    watch: BindingSnapshot
    attention: str
    config: Any
    places: list[tuple[torch.nn.Module, str, Any]]
    """Parents, names, and the modules that must stay there for ours to run as planned."""
    hook: int
    """The number of our pre-hook: others must come before it."""

    def __post_init__(self) -> None:
        self._configured = configured(self.config)

    def __call__(self, base: Any) -> None:
        """Refuses a step of a model that was changed where it would have no effect.

        Raises:
            UnsupportedModel: the first change.
        """
        if changed := self.watch.changed():
            refuse(f"{changed} replaced")
        if found := global_hooks():
            refuse(f"torch's {found} for modules of all models")
        if self.config._attn_implementation != self.attention or base.config is not self.config:
            refuse("another attention implementation or configuration")
        if configured(self.config) != self._configured:
            refuse("a change of the attention in the configuration")
        for parent, name, module in self.places:
            if parent._modules.get(name) is not module:
                refuse(f"another module at {_path(base, parent, name)}")
        if next(reversed(base._forward_pre_hooks)) != self.hook:
            refuse("a forward pre-hook on the base model that was registered after adapt()")
        if "forward" in vars(base):
            refuse("another forward of the base model")


def _path(base: Any, parent: torch.nn.Module, name: str) -> str:
    """Where a part is: "layers.1 of the LlamaModel"."""
    above = next((path for path, module in base.named_modules() if module is parent), "")
    return f"{above}.{name} of the {type(base).__name__}".removeprefix(".")


def _what(module: Any) -> str:
    if isinstance(module, ReplacementModule):
        return "a part of the model that the adapter runs"
    return f"a {type(module).__name__} that the adapter runs in its own way"


def places_of(base: Any, replaced: list[tuple[torch.nn.Module, str, Any]]) -> list[Any]:
    """Where our modules stand below a base model, and the parents that lead there."""
    ours = {id(parent) for parent, _, _ in replaced}
    inner = [
        (parent, name, part)
        for parent in base.modules()
        if not isinstance(parent, ReplacementModule)
        for name, part in parent._modules.items()
        if part is not None and any(id(m) in ours for m in part.modules())
    ]
    return [*inner, *replaced]
