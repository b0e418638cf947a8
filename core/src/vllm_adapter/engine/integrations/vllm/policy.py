"""Binding for vLLM, whose own kernels stay where no adapter's bind.

Under VA_FALLBACK=warn and allow, vLLM's own kernel is what runs where nothing binds: core's
portable code is no candidate (it would be slower than what it replaces), unless VA_OPS names
it. Under `error` what does not bind is refused.

In the native shape an adapter that has measured its operators against vLLM's own kernels
(`vllm.relative_speed` of its descriptor) replaces those alone that were not slower, unless VA_OPS
names an operator or the policy is `error`: what was asked for runs, and what it costs is said.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from dataclasses import dataclass
from typing import Final

import importlib_metadata
import torch

from vllm_adapter.broker.vllm_fit import REPLACED
from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.contract.resolve import GENERIC, RANKS, candidates
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.engine.integrations.vllm import who_runs
from vllm_adapter.engine.integrations.vllm.counters import counted
from vllm_adapter.engine.ops.bind import Binding, bind
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.engine.ops.spec import Facts, Fn, OpCase
from vllm_adapter.engine.registries import on_reset
from vllm_adapter.errors import UnsupportedCase
from vllm_adapter.settings import Fallback, Settings

log = logging.getLogger("vllm_adapter.integrations")


@dataclass(frozen=True, slots=True)
class ActiveAdapter:
    """The adapter that serves vLLM in this process."""

    record: AdapterRecord
    device: str
    capability: Capability
    settings: Settings
    compiler: str | None
    """Dotted path of a `(graph_module, inputs)` callable, if the adapter gives one."""
    shape: str = "native"
    """As in the selection: "native" or "generic"."""

    @property
    def has_vllms(self) -> bool:
        """Whether vLLM has kernels of its own for the device, which stay where nothing binds."""
        return self.shape == "native"


_in_use: ActiveAdapter | None = None
_WITHOUT_CLASS: Final = ("paged_attention", "reshape_and_cache", "attention")
"""Operators for which vLLM has no plain torch code: on a device that it does not know, core's
is the only other that there is."""


def use(chosen: ActiveAdapter | None) -> None:
    """Sets what serves vLLM in this process; what was bound by width is bound anew."""
    global _in_use
    if chosen is not None and _in_use is not None:
        _bind_width.cache_clear()
    _in_use = chosen


def in_use() -> ActiveAdapter | None:
    """What serves vLLM in this process; None before `operators.register`."""
    return _in_use


def concerns(op: str) -> bool:
    """Whether what vLLM has for an operator is replaced.

    It is where an adapter declares the operator in any case, where VA_OPS names a provider, and
    under VA_FALLBACK=error, which refuses what does not bind.
    """
    chosen = _in_use
    if chosen is None or op not in OPERATORS:
        return False
    if chosen.settings.fallback is Fallback.ERROR:
        return True
    slower = measured_slower(op)
    if slower is not None:
        who_runs.note(op, who_runs.VLLM, slower)
        return False
    serving = PROVIDERS.serving(chosen.device)
    found = candidates(op, serving, chosen.settings, chosen.device)
    declared = any(c.rank != "generic" and c.entry.declares for c in found)
    if not declared:
        who_runs.note(op, who_runs.VLLM, f"no adapter in use declares {op}")
    return declared


def require_adapter_kernel(op: str, facts: Facts, owner: object = None) -> Binding:
    """Binds to an adapter's implementation, whatever the policy, where vLLM has another.

    Raises:
        UnsupportedCase: no adapter accepts the case.
    """
    chosen = _in_use
    assert chosen is not None, "asked for only where operators.register has run"
    slower = measured_slower(op)
    if slower is not None:
        way = f"VA_OPS={op}:{chosen.record.name} takes it all the same"
        raise UnsupportedCase(slower, hint=way)
    settings = chosen.settings
    if chosen.has_vllms or op not in _WITHOUT_CLASS:
        settings = dataclasses.replace(settings, fallback=Fallback.ERROR)
    binding = bind(OpCase.of(op, chosen.device, facts), settings, owner=owner)
    for pick in dict.fromkeys(binding.picks.values()):
        provider = who_runs.CORE if pick.provider == GENERIC else pick.provider
        who_runs.note(op, provider, RANKS[pick.rank])
    return binding


def measured_slower(op: str) -> str | None:
    """Why vLLM's own kernel stays though the adapter has the operator; None where it may go."""
    chosen = _in_use
    if chosen is None or not chosen.has_vllms:
        return None
    if chosen.settings.fallback is Fallback.ERROR or op in chosen.settings.ops:
        return None
    return _slower(chosen, op)


