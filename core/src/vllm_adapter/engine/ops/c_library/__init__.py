"""Operators that a device's C library runs: what `"run": "library:rms_norm"` stands for."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.library import Library
from vllm_adapter.contract.decision import LIBRARY, OperatorEntry, Reject, library_refusal
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.engine.ops.c_library.kernels import make_kernel
from vllm_adapter.engine.ops.c_library.steps import plan_step
from vllm_adapter.engine.ops.spec import Fn, OpCase
from vllm_adapter.engine.runtime.c_library.streams import CurrentStreams
from vllm_adapter.errors import AdapterError


class LibraryOperators:
    """The operators of one library, for the adapter that brings it."""

    def __init__(self, library: Library, streams: CurrentStreams) -> None:
        self.library = library
        self._streams = streams
        self._kernels: dict[str, Fn] = {}

    def kernel(self, op: str) -> Fn:
        """The operator's implementation, one for the life of the process."""
        if op not in self._kernels:
            self._kernels[op] = make_kernel(self.library, self._streams, op)
        return self._kernels[op]

    @functools.cache  # noqa: B019 # there is one library in a process, for good
    def dtypes(self, op: str, device_id: int) -> tuple[str, ...]:
        """The dtypes that the library says its function has kernels for."""
        bits = ctypes.c_uint64()
        self.library.call(
            "operator_dtypes", device_id, abi.OPERATORS.index(op), ctypes.byref(bits)
        )
        return tuple(name for name, number in abi.DTYPES.items() if bits.value >> number & 1)


_SERVED: Final[dict[str, LibraryOperators]] = {}


def serve(adapter: str, library: Library, streams: CurrentStreams) -> LibraryOperators:
    """Lets entries of an adapter's descriptor name functions of its library.

    Raises:
        AdapterError: the adapter's operators run on another library already: torch keeps the
            first function of an overload for the life of the process.
    """
    known = _SERVED.setdefault(adapter, LibraryOperators(library, streams))
    if known.library.path != library.path:
        raise AdapterError(
            f"operators of adapter {adapter} run on {known.library.path} in this process, and "
            f"were asked to run on {library.path}",
            hint="use one library a process",
        )
    return known


def served(adapter: str) -> LibraryOperators:
    """The operators of an adapter's library; KeyError where none is open."""
    return _SERVED[adapter]


def kernel(run: str, adapter: str) -> Fn:
    """The implementation that an entry's `run` names.

    Raises:
        AdapterError: the adapter has no library open, or that has no such function.
    """
    found, op = _SERVED.get(adapter), run.removeprefix(LIBRARY)
    if found is None or op not in OPERATORS or not found.library.has(op):
        what = "has no C library open" if found is None else f"has a library without {op}"
        raise AdapterError(
            f"adapter {adapter} names {run}, and {what}",
            hint=f"`vllm-adapter validate {adapter}` checks every path of its descriptors",
        )
    return found.kernel(op)


def plan_of(entry: OperatorEntry, op: str) -> Fn | None:
    """How a step is planned for an entry that a library runs; None where that needs no plan."""
    return plan_step if OPERATORS[op].planned and entry.library_function is not None else None


def refusal(entry: OperatorEntry, op: str, case: OpCase, adapter: str) -> Reject | None:
    """Why the adapter's library does not run what its descriptor says it runs.

    `op` is the operator of the entry: for a composed case another one than the case's. None where
    the entry names no library's function, or all is well.
    """
    name, found = entry.library_function, _SERVED.get(adapter)
    if name is None:
        return None
    file = "" if found is None else found.library.path.name
    refused = library_refusal(entry, op, file, None if found is None else found.library.has)
    if refused is not None or found is None:
        return refused
    offered = found.dtypes(op, torch.device(case.device).index or 0)
    dtype = dict(case.facts)["dtype"]
    if dtype not in offered:
        reason = f"{file} has no kernel of {name} for this dtype"
        return Reject(reason, f"{entry.pointer}/dtypes", dtype, list(offered))
    return None
