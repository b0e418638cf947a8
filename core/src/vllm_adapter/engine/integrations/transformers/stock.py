"""A model held against its stock: another one of its class, made anew from its configuration.

What our layers take over is served only where it is what transformers itself would have made, and
where the code that would have run is transformers' and torch's own. Nothing here knows a kind of
alteration: whatever differs is a difference.
"""

from __future__ import annotations

import copy
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.transformers.binding_snapshot import (
    BindingSnapshot,
    global_hooks,
)
from vllm_adapter.engine.integrations.transformers.source import AlteredModel, CodeCheck, wrapped

READ: Final = frozenset({"variance_epsilon", "eps", "scaling", "attention_scaling"})
"""Numbers that our layers take from the module, so that they may differ from the stock's."""
WITHOUT_EFFECT: Final = frozenset(
    {
        "training",  # checked by itself
        "p",  # dropout does nothing outside of training, which is refused
        "attention_dropout",
        "gradient_checkpointing",  # only in training
        "_gradient_checkpointing_func",
        "max_seq_len_cached",  # read by rope types that change while they run, which are refused
        "original_max_seq_len",
        "_is_hf_initialized",  # written by from_pretrained
        "_is_full_backward_hook",  # a note beside the hooks, which are checked
    }
)
ATTENTION: Final = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
"""transformers' own implementations, which compute one and the same."""
RECORDER: Final = "transformers.utils.output_capturing"
"""Its hooks stay on a model that was asked for hidden states; an adapted one refuses to be."""


@dataclass(frozen=True, slots=True)
class ReplacedParts:
    """What of a base model is ours, by path below it; a path covers what is under it."""

    kept: frozenset[str]
    """Runs on as it is, whatever it is."""
    frames: frozenset[str]
    """Transformers' own that calls our layers: its code must be stock, its hooks keep running."""