def _slower(chosen: ActiveAdapter, op: str) -> str | None:
    speeds = chosen.capability.vllm.relative_speed
    if speeds is None:
        return None
    speed = speeds.get(op)
    if speed is None:
        return f"{chosen.record.name}'s {op} was not measured against vLLM's own kernel"
    if speed >= 1:
        return None
    return f"with {chosen.record.name}'s {op} decoding reaches {speed:g} of plain vLLM's speed"


def costs() -> list[str]:
    """One sentence for each operator that was asked for and is slower, or was not measured."""
    chosen = _in_use
    if chosen is None or not chosen.has_vllms:
        return []
    is_error = chosen.settings.fallback is Fallback.ERROR
    asked = REPLACED if is_error else chosen.settings.ops
    why = "VA_FALLBACK=error" if is_error else "VA_OPS"
    declared = [op for op in asked if op in chosen.capability.operators]
    return [f"{found}, and {why} asks for it" for op in declared if (found := _slower(chosen, op))]


def bound(op: str, facts: Facts) -> Binding | None:
    """Binds, or says once why vLLM keeps its own and gives None.

    Raises:
        UnsupportedCase: no adapter accepts the case, and VA_FALLBACK=error.
    """
    try:
        return require_adapter_kernel(op, facts)
    except UnsupportedCase as refused:
        report_fallback(op, refused)
        return None


def report_fallback(op: str, refused: UnsupportedCase) -> None:
    """Leaves a case to vLLM, or refuses it.

    Raises:
        UnsupportedCase: `refused`, where VA_FALLBACK=error.
    """
    chosen = _in_use
    if chosen is None or chosen.settings.fallback is Fallback.ERROR:
        raise refused
    who_runs.note(op, who_runs.VLLM, refused.message)
    if (op, refused.message) in _said:
        return
    _said.add((op, refused.message))
    level = logging.WARNING if chosen.settings.fallback is Fallback.WARN else logging.INFO
    log.log(level, "vLLM keeps its own %s: %s", op, refused.message)


_said: Final[set[tuple[str, str]]] = set()
on_reset(_said.clear)
on_reset(lambda: use(None))


def fingerprint(chosen: ActiveAdapter) -> str:
    """What decides who runs an operator: a graph that was compiled under another is another."""
    settings = chosen.settings
    facts = {
        "adapter": [chosen.record.name, chosen.record.version, chosen.device, chosen.shape],
        "capability": chosen.capability.raw,
        "fallback": settings.fallback.value,
        "library": str(settings.library),
        "ops": dict(settings.ops),
        "core": importlib_metadata.version("vllm-adapter-core"),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def run_of(binding: Binding) -> Fn:
    """What runs a binding, counted where VA_COUNTERS asks for it."""
    providers = dict.fromkeys(pick.provider for pick in binding.picks.values())
    return counted(binding.case.op, "+".join(providers), binding.run)


class ByWidth:
    """An operator whose only size is known when it is called: bound once for each width.

    `find` may be traced: the width, hence who runs it, is a constant of the graph.
    """

    def __init__(self, op: str, **facts: bool) -> None:
        self.op = op
        self._facts = tuple(facts.items())

    def find(self, dtype: torch.dtype, width: int) -> Fn | None:
        """What runs this width, or None where vLLM's own does.

        Raises:
            UnsupportedCase: nothing does, and VA_FALLBACK=error.
        """
        name = _settled(self.op, self._facts, dtype, width)
        found: Fn | None = getattr(_by_width, name)
        return found


class _ByWidth:
    """What runs each width, as attributes: dynamo copies a dict, and reads those as they are."""


_by_width: Final = _ByWidth()


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator] # torch's
def _settled(op: str, facts: tuple[tuple[str, bool], ...], dtype: torch.dtype, width: int) -> str:
    """The name of a width's attribute. Dynamo calls this, and does not trace it."""
    return _bind_width(op, facts, dtype, width)


@functools.cache
def _bind_width(
    op: str, facts: tuple[tuple[str, bool], ...], dtype: torch.dtype, width: int
) -> str:
    dtype_name = str(dtype).removeprefix("torch.")
    name = "_".join((op, *(f"{fact}_{value}" for fact, value in facts), dtype_name, str(width)))
    found = bound(op, {"dtype": dtype_name, "hidden": width, **dict(facts)})
    setattr(_by_width, name, None if found is None else run_of(found))
    return name


on_reset(_bind_width.cache_clear)
