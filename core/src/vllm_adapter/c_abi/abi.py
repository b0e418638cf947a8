"""ctypes mirror of `vllm_adapter.h`; a test holds all sizes and offsets against C.

Nothing here loads a library or imports torch.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any, Final

MAJOR: Final = 1
MINOR: Final = 0
MAX_DIMS: Final = 5
DL_EXT_DEV: Final = 12
"""DLPack's device type of a chip that it has no number for; torch reads it as PrivateUse1."""

OK: Final = 0
INVALID: Final = 1
NO_DEVICE: Final = 2
OUT_OF_MEMORY: Final = 3
UNSUPPORTED: Final = 4
LAUNCH: Final = 5
DEVICE_LOST: Final = 6
NOT_DEVICE: Final = 7
FORKED: Final = 8
INTERNAL: Final = 9
NOT_READY: Final = 100

DTYPES: Final[Mapping[str, int]] = {
    "bool": 0,
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float16": 6,
    "bfloat16": 7,
    "float32": 8,
    "float64": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
}
"""va_dtype by torch's name of it."""

OPERATORS: Final = (
    "linear",
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "layer_norm",
    "gelu",
    "gelu_and_mul",
    "embedding",
    "rotary_embedding",
    "reshape_and_cache",
    "paged_attention",
    "attention",
)
"""va_operator: the index of a name is its number, and a function of the table has that name."""

FENCES: Final = ("subgroup", "workgroup", "device", "system")
UNARY: Final = (
    "copy",
    "neg",
    "abs",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "silu",
    "relu",
    "logical_not",
)
BINARY: Final = (
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "and",
    "or",
    "xor",
    "floor_divide",
    "remainder",
)
REDUCE: Final = (
    "sum",
    "mean",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "all",
    "any",
    "cumsum",
    "softmax",
)

_STREAM = c.c_uint64


class Tensor(c.Structure):
    """va_tensor."""

    _fields_ = (
        ("data", c.c_void_p),
        ("device", c.c_int32),
        ("dtype", c.c_int32),
        ("ndim", c.c_int32),
        ("reserved", c.c_int32),
        ("shape", c.c_int64 * MAX_DIMS),
        ("strides", c.c_int64 * MAX_DIMS),
    )


class _DLTensor(c.Structure):
    """DLPack's DLTensor, with its device and dtype laid open."""

    _fields_ = (
        ("data", c.c_void_p),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    )


class ManagedTensor(c.Structure):
    """va_managed_tensor."""

    _fields_ = (
        ("tensor", _DLTensor),
        ("manager", c.c_void_p),
        ("deleter", c.CFUNCTYPE(None, c.c_void_p)),
    )


class VaDeviceInfo(c.Structure):
    """va_device_info."""

    _fields_ = (
        ("size", c.c_uint32),
        ("capability_major", c.c_int32),
        ("capability_minor", c.c_int32),
        ("unified", c.c_int32),
        ("subgroup_size", c.c_int32),
        ("units", c.c_int32),
        ("alignment", c.c_uint64),
        ("total_memory", c.c_uint64),
        ("name", c.c_char * 64),
        ("arch", c.c_char * 32),
    )


class VaMemoryStats(c.Structure):
    """va_memory_stats."""

    _fields_ = (
        ("size", c.c_uint32),
        ("reserved", c.c_uint32),
        ("allocated_bytes", c.c_uint64),
        ("peak_bytes", c.c_uint64),
        ("live_allocations", c.c_uint64),
        ("link_bytes", c.c_uint64),
    )


def _arguments(
    name: str, tensors: str, *scalars: tuple[str, Any], word: str = "reserved"
) -> type[c.Structure]:
    """A struct of arguments: size, one 32-bit word, stream, tensors, scalars."""
    fields: list[tuple[str, Any]] = [("size", c.c_uint32), (word, c.c_int32), ("stream", _STREAM)]
    fields += [(tensor, Tensor) for tensor in tensors.split()]
    return type(name, (c.Structure,), {"_fields_": (*fields, *scalars), "__doc__": f"va_{name}."})


_EPS = ("eps", c.c_double)
_SCALE = (("scale", c.c_double), ("soft_cap", c.c_double))


class _AttentionArgs(c.Structure):
    """va_attention_args: two more words than the others before its stream."""

    _fields_ = (
        ("size", c.c_uint32),
        ("window", c.c_int32),
        ("causal", c.c_int32),
        ("reserved", c.c_int32),
        ("stream", _STREAM),
        *((name, Tensor) for name in ("out", "query", "key", "value", "query_start_loc")),
        *_SCALE,
    )