@dataclass(eq=False)
class Inspection:
    """One comparison; raises `AlteredModel` at the first difference."""

    base: Any
    taken: ReplacedParts
    prefix: str
    watch: BindingSnapshot = field(default_factory=BindingSnapshot)
    code: CodeCheck = field(init=False)
    _dtype: torch.dtype | None = None
    _device: torch.device | None = None

    def __post_init__(self) -> None:
        self.code = CodeCheck(self.watch)

    def run(self) -> BindingSnapshot:
        """Compares everything; returns what must stay as it is while the model is ours.

        Raises:
            Altered: the first thing that differs.
        """
        if found := global_hooks():
            raise AlteredModel(f"torch has {found} for modules of all models")
        # Before the copy: code that was replaced would make an altered copy, or none.
        self.code.check_class(type(self.base), self._name(""))
        stock = stock_of(self.base)
        self._frame(self.base, stock, "", stock.config)
        self._attention()
        return self.watch

    def _attention(self) -> None:
        """Which attention would have run, and its mask."""
        asked = self.base.config._attn_implementation
        if asked not in ATTENTION:
            raise AlteredModel(f"the attention implementation {asked!r} is not transformers' own")
        self.code.check_attention(type(self.base), asked)

    def _name(self, path: str) -> str:
        return ".".join(part for part in (self.prefix, path) if part) or "the model"

    def _inspect(self, module: Any, stock: Any, path: str, config: Any) -> None:
        if path in self.taken.kept:
            return
        if type(module) is not type(stock):
            was, name = type(stock).__name__, type(module).__name__
            seen = f"{type(module).__module__}.{name}" if name == was else name
            raise AlteredModel(f"{self._name(path)} is a {seen} in the place of a {was}")
        self.code.check_class(type(module), self._name(path))
        if path in self.taken.frames:
            self._frame(module, stock, path, config)
        else:
            self._whole(module, stock, path, config)

    def _children(self, module: Any, stock: Any, path: str, config: Any) -> None:
        ours = {name: part for name, part in module._modules.items() if part is not None}
        theirs = {name: part for name, part in stock._modules.items() if part is not None}
        for name in (*ours, *theirs):
            below = f"{path}.{name}" if path else name
            if below in self.taken.kept:
                continue
            if name not in theirs:
                raise AlteredModel(
                    f"{self._name(below)} is a module that the stock model does not have"
                )
            if name not in ours:
                raise AlteredModel(f"{self._name(below)} is missing")
        if [n for n in ours if n in theirs] != [n for n in theirs if n in ours]:
            raise AlteredModel(f"the modules of {self._name(path)} are in another order")
        for name, part in ours.items():
            if name in theirs:
                below = f"{path}.{name}" if path else name
                self._inspect(part, theirs[name], below, config)

    def _frame(self, module: Any, stock: Any, path: str, config: Any) -> None:
        name = self._name(path)
        for attribute in vars(module):
            if callable(getattr(type(module), attribute, None)):
                raise AlteredModel(f"{attribute} of {name} is replaced on the instance")
        for attribute in self.code.names_read(type(module)) & vars(stock).keys():
            self._attribute(module, stock, attribute, name, config)
        self._children(module, stock, path, config)

    def _whole(self, module: Any, stock: Any, path: str, config: Any) -> None:
        name = self._name(path)
        ours, theirs = vars(module), vars(stock)
        if module.training != self.base.training:
            raise AlteredModel(f"{name} is in another mode (training) than the model")
        for attribute in sorted(ours):
            if attribute.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
                if hooks := _hooks(ours[attribute]):
                    kind = attribute.partition("_hooks")[0].strip("_").replace("_", " ")
                    raise AlteredModel(f"{name} has a {kind} hook ({hooks[0]})")
            elif attribute not in theirs and attribute not in WITHOUT_EFFECT:
                raise AlteredModel(f"{name} has {attribute}, which the stock model does not have")
        for attribute in theirs:
            if attribute not in INTERNAL and "_hooks" not in attribute:
                self._attribute(module, stock, attribute, name, config)
        self._tensors(module, stock, name)
        self._children(module, stock, path, config)

    def _attribute(self, module: Any, stock: Any, attribute: str, name: str, config: Any) -> None:
        if attribute in WITHOUT_EFFECT:
            return
        if attribute not in vars(module):
            raise AlteredModel(f"{name} has lost {attribute}")
        ours, theirs = vars(module)[attribute], vars(stock)[attribute]
        if theirs is config:
            if ours is not self.base.config:
                raise AlteredModel(f"{name} has a configuration of its own")
        elif attribute in READ and type(ours) in (int, float):
            if not (math.isfinite(ours) and ours > 0):
                raise AlteredModel(f"{attribute} of {name} is {ours}")
        elif not same(ours, theirs, module, stock):
            raise AlteredModel(
                f"{attribute} of {name} is {_short(ours)}, and by the configuration "
                f"{_short(theirs)}"
            )

    def _tensors(self, module: Any, stock: Any, name: str) -> None:
        for kind in ("_parameters", "_buffers"):
            ours, theirs = vars(module)[kind], vars(stock)[kind]
            for key in (*ours, *theirs):
                given, expected = ours.get(key), theirs.get(key)
                if given is None and expected is None:
                    continue
                if given is None or expected is None:
                    what = "is missing" if given is None else "is not in the stock model"
                    raise AlteredModel(f"{name}.{key} {what}")
                self._tensor(given, expected, f"{name}.{key}", kind)

    def _tensor(self, given: Any, expected: Any, name: str, kind: str) -> None:
        if type(given) is not type(expected) or type(given.data) is not torch.Tensor:
            raise AlteredModel(
                f"{name} is a {type(given).__name__}, no plain {type(expected).__name__}"
            )
        if given.shape != expected.shape:
            raise AlteredModel(
                f"{name} is {tuple(given.shape)}, and by the configuration {tuple(expected.shape)}"
            )
        if given.layout != torch.strided or given.is_meta:
            raise AlteredModel(f"{name} is on the meta device, or sparse")
        self._device = self._device or given.device
        if given.device != self._device:
            raise AlteredModel(f"{name} is on {given.device}, and other parts on {self._device}")
        if kind == "_parameters":
            self._dtype = self._dtype or given.dtype
            if given.dtype != self._dtype:
                raise AlteredModel(f"{name} is {given.dtype}, and other parts {self._dtype}")


