"""Our platform for a device that vLLM does not know: its facts are the adapter's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from vllm_adapter.engine.integrations.vllm import policy
from vllm_adapter.engine.integrations.vllm.generic import config, torch_names
from vllm_adapter.engine.integrations.vllm.generic.served import ServedDevice, served
from vllm_adapter.engine.integrations.vllm.mixin import PortableMixin
from vllm_adapter.errors import UnsupportedCase

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.kernel import IrOpPriorityConfig

_HERE: Final = "vllm_adapter.engine.integrations.vllm.generic"
_STAGED: Final = f"{_HERE}.communicator.HostStagedCommunicator"
_TORCHS: Final = (
    "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
)
_PUNICA: Final = f"{_HERE}.lora.TorchPunica"


class _DevicePlatform(Platform):
    """What vLLM asks of a platform, where its own answer is for a device that it knows.

    Below `PortableMixin`, whose `super()` this is.
    """

    _enum = PlatformEnum.OOT
    simple_compile_backend = "eager"
    served: ServedDevice

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """Those of the descriptor, the preferred first."""
        return self.served.dtypes

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Refuses what the descriptor has no units for."""
        config.check_dtype(cls.served, dtype)

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Refuses every kind: vLLM's methods for them are kernels of other devices."""
        config.refuse_quantization(cls.served, quant)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Our worker, the descriptor's block size, and no more than the device has."""
        config.update(cls.served, vllm_config)

    # -- the device --------------------------------------------------------------------------

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """As the adapter's probe named it."""
        found = next((d for d in cls.served.record.devices if d.index == device_id), None)
        return cls.served.name if found is None else found.name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes, as the runtime says."""
        return cls.served.runtime.query_memory_capacity(device_id).total_bytes

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Bytes that tensors hold."""
        return float(torch.accelerator.memory_allocated(device))

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """The descriptor's, or 1."""
        units = [one.units for one in cls.served.capability.compute_units.values()]
        return max((n for n in units if n), default=1)

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Makes a device the current one."""
        if not cls.served.is_host:
            cls.served.module.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seeds all devices' generators."""
        seed_all = getattr(cls.served.module, "manual_seed_all", torch.manual_seed)
        seed_all(seed)

    @classmethod
    def inference_mode(cls) -> Any:
        """Torch's own where the device's kernels are torch's own."""
        return torch.no_grad() if cls.served.is_of_library else torch.inference_mode()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """A C library's host memory is pinned by its runtime, not through torch."""
        return not cls.served.is_host and not cls.served.is_of_library

    # -- kernels -----------------------------------------------------------------------------

    @classmethod
    def import_kernels(cls) -> None:
        """None of vLLM's."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """None of vLLM's; the mixin adds ours."""

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: VllmConfig) -> IrOpPriorityConfig:
        """VLLM's own torch code; the mixin puts ours before it."""
        from vllm.config.kernel import IrOpPriorityConfig

        return IrOpPriorityConfig.with_default(["native"])

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Torch in the place of the engine's Triton kernels, where Triton has not this device."""
        from vllm_adapter.engine.integrations.vllm.generic import triton_free

        triton_free.replace(cls.served.torch_type)

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> NoReturn:
        """What is left where the mixin found nothing: there is no attention of vLLM's here."""
        raise UnsupportedCase(
            f"no attention runs on {cls.served.torch_type}: the operators of the adapter "
            f"{cls.served.record.name} are not in use in this process",
            hint="VLLM_PLUGINS must name vllm_adapter; see `vllm-adapter doctor --vllm`",
        )

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Attention stays one node of a graph."""
        return True

    @classmethod
    def get_punica_wrapper(cls) -> str:
        """LoRA in torch."""
        return _PUNICA

    # -- several devices ---------------------------------------------------------------------

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The adapter's; else torch.distributed's where it has the device; else by the host."""
        return communicator_of(cls.served)

    # -- features of vLLM's runner that need nothing of a device -----------------------------

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Windowed and full layers in one model."""
        return True

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """Layers are told apart by name."""


def communicator_of(device: ServedDevice) -> str:
    """The dotted class that a device's ranks talk by."""
    given = device.asked("communicator")
    if given is not None:
        return given
    has_torchs = device.is_host or device.dist_backend != "gloo"
    return _TORCHS if has_torchs else _STAGED


class _GenericMixin(PortableMixin):
    """The mixin, for a device on which vLLM has no attention of its own."""

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Ours, or a refusal with its reason."""
        if policy.in_use() is None:
            theirs: str = super().get_attn_backend_cls(
                selected_backend, attn_selector_config, num_heads
            )
            return theirs
        from vllm_adapter.engine.integrations.vllm.select import required_backend

        return required_backend(selected_backend, attn_selector_config)


def make(name: str, module: str) -> type:
    """The platform class of the chosen adapter's device, which torch knows from now on.

    Raises:
        AdapterError: as `served`.
    """
    device = served()
    # upstream: vllm@0.32 config/vllm.py:703 Model Runner V2 launches Triton kernels throughout
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    torch_names.stand_in(device)
    members = {
        "__module__": module,
        "served": device,
        "device_name": device.torch_type,
        "device_type": device.torch_type,
        "dispatch_key": "CPU" if device.is_host else _dispatch_key(device.torch_type),
        "dist_backend": device.dist_backend,
    }
    variable = device.capability.vllm.visible_devices_variable
    if variable is not None:
        members["device_control_env_var"] = variable
    return type(name, (_GenericMixin, _DevicePlatform), members)


def _dispatch_key(torch_type: str) -> str:
    taken = torch._C._get_privateuse1_backend_name()
    return "PrivateUse1" if torch_type == taken else torch_type.upper()
