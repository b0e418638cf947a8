"""Reading a library's table: what it must hold, and what an older one lacks."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

from vllm_adapter.c_abi import abi
from vllm_adapter.errors import LibraryError

ENTRY: Final = "va_get_api"
_OTHERS: Final = range(16)
"""Major versions that are asked for, to tell which one a library does speak."""
_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)
_REBUILD: Final = "build the library with the vllm_adapter.h of this release, or use another one"


def read_table(path: Path, library: ctypes.CDLL) -> abi.Api:
    """A copy of the library's table, as long as ours: what it lacks is NULL.

    Raises:
        LibraryError: no va_get_api, another major version, a short table, or a required function
            that is NULL.
    """
    try:
        get_api = library[ENTRY]
    except AttributeError:
        raise LibraryError(
            f"{path} exports no {ENTRY}: it is no library for vllm-adapter",
            hint=f"export it with VA_EXPORT, as vllm_adapter.h declares it; `nm -D {path.name}` "
            "shows what is exported",
        ) from None
    get_api.restype, get_api.argtypes = ctypes.c_void_p, (ctypes.c_uint32, ctypes.c_uint32)
    # Minor 0: a library of any minor version of ours serves.
    address = get_api(abi.MAJOR, 0)
    if not address:
        spoken = [n for n in _OTHERS if n != abi.MAJOR and get_api(n, 0)]
        what = f"ABI {', '.join(map(str, spoken))}" if spoken else "no ABI"
        raise LibraryError(
            f"{path} offers {what}, and this release speaks ABI {abi.MAJOR}", hint=_REBUILD
        )
    size = ctypes.c_uint32.from_address(address).value
    if size < abi.REQUIRED_BYTES:
        raise LibraryError(
            f"{path} has a table of {size} bytes, and the required functions end at "
            f"{abi.REQUIRED_BYTES}",
            hint="set va_api.size to sizeof(va_api)",
        )
    api = abi.Api()
    known = min(size, ctypes.sizeof(abi.Api))
    ctypes.memmove(ctypes.byref(api), address, known - known % _POINTER)
    if api.abi_major != abi.MAJOR:
        raise LibraryError(
            f"{path} was asked for ABI {abi.MAJOR}, and gives the table of ABI {api.abi_major}",
            hint=_REBUILD,
        )
    _check_functions(path, api)
    return api


def _check_functions(path: Path, api: abi.Api) -> None:
    missing = [
        name for name in abi.FUNCTIONS if name not in abi.OPTIONAL and not getattr(api, name)
    ]
    if missing:
        raise LibraryError(
            f"{path} leaves required functions NULL: {', '.join(missing)}",
            hint="only operators, tensor work and pinned memory may be NULL",
        )
    if bool(api.allocate_pinned) != bool(api.free_pinned):
        raise LibraryError(
            f"{path} has one of allocate_pinned and free_pinned, and not the other",
            hint="fill in both, or leave both NULL",
        )