INTERNAL: Final = frozenset(vars(torch.nn.Module()))
"""What each module has for torch's own sake."""


def inspect_model(base: Any, taken: ReplacedParts, prefix: str) -> BindingSnapshot:
    """Holds a base model against its stock; `prefix` is its own path.

    Raises:
        Altered: the first thing that differs, named by its path.
    """
    return Inspection(base, taken, prefix).run()


def is_plain_linear(module: Any, owner: Any, like: Any) -> bool:
    """Whether a linear and the module that calls it are torch's and transformers' own.

    What is not is left to run as it is, also where dtype or device are not those of `like`.
    """
    if type(module) is not torch.nn.Linear or "forward" in vars(owner):
        return False
    code = CodeCheck(BindingSnapshot())
    try:
        for part in (owner, module):
            code.check_class(type(part), "")
    except AlteredModel:
        return False
    extras = vars(module).keys() - vars(torch.nn.Linear(1, 1, device="meta")).keys()
    plain = all(
        type(p) is torch.nn.Parameter for p in module._parameters.values() if p is not None
    )
    hooks = any(_hooks(value) for key, value in vars(module).items() if "_hooks" in key)
    first = next(like.parameters())
    plain = plain and (module.weight.dtype, module.weight.device) == (first.dtype, first.device)
    return plain and not hooks and extras <= WITHOUT_EFFECT


def stock_of(base: Any) -> Any:
    """A model of the same class from the same configuration, without memory.

    Raises:
        Altered: the configuration makes none.
    """
    config = copy.deepcopy(base.config)
    config._attn_implementation = "eager"  # what a package is missing for cannot be asked for
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return type(base)(config)
    except Exception as error:
        line = " ".join(str(error).split())[:200]
        raise AlteredModel(
            f"the configuration makes no {type(base).__name__} ({type(error).__name__}: {line})"
        ) from error


def same(ours: Any, theirs: Any, module: Any = None, stock: Any = None) -> bool:
    """Whether two attributes are the same: by value for data, by identity for code."""
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, types.MethodType):
        owner = ours.__self__ is module and theirs.__self__ is stock
        return owner and ours.__func__ is theirs.__func__
    if isinstance(ours, partial):
        parts = (ours.func, ours.args, ours.keywords), (theirs.func, theirs.args, theirs.keywords)
        return ours.func is theirs.func and parts[0][1:] == parts[1][1:]
    if isinstance(ours, Mapping):
        return ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list | tuple):
        pairs: Iterable[tuple[Any, Any]] = zip(ours, theirs, strict=False)
        return len(ours) == len(theirs) and all(same(a, b) for a, b in pairs)
    if isinstance(ours, bool | int | float | str | bytes | torch.dtype | torch.Size):
        return bool(ours == theirs)
    return False


def _hooks(registered: Any) -> list[str]:
    """Names of hooks, without those with which transformers notes outputs down."""
    values = registered.values() if isinstance(registered, Mapping) else ()
    found = []
    for value in values:
        hook = value[-1] if isinstance(value, tuple) else value
        if hook is True or hook is False:
            continue
        code = wrapped(hook)
        if code is None or code.__module__ != RECORDER or not CodeCheck.is_in_its_file(code):
            found.append(getattr(hook, "__name__", type(hook).__name__))
    return found


def _short(value: Any) -> str:
    if isinstance(value, bool | int | float | str | None.__class__):
        return repr(value)[:40]
    return f"a {type(value).__name__}"
