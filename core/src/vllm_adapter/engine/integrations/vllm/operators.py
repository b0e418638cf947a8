"""`register`: what the broker calls in each process once an adapter is chosen."""

from __future__ import annotations

from typing import Protocol

from vllm_adapter.engine.device import open_device
from vllm_adapter.engine.integrations.vllm import layers, linear, policy
from vllm_adapter.settings import Settings


class Chosen(Protocol):
    """The broker's choice; it calls `register` only where it has chosen an adapter."""

    @property
    def adapter(self) -> str | None:
        """Its name."""


def register(selection: Chosen) -> None:
    """Opens the adapter's device in this process and puts its operators into vLLM.

    A class of vLLM's is replaced only where the adapter declares the operator behind it. Calling
    it again for the same adapter changes nothing.

    Raises:
        AdapterError: the device cannot be opened.
        CapabilityError: its descriptor cannot be used.
    """
    name = selection.adapter
    assert name is not None, "the broker registers a choice"
    current = policy.in_use()
    if current is not None and current.adapter == name:
        return
    settings = Settings.from_environ()
    opened = open_device(name, settings=settings)
    compiler = opened.adapter.call(
        "compiler", device=opened.record.torch, capability=opened.capability
    )
    device = str(opened.device)
    policy.use(policy.InUse(name, device, opened.capability, settings, compiler))
    linear.replace()
    layers.replace()
