"""Whether a file is a shared library for this machine, from its header: nothing of it is run."""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vllm_adapter.errors import LibraryError
from vllm_adapter.files import read_bounded

_MAGIC: Final = b"\x7fELF"
_HEADER_BYTES: Final = 20
_BITS: Final[Mapping[int, int]] = {1: 32, 2: 64}
_ORDERS: Final[Mapping[int, str]] = {1: "little", 2: "big"}
_SHARED: Final = 3
_KINDS: Final[Mapping[int, str]] = {
    1: "an object file that was not linked",
    2: "a program",
    4: "a core dump",
}
_MACHINES: Final[Mapping[int, str]] = {
    3: "i386",
    8: "mips",
    20: "ppc",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv",
    258: "loongarch",
}
_SAME: Final[Mapping[str, str]] = {
    "amd64": "x86_64",
    "arm64": "aarch64",
    "ppc64le": "ppc64",
    "riscv64": "riscv",
    "loongarch64": "loongarch",
}
_BUILD: Final = "build the library for this machine, or name another file"


def check_file(path: Path) -> None:
    """Refuses a file that cannot be loaded into this process.

    Raises:
        LibraryError: no such file, no ELF shared library, or for another machine, word size or
            byte order.
    """
    if not sys.platform.startswith("linux"):
        raise LibraryError(
            f"{path} is not loaded: C libraries are loaded on Linux only",
            hint="run this on the box that has the device",
        )
    header = _read(path)
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        begins = f"it begins with {header[:8]!r}" if header else "it is empty"
        raise LibraryError(f"{path} is no ELF shared library: {begins}", hint=_BUILD)
    order = _ORDERS.get(header[5])
    bits = _BITS.get(header[4])
    kind, machine = struct.unpack_from(">HH" if order == "big" else "<HH", header, 16)
    built = _MACHINES.get(machine, f"machine number {machine}")
    here = platform.machine().lower()
    if built != _SAME.get(here, here):
        raise LibraryError(f"{path} is built for {built}, this machine is {here}", hint=_BUILD)
    if order is None or bits is None:
        what = "byte order" if order is None else "word size"
        raise LibraryError(f"{path} is of an unknown {what}", hint=_BUILD)
    if order != sys.byteorder:
        raise LibraryError(f"{path} is {order}-endian, this machine is not", hint=_BUILD)
    own_bits = 8 * struct.calcsize("P")
    if bits != own_bits:
        raise LibraryError(
            f"{path} is built for {bits} bits, this Python runs with {own_bits}", hint=_BUILD
        )
    if kind != _SHARED:
        raise LibraryError(
            f"{path} is {_KINDS.get(kind, f'of ELF type {kind}')}, and no shared library",
            hint="link it with -shared",
        )


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, _HEADER_BYTES, cut=True)
    except FileNotFoundError:
        raise LibraryError(
            f"there is no C library {path}",
            hint="check VA_LIBRARY if it is set, else install the adapter again",
        ) from None
    except OSError as error:
        raise LibraryError(
            f"{path} cannot be read: {error.strerror}", hint="name a file that you may read"
        ) from None
