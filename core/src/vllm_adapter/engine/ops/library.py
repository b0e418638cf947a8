"""Registration with torch: one Library for the life of the process, each overload once.

All overloads of an operator have one argument string. torch resolves a packet call to the
first overload that fits, in silence, hence the default is defined first, when this is imported;
and it aborts at exit where schemas of one operator differ. Where the package is imported a second
time in one process, what torch has is used again, and runs the newest import's functions.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
from torch.library import Library, register_fake

from vllm_adapter.contract.manifest import check_name
from vllm_adapter.engine.ops import registrations
from vllm_adapter.engine.ops.spec import Fn, OpSpec
from vllm_adapter.engine.process_objects import process_object, stand_in
from vllm_adapter.errors import AdapterError

NAMESPACE: Final = "vllm_adapter"
OURS: Final = ("core", "selected")
"""Overload names that no adapter may have."""
ANY_DEVICE: Final = "CompositeExplicitAutograd"


def _make() -> tuple[Any, str]:
    made = Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call] # torch's
    return made, sys._getframe().f_code.co_filename


_LIBRARY, _FILE = process_object("library", _make)
"""The library, and where it was made: torch writes that beside each of its registrations."""
_schemas: Final[dict[str, str]] = process_object("schemas", dict)
"""What we defined with torch, by qualified name."""
_registered: Final[dict[tuple[str, str], str]] = {}
"""What each (overload, dispatch key) runs, as a dotted path."""


def define_default(spec: OpSpec, kernel: Fn, fake: Fn) -> None:
    """Defines and implements `<op>.default`. Call it before any other overload of the operator."""
    _define(spec.name, spec, fake)
    _implement(spec.name, ANY_DEVICE, kernel)


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
    known = _registered.get((qualified, dispatch_key))
    if known is None:
        _define(qualified, spec, spec.fake)
        _implement(qualified, dispatch_key, kernel)
        _registered[qualified, dispatch_key] = identity
    elif known != identity:
        raise AdapterError(
            f"{qualified} already runs {known} on {dispatch_key}, and was asked to run {identity}",
            hint='give the second entry of the descriptor a "variant" of its own',
        )
    return getattr(getattr(torch.ops.vllm_adapter, spec.name), name)


def refuse_foreign() -> None:
    """Looks whether anybody else registered something for one of our operators.

    torch takes a kernel for our overload from whoever loads a library of our namespace; it would
    run in place of the adapter's that is named. An overload that we did not define counts, too: it
    has, or would take, the name of one of an adapter's.

    Raises:
        AdapterError: what was registered, and who did it.
    """
    ours = {name.partition(".")[0] for name in _schemas}
    found = [name for name in _in_namespace() if name.partition(".")[0] in ours]
    registrations.refuse(registrations.foreign(found, _FILE))


def foreign() -> list[registrations.ForeignRegistration]:
    """What others registered in our namespace, operators of their own included."""
    return registrations.foreign(_in_namespace(), _FILE)


def _in_namespace() -> list[str]:
    """Every operator of our namespace that torch knows, whoever defined it."""
    names = torch._C._dispatch_get_all_op_names()
    ours = sorted(name for name in names if name.startswith(f"{NAMESPACE}::"))
    return [name.partition("::")[2] for name in ours]


def dispatch_key(device_type: str) -> str:
    """torch's dispatch key of a device type: "CPU", "CUDA", "PrivateUse1", ..."""
    return str(torch._C._dispatch_key_for_device(device_type))


def _define(qualified: str, spec: OpSpec, fake: Fn) -> None:
    """Defines an overload once a process; its fake is the newest import's."""
    known = _schemas.get(qualified)
    if known is not None and known != spec.schema:
        raise AdapterError(
            f"another release of vllm-adapter-core was imported in this process before: it "
            f"defined {qualified}{known}, and this one needs {spec.schema}",
            hint="restart Python (in a notebook: its kernel), and import it once",
        )
    registered = stand_in((qualified, "fake"), fake)
    if known is None:
        try:
            _LIBRARY.define(qualified + spec.schema)
        except RuntimeError:
            refuse_foreign_of(qualified)
            raise
        _schemas[qualified] = spec.schema
    if registered is not None:
        register_fake(f"{NAMESPACE}::{qualified}", registered, lib=_LIBRARY)


def _implement(qualified: str, key: str, kernel: Fn) -> None:
    registered = stand_in((qualified, key), kernel)
    if registered is None:
        return
    try:
        _LIBRARY.impl(qualified, registered, key)
    except RuntimeError:  # torch refuses a second kernel of Python's for one key
        refuse_foreign_of(qualified)
        raise


def refuse_foreign_of(qualified: str) -> None:
    """As `refuse_foreign`, for one overload."""
    registrations.refuse(registrations.foreign([qualified], _FILE))
