"""A process in which a library's fault strikes: `python -m ... LIBRARY DEVICE`, without torch.

Prints a JSON object: by call, the name of its error's class, null where it succeeds.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.library import Library
from vllm_adapter.errors import VllmAdapterError

SIZE = 4096


def main() -> None:
    """Calls what a model's step calls, before and after the fault."""
    library, device = Library(Path(sys.argv[1])), int(sys.argv[2])
    host = ctypes.create_string_buffer(SIZE)
    seen: dict[str, str | None] = {}

    def call(step: str, name: str, *arguments: Any) -> None:
        try:
            library.call(name, *arguments)
        except VllmAdapterError as error:
            seen[step] = type(error).__name__
        else:
            seen[step] = None

    address = 0
    library.open(device)
    for again in ("", " again"):
        managed = ctypes.c_void_p()
        call(f"allocate{again}", "allocate", device, SIZE, 0, ctypes.byref(managed))
        if managed.value:
            address = abi.ManagedTensor.from_address(managed.value).tensor.data
        source = ctypes.addressof(host)
        call(f"copy{again}", "copy_to_device", device, 0, address, source, SIZE)
        call(f"wait{again}", "stream_synchronize", device, 0)
    free, total, stream = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    call("memory_info", "memory_info", device, ctypes.byref(free), ctypes.byref(total))
    call("stream_create", "stream_create", device, ctypes.byref(stream))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
