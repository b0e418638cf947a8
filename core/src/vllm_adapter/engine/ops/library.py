"""Registration with torch: one Library for the life of the process, each overload once.

All overloads of an operator have one argument string. torch resolves a packet call to the
first overload that fits, in silence, hence the default is defined first, when this is imported;
and it aborts at exit where schemas of one operator differ.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.library import Library, register_fake

from vllm_adapter.engine.ops.spec import Fn, OpSpec
from vllm_adapter.errors import AdapterError
from vllm_adapter.manifest import check_name

NAMESPACE: Final = "vllm_adapter"
OURS: Final = ("core", "selected")
"""Overload names that no adapter may have."""
ANY_DEVICE: Final = "CompositeExplicitAutograd"

_LIBRARY: Final[Any] = Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call] # torch's
_registered: Final[dict[tuple[str, str], str]] = {}
"""What each (overload, dispatch key) runs, as a dotted path."""


def define_default(spec: OpSpec, kernel: Fn, fake: Fn) -> None:
    """Defines and implements `<op>.default`. Call it before any other overload of the operator."""
    _LIBRARY.define(spec.name + spec.schema)
    _LIBRARY.impl(spec.name, kernel, ANY_DEVICE)
    register_fake(f"{NAMESPACE}::{spec.name}", fake, lib=_LIBRARY)


def overload(spec: OpSpec, name: str, kernel: Fn, dispatch_key: str, identity: str) -> Any:
    """The overload `<op>.<name>`, defined and implemented for a dispatch key at first use.

    `identity` is what `kernel` stands for (its dotted path): asking again with the same one
    gives the same overload; with another it is an error, for torch would take the second
    function in silence.

    Raises:
        AdapterError: the name cannot name an overload, or already runs something else.
    """
    qualified = f"{spec.name}.{name}"
    fault = None if name in OURS else check_name(name)
    if fault:
        raise AdapterError(
            f"an implementation of {spec.name} {fault}",
            hint="rename the adapter, or the entry's `variant`",
        )
    packet = getattr(torch.ops.vllm_adapter, spec.name)
    if name not in packet.overloads():
        _LIBRARY.define(qualified + spec.schema)
        register_fake(f"{NAMESPACE}::{qualified}", spec.fake, lib=_LIBRARY)
    known = _registered.get((qualified, dispatch_key))
    if known is None:
        _LIBRARY.impl(qualified, kernel, dispatch_key)
        _registered[qualified, dispatch_key] = identity
    elif known != identity:
        raise AdapterError(
            f"{qualified} already runs {known} on {dispatch_key}, and was asked to run {identity}",
            hint='give the second entry of the descriptor a "variant" of its own',
        )
    return getattr(packet, name)


def dispatch_key(device_type: str) -> str:
    """torch's dispatch key of a device type: "CPU", "CUDA", "PrivateUse1", ..."""
    return str(torch._C._dispatch_key_for_device(device_type))
