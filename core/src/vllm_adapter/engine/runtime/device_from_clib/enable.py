"""`enable`: a library becomes the torch device of a name, for the life of the process."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Final

import torch
from torch.nn.utils.rnn import PackedSequence

from vllm_adapter.c_abi.library import Library
from vllm_adapter.contract.manifest import check_type_spelling
from vllm_adapter.discovery.adapter import one_line
from vllm_adapter.engine.process_objects import process_object
from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.module import device_module
from vllm_adapter.engine.runtime.device_from_clib.patches import PATCHES
from vllm_adapter.engine.runtime.device_from_clib.registration import register
from vllm_adapter.errors import AdapterError
from vllm_adapter.settings import Settings

_UNUSED: Final = "privateuseone"
_LOCK: Final = threading.Lock()
_enabled: Backend | None = None
_FORMER: Final[dict[str, Backend]] = process_object("device", dict)
"""By name, the backend that torch has; of an earlier import of this package, if there was one."""


def enabled() -> Backend | None:
    """The backend of this process, if there is one."""
    return _enabled


def enable(name: str, library: Library, settings: Settings | None = None) -> Backend:
    """Makes the library's devices `torch.device("<name>:<index>")`, and gives what serves them.

    torch has one place for such a device, and it cannot be emptied: another name or library in
    the same process is refused, the same again gives the same backend. It opens no device, so a
    fork after it is fine; after the first tensor it is not. It changes `torch.accelerator` for
    the whole process, also where torch has CUDA devices: so it is called on request, never on
    import. A process started by `spawn` calls it again; one that receives a tensor need not.

    Raises:
        AdapterError: torch lacks what is needed, the name cannot be used, or the place is taken.
        SettingError: a VA_* variable cannot be read.
    """
    global _enabled
    with _LOCK:
        if _enabled is not None:
            if (_enabled.name, _enabled.library.path) == (name, library.path):
                return _enabled
            raise AdapterError(
                f"this process has the device {_enabled.name} of {_enabled.library.path.name}, "
                f"and torch takes no second one ({name} of {library.path.name})",
                hint="use another process for it",
            )
        former = _FORMER.get(name)
        if former is None:
            _check(name, library)
        elif former.library.path != library.path:
            raise AdapterError(
                f"this process has the device {name} of {former.library.path}, from an earlier "
                f"import of vllm-adapter-core, and torch takes no second one ({library.path})",
                hint="restart Python (in a notebook: its kernel)",
            )
        settings = settings or Settings.from_environ()
        backend = Backend(name, library, settings.fallback)
        module = device_module(backend)
        if former is None:
            try:
                torch.utils.backend_registration._setup_privateuseone_for_python_backend(
                    name, backend_module=module
                )
            except RuntimeError as error:  # of a device type that torch has no module for: hip
                raise _unfit(library, f"is {name!r}: {one_line(error)}") from error
        else:
            _take_over(former, module)
        register(backend)
        for patch in PATCHES:
            patch(backend, module)
        _enabled = _FORMER[name] = backend
        return backend


def _take_over(former: Backend, module: ModuleType) -> None:
    """Lets a second import of this package serve the device of the first.

    The former's streams are not known to the new one, which could not order its work after theirs.
    """
    for index in range(former.library.device_count()):
        former.synchronize(index)
    setattr(torch, former.name, module)


def _check(name: str, library: Library) -> None:
    # upstream: pytorch@2.13 torch/utils/backend_registration.py:542
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        raise AdapterError(
            f"torch {torch.__version__} cannot take a device from Python",
            hint="install torch 2.13 or later",
        )
    fault = check_type_spelling(name)
    if fault:
        raise _unfit(library, fault)
    taken = torch._C._get_privateuse1_backend_name()
    if taken != _UNUSED:
        raise AdapterError(
            f"torch's one place for another device is taken by {taken} in this process",
            hint="use another process; TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading "
            "an installed package for it",
        )
    fault = _collision(name)
    if fault:
        raise _unfit(library, fault)


def _unfit(library: Library, fault: str) -> AdapterError:
    return AdapterError(
        f"the torch device type of {library.path.name} {fault}",
        hint="give the manifest's device another torch_type",
    )


def _collision(name: str) -> str | None:
    """What this release of torch has under a name that it would give to the device, or None."""
    # upstream: pytorch@2.13 torch/utils/backend_registration.py:60
    owners = (torch, torch.Tensor, torch.nn.Module, PackedSequence)
    for owner in owners:
        for made in (name, f"is_{name}"):
            if hasattr(owner, made):
                return f"is {name!r}, and torch {torch.__version__} has a {made} of its own"
    return None
