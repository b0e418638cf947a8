"""What we change of vLLM's own platform class: five methods, `super()` where nothing binds."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.engine.integrations.vllm import policy, release_differences
from vllm_adapter.errors import UnsupportedCase

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.platforms import Platform as _Platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig
else:
    _Platform = object

COMPILER: Final = "vllm_adapter.engine.integrations.vllm.compiler.AdapterCompiler"


class PortableMixin(_Platform):
    """Goes before a class of vLLM's. Before `operators.register` has run it changes nothing."""

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        """Our backend where an adapter binds the case, else vLLM's choice."""
        # Torch and vLLM's attention are still being imported when this module is.
        from vllm_adapter.engine.integrations.vllm.select import backend_for

        ours = backend_for(selected_backend, attn_selector_config) if policy.in_use() else None
        if ours is not None:
            return ours
        theirs: str = super().get_attn_backend_cls(
            selected_backend, attn_selector_config, num_heads
        )
        return theirs

    @classmethod
    def import_ir_kernels(cls) -> None:
        """vLLM's own providers, and ours beside them."""
        super().import_ir_kernels()
        if policy.in_use():
            from vllm_adapter.engine.integrations.vllm import ir

            ir.provide()

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: VllmConfig) -> IrOpPriorityConfig:
        """vLLM's order, with our provider before it for each operator that an adapter binds."""
        theirs = super().get_default_ir_op_priority(vllm_config)
        if not policy.in_use() or vllm_config.model_config is None:
            return theirs
        from vllm_adapter.engine.integrations.vllm import ir

        ours = ir.bound_operators(vllm_config.model_config)
        changed = {op: [ir.PROVIDER, *getattr(theirs, op)] for op in ours if hasattr(theirs, op)}
        return dataclasses.replace(theirs, **changed) if changed else theirs

    @classmethod
    def get_compile_backend(cls) -> str:
        """The adapter's compiler if it gives one, as vLLM's compilation of pieces wants it."""
        chosen = policy.in_use()
        if chosen is not None and chosen.compiler is not None:
            return COMPILER
        theirs: str = super().get_compile_backend()
        return theirs

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Our policy, then all that vLLM does.

        Raises:
            UnsupportedCase: VA_FALLBACK=error, and the model needs what no adapter runs.
        """
        chosen = policy.in_use()
        model: Any = vllm_config.model_config
        if chosen is not None and model is not None and release_differences.has_experts(model):
            policy.report_fallback(
                "mixture of experts",
                UnsupportedCase(
                    f"{model.model} is a mixture of experts, and there is no operator for its "
                    "routed layers",
                    hint="VA_FALLBACK=warn leaves them to vLLM",
                ),
            )
        super().check_and_update_config(vllm_config)
        if chosen is not None:
            release_differences.add_to_compile_key(vllm_config, policy.fingerprint(chosen))
        if chosen is not None and chosen.compiler is not None:
            theirs = super().get_compile_backend()
            _compile_with(chosen.compiler, vllm_config.compilation_config, theirs)


def _compile_with(compiler: str, config: Any, default: str) -> None:
    """Puts the adapter's compiler where vLLM's default is; one that the user named stays."""
    # upstream: vllm@0.32 engine/arg_utils.py makes this config before it loads plug-ins, so that
    # it asked for a backend when no adapter was in use
    if config.backend in (default, "inductor", COMPILER):
        is_in_pieces = config.mode.name == "VLLM_COMPILE"
        config.backend = COMPILER if is_in_pieces else compiler
        # upstream: vllm@0.32 would save what was compiled, and refuses what it cannot save
        os.environ.setdefault("VLLM_USE_AOT_COMPILE", "0")
