"""`register`: what the broker calls in each process once an adapter is chosen."""

from __future__ import annotations

from vllm_adapter.broker.selection import Selection
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.engine.device import open_record
from vllm_adapter.engine.integrations.vllm import (
    layers,
    linear,
    metrics,
    norms,
    policy,
    vocabulary,
)
from vllm_adapter.settings import Settings


def register(selection: Selection) -> None:
    """Opens the adapter's first device in this process and puts its operators into vLLM.

    A class of vLLM's is replaced only where the adapter declares the operator behind it. Calling
    it again for the same adapter changes nothing.

    Raises:
        AdapterError: the device cannot be opened.
        CapabilityError: its descriptor cannot be used.
    """
    record = selection.record
    assert record is not None, "the broker registers a choice"
    current = policy.in_use()
    if current is not None and current.record.name == record.name:
        return
    _use(record, 0, selection.shape or "native")
    for sentence in policy.costs():
        policy.log.warning("%s", sentence)
    linear.replace()
    vocabulary.replace()
    layers.replace()
    norms.replace()
    metrics.install()


def use_device(index: int) -> None:
    """Binds from now on for another device of the adapter in use: that of this rank.

    Raises:
        NoSuchDevice: it has none of that index.
        AdapterError, CapabilityError: as `register`.
    """
    current = policy.in_use()
    if current is not None:
        _use(current.record, index, current.shape)


def _use(record: AdapterRecord, index: int, shape: str) -> None:
    settings = Settings.from_environ()
    opened = open_record(record, index, settings)
    compiler = opened.adapter.call(
        "compiler", device=opened.record.torch, capability=opened.capability
    )
    policy.use(
        policy.ActiveAdapter(
            record,
            str(opened.device),
            opened.capability,
            opened.own(settings),
            compiler,
            shape,
        )
    )