ARGUMENTS: Final[Mapping[str, type[c.Structure]]] = {
    "linear": _arguments("linear_args", "out x weight bias"),
    "rms_norm": _arguments("rms_norm_args", "out x weight", _EPS),
    "fused_add_rms_norm": _arguments("fused_add_rms_norm_args", "out sum x residual weight", _EPS),
    "silu_and_mul": _arguments("gated_args", "out x", word="tanh"),
    "layer_norm": _arguments("layer_norm_args", "out x weight bias", _EPS),
    "gelu": _arguments("gelu_args", "out x", word="tanh"),
    "gelu_and_mul": _arguments("gated_args", "out x", word="tanh"),
    "embedding": _arguments("embedding_args", "out ids weight"),
    "rotary_embedding": _arguments(
        "rotary_embedding_args", "positions query key cos_sin_cache", word="interleaved"
    ),
    "reshape_and_cache": _arguments(
        "reshape_and_cache_args", "key value key_cache value_cache slot_mapping"
    ),
    "paged_attention": _arguments(
        "paged_attention_args",
        "out query key_cache value_cache block_table seq_lens query_start_loc",
        *_SCALE,
        word="window",
    ),
    "attention": _AttentionArgs,
    "unary": _arguments("unary_args", "out x", word="kind"),
    "binary": _arguments(
        "binary_args",
        "out x other",
        ("alpha", c.c_double),
        ("scalar", c.c_double),
        ("integer_scalar", c.c_int64),
        word="kind",
    ),
    "reduce": _arguments("reduce_args", "out x", word="kind"),
    "where": _arguments("where_args", "out condition x other"),
    "index": _arguments("index_args", "out x index", word="scatter"),
    "gather": _arguments("gather_args", "out x index"),
    "matmul": _arguments("matmul_args", "out x other"),
    "fill": _arguments(
        "fill_args",
        "out",
        ("value", c.c_double),
        ("step", c.c_double),
        ("integer_value", c.c_int64),
        ("integer_step", c.c_int64),
        word="arange",
    ),
}
"""The struct of arguments of each function that takes one."""

_I32, _U64, _PTR, _STATUS = c.c_int32, c.c_uint64, c.c_void_p, c.c_int32
RUNTIME: Final = (
    ("last_error", c.CFUNCTYPE(c.c_char_p)),
    ("device_count", c.CFUNCTYPE(_STATUS, c.POINTER(_I32))),
    ("device_info", c.CFUNCTYPE(_STATUS, _I32, c.POINTER(VaDeviceInfo))),
    ("open", c.CFUNCTYPE(_STATUS, _I32)),
    ("in_bad_fork", c.CFUNCTYPE(_I32)),
    ("allocate", c.CFUNCTYPE(_STATUS, _I32, _U64, _U64, c.POINTER(_PTR))),
    ("allocate_pinned", c.CFUNCTYPE(_STATUS, _U64, _U64, c.POINTER(_PTR))),
    ("free_pinned", c.CFUNCTYPE(_STATUS, _PTR)),
    ("memory_info", c.CFUNCTYPE(_STATUS, _I32, c.POINTER(_U64), c.POINTER(_U64))),
    ("memory_stats", c.CFUNCTYPE(_STATUS, _I32, c.POINTER(VaMemoryStats))),
    ("copy_to_device", c.CFUNCTYPE(_STATUS, _I32, _STREAM, _PTR, _PTR, _U64)),
    ("copy_to_host", c.CFUNCTYPE(_STATUS, _I32, _STREAM, _PTR, _PTR, _U64)),
    ("copy_on_device", c.CFUNCTYPE(_STATUS, _STREAM, _I32, _PTR, _I32, _PTR, _U64)),
    ("stream_create", c.CFUNCTYPE(_STATUS, _I32, c.POINTER(_STREAM))),
    ("stream_destroy", c.CFUNCTYPE(_STATUS, _I32, _STREAM)),
    ("stream_synchronize", c.CFUNCTYPE(_STATUS, _I32, _STREAM)),
    ("stream_wait_event", c.CFUNCTYPE(_STATUS, _I32, _STREAM, _U64)),
    ("event_create", c.CFUNCTYPE(_STATUS, _I32, c.POINTER(_U64))),
    ("event_destroy", c.CFUNCTYPE(_STATUS, _I32, _U64)),
    ("event_record", c.CFUNCTYPE(_STATUS, _I32, _STREAM, _U64)),
    ("event_query", c.CFUNCTYPE(_STATUS, _I32, _U64)),
    ("event_synchronize", c.CFUNCTYPE(_STATUS, _I32, _U64)),
    ("event_elapsed", c.CFUNCTYPE(_STATUS, _I32, _U64, _U64, c.POINTER(c.c_double))),
    ("fence", c.CFUNCTYPE(_STATUS, _I32, _STREAM, _I32)),
    ("operator_dtypes", c.CFUNCTYPE(_STATUS, _I32, _I32, c.POINTER(_U64))),
)
"""The runtime functions with their prototypes, in the order of the table."""
OPTIONAL: Final = ("allocate_pinned", "free_pinned", *ARGUMENTS)
"""Functions of the table that may be NULL."""
_CALL: Final = c.CFUNCTYPE(_STATUS, c.c_void_p)


class Api(c.Structure):
    """va_api. A library of an older minor version has a shorter one: read `size` first."""

    _fields_ = (
        ("size", c.c_uint32),
        ("abi_major", c.c_uint16),
        ("abi_minor", c.c_uint16),
        ("vendor", c.c_char_p),
        ("version", c.c_char_p),
        *RUNTIME,
        *((name, _CALL) for name in ARGUMENTS),
    )


FUNCTIONS: Final = (*(name for name, _ in RUNTIME), *ARGUMENTS)
"""Every function of the table, in its order."""
REQUIRED_BYTES: Final = Api.linear.offset
"""A table shorter than this lacks a required function."""
