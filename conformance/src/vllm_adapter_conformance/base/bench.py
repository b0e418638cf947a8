"""The worker's side: the device, opened once and kept for all cases of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from vllm_adapter.errors import AdapterError
from vllm_adapter.settings import AdapterFilter, Fallback, Settings
from vllm_adapter_conformance.base.emulation import open_emulated
from vllm_adapter_conformance.base.target import Target

if TYPE_CHECKING:
    import torch

    from vllm_adapter.engine.device import OpenDevice
    from vllm_adapter.engine.ops.bind import Binding
    from vllm_adapter.engine.runtime import RuntimeAdapter
    from vllm_adapter_conformance.serving.runs import Runs

T = TypeVar("T")


class Bench:
    """Gives checks the adapter's opened device.

    The policy is `error` and no other adapter is asked, whatever VA_FALLBACK and VA_ADAPTERS are.
    """

    def __init__(
        self,
        target: Target,
        scratch: Path | None = None,
        open_serving: Callable[[Target, Path], Runs] | None = None,
    ) -> None:
        """`scratch` keeps the results of vLLM's engines for the workers of one run.

        `open_serving` starts them, for a bench that is to judge L4.
        """
        self.target = target
        self.say: Callable[[str], None] = lambda text: None
        """Tells whoever waits how far a long check is."""
        self._scratch = scratch
        self._open_serving = open_serving
        alone = AdapterFilter(allowed=frozenset({target.record.name}))
        self.settings = Settings(
            fallback=Fallback.ERROR, adapter=target.record.name, adapters=alone
        )

    @cached_property
    def opened(self) -> OpenDevice:
        """The device, its runtime and operators; opened at the first use."""
        from vllm_adapter.engine.device import open_record

        if self.target.device is None:
            raise AdapterError(
                f"adapter {self.target.record.name} has no device on this machine",
                hint="levels above L0 need the device: run on a machine that has it",
            )
        if self.target.emulator is not None:
            return open_emulated(self.target)
        given = Settings.from_environ()
        settings = dataclasses.replace(given, adapters=self.settings.adapters)
        return open_record(self.target.record, self.target.device.index, settings)

    @cached_property
    def serving(self) -> Runs:
        """Real vLLM, plain and with the adapter; engines start at the first use."""
        assert self._open_serving is not None, "a bench without vLLM was asked for it"
        if self._scratch is None:
            self._own_scratch = TemporaryDirectory(prefix="vllm-adapter-")
            self._scratch = Path(self._own_scratch.name)
        return self._open_serving(self.target, self._scratch / "serving")

    def observe(self, look: Callable[..., T], **given: Any) -> T:
        """What `look(bench, **given)` saw on the device: it acts and reports, and judges nothing.

        `look` is a function of a module. Given and seen are plain data: None, numbers, strings,
        bytes, host tensors, and lists, tuples or dicts of them. Whoever asks has drawn what is
        given and decides whether what was seen is right.
        """
        return look(self, **given)

    @property
    def runtime(self) -> RuntimeAdapter:
        """The device's runtime."""
        return self.opened.runtime

    @property
    def device(self) -> torch.device:
        """The torch device."""
        return self.opened.device

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, of its own memory also where the device is the host."""
        copied = tensor.to(self.device)
        return copied.clone() if copied.data_ptr() == tensor.data_ptr() else copied

    def bind(self, op: str, facts: dict[str, Any], owner: object = None) -> Binding:
        """Binds a case on the device under policy `error`."""
        from vllm_adapter.engine.ops.bind import bind
        from vllm_adapter.engine.ops.spec import OpCase

        return bind(OpCase.of(op, str(self.device), facts), self.settings, owner)
