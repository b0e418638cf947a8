"""Whose kernel raised: an exception's traceback, held against what providers declare.

Nothing stands between a layer and its kernel. Only when an exception has come all the way up is
its traceback walked, so that a user reads which adapter's which operator failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import FrameSummary, extract_tb
from typing import Any

from vllm_adapter.discovery.adapter import one_line
from vllm_adapter.engine.device import OpenDevice
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.errors import AdapterError, VllmAdapterError

_OURS = "vllm_adapter."


@contextmanager
def kernels_blamed(opened: OpenDevice) -> Iterator[None]:
    """An exception of a provider's kernel on this device becomes an AdapterError that names it.

    All others pass, as do errors of ours.
    """
    try:
        yield
    except VllmAdapterError:
        raise
    except Exception as error:
        blamed = _blame(error, opened)
        if blamed is None:
            raise
        raise blamed from error


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A function that a provider's entry names, as far as its module is loaded."""

    provider: str
    op: str
    dotted: str
    file: str | None
    function: Any

    def ran(self, frame: FrameSummary) -> bool:
        """Whether a frame is of this function."""
        return (frame.filename, frame.name) == (self.file, self.dotted.rpartition(":")[2])

    def refused_its_arguments(self, error: Exception) -> bool:
        """Whether Python could not even call it: then the traceback has no frame of it."""
        name = getattr(self.function, "__qualname__", None)
        return (
            isinstance(error, TypeError)
            and name is not None
            and str(error).startswith(f"{name}()")
        )


def _blame(error: Exception, opened: OpenDevice) -> AdapterError | None:
    frames = extract_tb(error.__traceback__)
    for kernel in _kernels(opened):
        own = [i for i, frame in enumerate(frames) if kernel.ran(frame)]
        if own:
            # What the kernel called in its own file says more than the kernel's call does.
            last = [f for f in frames[own[0] :] if f.filename == kernel.file][-1]
            return _error(kernel.provider, f"its {kernel.op} ({kernel.dotted})", error, last)
        if kernel.refused_its_arguments(error):
            return _error(kernel.provider, f"its {kernel.op} ({kernel.dotted})", error, None)
    folder = opened.adapter.record.path
    theirs = [f for f in frames if folder is not None and f.filename.startswith(f"{folder}/")]
    if not theirs:
        return None
    return _error(opened.adapter.record.name, f"its {theirs[-1].name}", error, theirs[-1])


def _kernels(opened: OpenDevice) -> Iterator[_Kernel]:
    """What the providers on a device bring themselves, and not core for them."""
    name = opened.adapter.record.name
    for provider in sorted(PROVIDERS.serving(opened.device), key=lambda p: p.name != name):
        for op, entries in provider.entries.items():
            for entry in entries:
                for dotted in filter(None, (entry.run, entry.plan, entry.prepare_weights)):
                    module, _, path = dotted.partition(":")
                    loaded = sys.modules.get(module)
                    if loaded is not None and not module.startswith(_OURS):
                        yield _Kernel(
                            provider.name,
                            op,
                            dotted,
                            getattr(loaded, "__file__", None),
                            getattr(loaded, path, None),
                        )


def _error(name: str, what: str, error: Exception, frame: FrameSummary | None) -> AdapterError:
    place = f" ({frame.filename}:{frame.lineno})" if frame else ""
    return AdapterError(
        f"adapter {name}: {what} failed: {type(error).__name__}: {one_line(error)}{place}",
        hint=f"`vllm-adapter certify {name} --level L2` shows its failures; --debug the traceback",
    )
