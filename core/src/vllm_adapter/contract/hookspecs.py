"""The hooks an adapter may implement. All are optional and run at start-up, never per token.

An implementation may take fewer arguments than its specification: this is how hooks grow. Hooks
with a `device` go to the adapter that owns it; the others are asked one adapter at a time. No
release calls those of `contract.hooks.NOT_CALLED` yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pluggy

if TYPE_CHECKING:
    from vllm_adapter.contract.capability import Capability
    from vllm_adapter.contract.finding import Finding
    from vllm_adapter.engine.runtime.base import RuntimeAdapter
    from vllm_adapter.hostfacts.facts import HostFacts

PROJECT: Final = "vllm_adapter"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class AdapterSpec:
    """What core asks of an adapter's plug-in class. Every method here is a specification.

    A plug-in class need not derive from this. If it does, a type checker holds its hooks to these
    signatures, and with `typing.override` to these names.
    """

    @hookspec(firstresult=True)
    def probe(self, host: HostFacts) -> Sequence[Mapping[str, Any]] | None:
        """Refines the manifest's `match`: the devices found, or None for the default answer.

        Pure: works on host facts alone, also those of a pasted report. Each device is a mapping
        with `name`, and optionally `arch` and `evidence` (a list of sentences). An empty
        sequence says that the matched hardware is not this vendor's.
        """

    @hookspec(firstresult=True)
    def describe(self, device: str, host: HostFacts) -> Mapping[str, Any] | None:
        """Live values for a descriptor, in its own shape; each is marked `queried`."""

    @hookspec(firstresult=True)
    def open_runtime(self, device: str, capability: Capability) -> RuntimeAdapter | None:
        """A RuntimeAdapter, if the default for the manifest's `device` does not serve."""

    @hookspec(firstresult=True)
    def implementations(self) -> Sequence[Callable[..., Any]] | None:
        """Functions made with `@implementation`, beyond those in the descriptor."""

    @hookspec(firstresult=True)
    def diagnose(self, host: HostFacts) -> Sequence[Finding] | None:
        """Findings of the vendor's own rules that data cannot say."""

    @hookspec(firstresult=True)
    def plan_advice(
        self, demand: Mapping[str, Any], capability: Capability
    ) -> Mapping[str, Any] | None:
        """Constraints for the planner, which names the adapter beside each line that follows one.

        `demand` has the model's sizes (`planning.demand.ModelDemand.to_json`). The answer may hold
        `block_size`, `sequences`, `prefill_chunk`, `tensor_parallel` (the most that a group may
        have), `kv_dtype`, `compile_mode`, `environment` (names to texts) and `reason`; the
        operator's own flags win over it.
        """

    @hookspec(firstresult=True)
    def compiler(self, device: str, capability: Capability) -> str | None:
        """Dotted path of a `(graph_module, inputs)` callable."""

    @hookspec(firstresult=True)
    def communicator(self, device: str) -> str | None:
        """Dotted path of a communicator class. Not called yet."""

    @hookspec(firstresult=True)
    def vllm_platform(self, device: str, capability: Capability) -> str | None:
        """Dotted path of a vLLM Platform, if core's shapes do not serve. Not called yet."""


HOOKS: Final = tuple(name for name in vars(AdapterSpec) if not name.startswith("_"))
