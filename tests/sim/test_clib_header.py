"""vllm_adapter.h alone, under two compilers' strictest modes; its ctypes mirror against C."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import pytest
import sim_library

from vllm_adapter.c_abi import abi

pytestmark = pytest.mark.sim
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
USER = """
#include "vllm_adapter.h"

/* What a vendor's file does with the header: fills a table, reads arguments, exports it. */
static va_status linear(const va_linear_args *args) {
  return args->out.ndim == VA_MAX_DIMS && args->x.data ? VA_OK : VA_ERROR_UNSUPPORTED;
}

const va_api *va_get_api(uint32_t major, uint32_t minor) {
  static va_api api;
  if (major != VA_ABI_MAJOR || minor > VA_ABI_MINOR) return 0;
  api.size = sizeof(va_api);
  api.abi_major = VA_ABI_MAJOR;
  api.linear = linear;
  return VA_DTYPE_BIT(VA_FLOAT8_E5M2) > 1 ? &api : 0;
}
"""
STRUCTS = {
    "va_tensor": abi.Tensor,
    "va_managed_tensor": abi.ManagedTensor,
    "va_device_info": abi.VaDeviceInfo,
    "va_memory_stats": abi.VaMemoryStats,
    "va_api": abi.Api,
    **{f"va_{kind.__name__.lstrip('_')}": kind for kind in abi.ARGUMENTS.values()},
}
IRREGULAR = {"logical_not": "not", "floor_divide": "floor_div"}
ERRORS = (
    *("INVALID", "NO_DEVICE", "OUT_OF_MEMORY", "UNSUPPORTED", "LAUNCH", "DEVICE_LOST"),
    *("NOT_DEVICE", "FORKED", "INTERNAL"),
)
STRUCTS["va_attention_args"] = STRUCTS.pop("va_AttentionArgs")


def compiler(*names):
    found = next((name for name in names if shutil.which(name)), None)
    if found is None:
        pytest.skip(f"there is no {' or '.join(names)}")
    return found


@pytest.mark.parametrize(
    ("names", "standard", "suffix"),
    [
        (("gcc", "cc"), "c99", ".c"),
        (("clang",), "c99", ".c"),
        (("g++", "c++"), "c++17", ".cpp"),
        (("clang++",), "c++17", ".cpp"),
    ],
)
def test_a_file_that_uses_the_header_alone_compiles_without_a_warning(
    names, standard, suffix, tmp_path
):
    source = tmp_path / f"user{suffix}"
    source.write_text(USER)
    subprocess.run(
        [
            *(compiler(*names), f"-std={standard}", *STRICT, f"-I{sim_library.INCLUDE}"),
            *("-c", str(source), "-o", str(tmp_path / "user.o")),
        ],
        check=True,
    )


NESTED = {
    "device_type": "device.type",
    "device_id": "device.id",
    "code": "dtype.code",
    "bits": "dtype.bits",
    "lanes": "dtype.lanes",
}
"""Fields of DLPack's tensor that C has in structs of their own."""
NUMBERS = {
    **{f"VA_{name.upper()}": number for name, number in abi.DTYPES.items()},
    **{f"VA_OP_{name.upper()}": number for number, name in enumerate(abi.OPERATORS)},
    **{f"VA_FENCE_{name.upper()}": number for number, name in enumerate(abi.FENCES)},
    **{
        f"VA_{IRREGULAR.get(name, name).upper()}": number
        for names in (abi.UNARY, abi.BINARY, abi.REDUCE)
        for number, name in enumerate(names)
    },
    **{f"VA_ERROR_{name}": getattr(abi, name) for name in ERRORS},
    "VA_OK": abi.OK,
    "VA_NOT_READY": abi.NOT_READY,
    "VA_ABI_MAJOR": abi.MAJOR,
    "VA_ABI_MINOR": abi.MINOR,
    "VA_MAX_DIMS": abi.MAX_DIMS,
    "VA_OP_COUNT": len(abi.OPERATORS),
}


def fields(kind):
    """(name in C, ctypes' field) of a struct, and of the tensor in va_managed_tensor."""
    for name, inner, *_ in kind._fields_:
        yield name, getattr(kind, name)
        if kind is abi.ManagedTensor and name == "tensor":
            for part, _ in inner._fields_:
                yield f"tensor.{NESTED.get(part, part)}", getattr(inner, part)


def test_every_size_offset_and_number_is_that_of_c(tmp_path):
    lines, expected = [], []
    for c_name, kind in STRUCTS.items():
        lines.append(f'printf("{c_name} %zu\\n", sizeof({c_name}));')
        expected.append(f"{c_name} {ctypes.sizeof(kind)}")
        for name, field in fields(kind):
            lines.append(
                f'printf("{c_name}.{name} %zu %zu\\n", offsetof({c_name}, {name}), '
                f"sizeof((({c_name} *)0)->{name}));"
            )
            expected.append(f"{c_name}.{name} {field.offset} {field.size}")
    for name, number in NUMBERS.items():
        lines.append(f'printf("{name} %d\\n", (int){name});')
        expected.append(f"{name} {number}")
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    body = "\n".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "vllm_adapter.h"\nint main(void) {{\n{body}\nreturn 0; }}\n'
    )
    subprocess.run(
        [
            *(sim_library.COMPILER, f"-I{sim_library.INCLUDE}", str(source)),
            *("-o", str(program)),
        ],
        check=True,
    )
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == expected


def test_the_mirror_has_every_function_of_the_table_in_its_order():
    header = (sim_library.INCLUDE / "vllm_adapter.h").read_text()
    table = header[header.index("typedef struct va_api {") : header.index("} va_api;")]
    assert tuple(re.findall(r"\(\*(\w+)\)\(", table)) == abi.FUNCTIONS
