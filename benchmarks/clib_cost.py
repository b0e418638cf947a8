"""What a call of a C library's operator costs the host, against the floor of ctypes.

    python benchmarks/clib_cost.py

The called library does nothing: it is compiled here, with the C compiler, and the simulated
accelerator's with it for the tensors. paged_attention has six tensors and an output. All lines are
measured in turns in one run, as CPU time of the thread, and each is the median of its rounds; on
a busy machine read them as ratios. Exit code 1 if a goal is missed: 8 us with shape checks, 3 us
where a plan pins shapes.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.ops.c_library.steps import PinnedStep
from vllm_adapter.engine.runtime.c_library.call import PreparedCall
from vllm_adapter.engine.runtime.device_from_clib.enable import enable

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import sim_library

ROUNDS: Final = 15
CALLS: Final = 20_000
FILLS: Final = 2_000
CHECKED_US, PINNED_US = 8.0, 3.0
EMPTY: Final = """
#include "vllm_adapter.h"
VA_EXPORT va_status nothing(const void *arguments) { (void)arguments; return VA_OK; }
"""


def main() -> int:
    """Prints the table; 1 if a goal is missed."""
    with tempfile.TemporaryDirectory() as folder:
        library = Library(sim_library.build_sim(Path(folder)))
        nothing = _nothing(Path(folder))
        streams = enable("sim", library).streams
        return _measure(library, nothing, streams)


def _measure(library: Library, nothing: Any, streams: Any) -> int:
    query, out = _put(4, 8, 64), _put(4, 8, 64)
    keys, values = _put(16, 24, 2, 64), _put(16, 24, 2, 64)
    table, lengths, starts = _put(4, 3, dtype=torch.int32), _whole(4), _whole(5)
    inputs = (query, keys, values, table, lengths, starts)
    call = PreparedCall(
        library,
        streams,
        "paged_attention",
        outputs="out",
        inputs="query key_cache value_cache block_table seq_lens query_start_loc",
        fields="scale window soft_cap",
    )
    call._function = nothing
    linear = PreparedCall(library, streams, "linear", outputs="out", inputs="x weight bias")
    write = PreparedCall(
        library,
        streams,
        "reshape_and_cache",
        inputs="key value key_cache value_cache slot_mapping",
    )
    linear._function = write._function = nothing
    row, weight, bias, product = _put(4, 64), _put(96, 64), _put(96), _put(4, 96)
    new_key, new_value, slots = _put(4, 2, 64), _put(4, 2, 64), _whole(4)
    key, pinned = (0.125, 0, 0.0), PinnedStep()
    layer, step = (query, keys, values), (table, lengths, starts)
    address = call.frame(key, (out,), inputs).address
    lines: dict[str, tuple[Callable[[], Any], int]] = {
        "ctypes: an empty function, one pointer": (lambda: nothing(address), CALLS),
        "a prepared call: shapes compared, 7 tensors": (lambda: call(key, (out,), inputs), CALLS),
        "a planned step's call: step's tensors pinned": (
            lambda: pinned(call, key, out, layer, step),
            CALLS,
        ),
        "linear in a step: shapes compared, 4 tensors": (
            lambda: linear((96,), (product,), (row, weight, bias)),
            CALLS,
        ),
        "reshape_and_cache: shapes compared, 5 tensors": (
            lambda: write((), (), (new_key, new_value, keys, values, slots)),
            CALLS,
        ),
        "a frame filled anew": (lambda: call.new_frame(key, (out,), inputs), FILLS),
        "a struct filled field by field, as ctypes does": (lambda: _by_fields(inputs), FILLS),
        "apart: torch.empty on the device": (
            lambda: torch.empty(4, 8, 64, device="sim:0"),
            FILLS,
        ),
        "apart: torch.empty on the CPU": (lambda: torch.empty(4, 8, 64), FILLS),
        "apart: reading the current stream": (lambda: streams.handle(0), CALLS),
    }
    spent: dict[str, list[float]] = {name: [] for name in lines}
    for _ in range(ROUNDS):  # interleaved, so that a busy moment hits every line
        for name, (run, number) in lines.items():
            spent[name].append(
                timeit.timeit(run, timer=time.thread_time, number=number) / number * 1e6
            )
    medians = {name: statistics.median(each) for name, each in spent.items()}
    for name, median in medians.items():
        print(f"{name:48} {median:7.2f} us   least {min(spent[name]):7.2f} us")
    checked, planned = list(medians.values())[1:3]
    print(f"goals: checked {checked:.2f} <= {CHECKED_US} us, planned {planned:.2f} <= {PINNED_US}")
    return int(checked > CHECKED_US or planned > PINNED_US)


def _by_fields(inputs: tuple[torch.Tensor, ...]) -> ctypes.Structure:
    arguments = abi.ARGUMENTS["paged_attention"]()
    names = ("query", "key_cache", "value_cache", "block_table", "seq_lens", "query_start_loc")
    for name, tensor in zip(names, inputs, strict=True):
        described = getattr(arguments, name)
        described.data, described.device = tensor.data_ptr(), tensor.get_device()
        described.dtype, described.ndim = abi.DTYPES["float32"], tensor.dim()
        described.shape[: tensor.dim()] = tensor.shape
        described.strides[: tensor.dim()] = tensor.stride()
    return arguments


def _nothing(folder: Path) -> Any:
    source, built = folder / "nothing.c", folder / "libnothing.so"
    source.write_text(EMPTY, encoding="utf-8")
    include = f"-I{sim_library.INCLUDE}"
    command = [sim_library.COMPILER, "-O2", "-shared", "-fPIC", include, str(source), "-o"]
    subprocess.run([*command, str(built)], check=True)
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    return kind(("nothing", ctypes.CDLL(str(built))))


def _put(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype).to("sim:0")


def _whole(count: int) -> torch.Tensor:
    return _put(count, dtype=torch.int32)


if __name__ == "__main__":
    raise SystemExit(main())
