/* vllm_adapter.h: what a chip's C library offers to vllm-adapter. C99, also valid C++17.
 *
 * The library exports one symbol, va_get_api. It gives a table of functions that begins with its
 * own size: a library of an older minor version has a shorter table, and its missing functions
 * count as NULL. A minor version only adds at the end; another major version is refused.
 *
 * Rules for every function:
 *  - It returns VA_OK, or a status with a sentence in last_error() of the same thread.
 *  - A function that takes a stream may return before the work is done. Work of one stream runs
 *    in order; streams are unordered among each other but for events. Stream 0 of a device is
 *    there from the start.
 *  - Arguments are only read during the call. Host memory that an asynchronous copy reads or
 *    writes has to stay until the stream has passed it.
 *  - It may be called from any thread.
 *  - After fork() the child may call nothing but in_bad_fork(): the others give VA_ERROR_FORKED,
 *    and deleters do nothing.
 *  - A pointer that may be NULL is marked "or NULL". Sizes are bytes, strides are elements.
 */
#ifndef VLLM_ADAPTER_H
#define VLLM_ADAPTER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VA_ABI_MAJOR 1u
#define VA_ABI_MINOR 0u
#define VA_MAX_DIMS 5

#if defined(_WIN32)
#define VA_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define VA_EXPORT __attribute__((visibility("default")))
#else
#define VA_EXPORT
#endif

/* ---- values ------------------------------------------------------------------------------- */

typedef int32_t va_status;
enum {
  VA_OK = 0,
  VA_ERROR_INVALID = 1,        /* an argument makes no sense: shape, dtype, null, range */
  VA_ERROR_NO_DEVICE = 2,      /* no device of that index */
  VA_ERROR_OUT_OF_MEMORY = 3,  /* nothing was allocated */
  VA_ERROR_UNSUPPORTED = 4,    /* the operator has no kernel for this case; nothing was written */
  VA_ERROR_LAUNCH = 5,         /* the work could not be started, or failed while running */
  VA_ERROR_DEVICE_LOST = 6,    /* the device is gone; every later call says so too */
  VA_ERROR_NOT_DEVICE = 7,     /* an address is not this device's, or no longer is */
  VA_ERROR_FORKED = 8,         /* the device was opened before this process was forked */
  VA_ERROR_INTERNAL = 9,
  VA_NOT_READY = 100           /* event_query: the event has not been reached; no error */
};

typedef int32_t va_dtype;
enum {
  VA_BOOL = 0,
  VA_UINT8 = 1,
  VA_INT8 = 2,
  VA_INT16 = 3,
  VA_INT32 = 4,
  VA_INT64 = 5,
  VA_FLOAT16 = 6,
  VA_BFLOAT16 = 7,
  VA_FLOAT32 = 8,
  VA_FLOAT64 = 9,
  VA_FLOAT8_E4M3FN = 10,
  VA_FLOAT8_E4M3FNUZ = 11,
  VA_FLOAT8_E5M2 = 12
};
#define VA_DTYPE_BIT(dtype) (UINT64_C(1) << (dtype))

typedef int32_t va_operator;
enum {
  VA_OP_LINEAR = 0,
  VA_OP_RMS_NORM = 1,
  VA_OP_FUSED_ADD_RMS_NORM = 2,
  VA_OP_SILU_AND_MUL = 3,
  VA_OP_LAYER_NORM = 4,
  VA_OP_GELU = 5,
  VA_OP_GELU_AND_MUL = 6,
  VA_OP_EMBEDDING = 7,
  VA_OP_ROTARY_EMBEDDING = 8,
  VA_OP_RESHAPE_AND_CACHE = 9,
  VA_OP_PAGED_ATTENTION = 10,
  VA_OP_ATTENTION = 11,
  VA_OP_COUNT = 12
};

typedef int32_t va_fence_scope;
enum { VA_FENCE_SUBGROUP = 0, VA_FENCE_WORKGROUP = 1, VA_FENCE_DEVICE = 2, VA_FENCE_SYSTEM = 3 };

typedef uint64_t va_stream; /* 0 is the device's default stream */
typedef uint64_t va_event;  /* 0 is no event */

/* A view of device memory. data is a device address: the host must not follow it. */
typedef struct va_tensor {
  void *data;
  int32_t device;
  va_dtype dtype;
  int32_t ndim; /* 0 to VA_MAX_DIMS; 0 is one element */
  int32_t reserved;
  int64_t shape[VA_MAX_DIMS];
  int64_t strides[VA_MAX_DIMS]; /* in elements, may be 0 or negative */
} va_tensor;

/* Layout of DLPack 0.x's DLManagedTensor, under names of our own. */
typedef struct va_managed_tensor {
  struct {
    void *data;
    struct {
      int32_t type; /* 12: kDLExtDev */
      int32_t id;
    } device;
    int32_t ndim;
    struct {
      uint8_t code; /* 1: unsigned integer */
      uint8_t bits;
      uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides; /* or NULL: contiguous */
    uint64_t byte_offset;
  } tensor;
  void *manager;
  void (*deleter)(struct va_managed_tensor *self);
} va_managed_tensor;

typedef struct va_device_info {
  uint32_t size; /* set by the caller: how much of this struct it knows */
  int32_t capability_major; /* -1: the vendor has no such number */
  int32_t capability_minor;
  int32_t unified;          /* 1: device memory is host memory */
  int32_t subgroup_size;    /* 0: there are none */
  int32_t units;            /* compute units that are live; 0: unknown */
  uint64_t alignment;       /* of allocate when 0 is asked for */
  uint64_t total_memory;
  char name[64];
  char arch[32];
} va_device_info;

typedef struct va_memory_stats {
  uint32_t size; /* set by the caller */
  uint32_t reserved;
  uint64_t allocated_bytes;
  uint64_t peak_bytes;
  uint64_t live_allocations;
  uint64_t link_bytes; /* bytes copied from this device to another one */
} va_memory_stats;

/* ---- arguments of operators ---------------------------------------------------------------
 * Each begins with its size. Shapes are those of docs/operators.md: T tokens, H query heads, KH
 * KV heads, D head size. A tensor with data NULL and ndim -1 is "none". Outputs are allocated by
 * the caller and are contiguous. Where an output has no element there is nothing to do: VA_OK.
 *
 * Inputs come with the strides that they have, and are never copied to suit a library. Frameworks
 * pass views: x, residual, query, key and value as rows of a wider tensor (the last dimension
 * contiguous, the others not), and KV caches with any strides, also keys and values of one tensor.
 * Weights, tables, ids and lengths are contiguous as a rule. What a library cannot take it answers
 * with VA_ERROR_UNSUPPORTED, before anything is written. */

typedef struct va_linear_args { /* out[..., O] = x[..., I] weight[O, I]^T + bias[O] */
  uint32_t size, reserved;
  va_stream stream;
  va_tensor out, x, weight, bias;
} va_linear_args;

typedef struct va_rms_norm_args { /* out = x / sqrt(mean(x^2) + eps) * weight */
  uint32_t size, reserved;
  va_stream stream;
  va_tensor out, x, weight;
  double eps;
} va_rms_norm_args;

typedef struct va_fused_add_rms_norm_args { /* sum = x + residual; out = rms_norm(sum) */
  uint32_t size, reserved;
  va_stream stream;
  va_tensor out, sum, x, residual, weight;
  double eps;
} va_fused_add_rms_norm_args;

typedef struct va_gated_args { /* out[..., N] = f(x[..., :N]) * x[..., N:] */
  uint32_t size;
  int32_t tanh; /* gelu only: 1 is the approximation by tanh */
  va_stream stream;
  va_tensor out, x;
} va_gated_args;

typedef struct va_gelu_args {
  uint32_t size;
  int32_t tanh;
  va_stream stream;
  va_tensor out, x;
} va_gelu_args;

typedef struct va_layer_norm_args {
  uint32_t size, reserved;
  va_stream stream;
  va_tensor out, x, weight, bias;
  double eps;
} va_layer_norm_args;

typedef struct va_embedding_args { /* out[..., N] = weight[ids[...], N]; ids int32 or int64 */
  uint32_t size, reserved;
  va_stream stream;
  va_tensor out, ids, weight;
} va_embedding_args;

/* In place. cos_sin_cache[P, R]: R/2 cos, then R/2 sin; of query's dtype, or float32. */
typedef struct va_rotary_embedding_args {
  uint32_t size;
  int32_t interleaved;
  va_stream stream;
  va_tensor positions, query, key, cos_sin_cache;
} va_rotary_embedding_args;

typedef struct va_reshape_and_cache_args { /* key[T, KH, D]; caches [B, S, KH, D] by strides */
  uint32_t size, reserved;
  va_stream stream;
  va_tensor key, value, key_cache, value_cache, slot_mapping; /* slot < 0: padding */
} va_reshape_and_cache_args;

typedef struct va_paged_attention_args { /* causal */
  uint32_t size;
  int32_t window; /* 0: off */
  va_stream stream;
  va_tensor out, query; /* [T, H, D] */
  va_tensor key_cache, value_cache; /* [B, S, KH, D], by strides */
  va_tensor block_table; /* [N, M] int32 */
  va_tensor seq_lens; /* [N] int32, the new tokens included */
  va_tensor query_start_loc; /* [N + 1] int32 */
  double scale;
  double soft_cap; /* 0: off */
} va_paged_attention_args;

typedef struct va_attention_args { /* query[T, H, D], key and value[T, KH, D], no cache */
  uint32_t size;
  int32_t window;
  int32_t causal;
  int32_t reserved;
  va_stream stream;
  va_tensor out, query, key, value, query_start_loc;
  double scale;
  double soft_cap;
} va_attention_args;

/* ---- plain tensor work, so that a step needs no copy to the host -------------------------- */

typedef int32_t va_unary;
enum {
  VA_COPY = 0, /* between dtypes and strides */
  VA_NEG = 1,
  VA_ABS = 2,
  VA_EXP = 3,
  VA_LOG = 4,
  VA_SQRT = 5,
  VA_RSQRT = 6,
  VA_SIN = 7,
  VA_COS = 8,
  VA_TANH = 9,
  VA_SIGMOID = 10,
  VA_SILU = 11,
  VA_RELU = 12,
  VA_NOT = 13 /* logical; out is bool */
};

typedef int32_t va_binary;
enum {
  VA_ADD = 0, /* a + alpha b */
  VA_SUB = 1, /* a - alpha b */
  VA_MUL = 2,
  VA_DIV = 3,
  VA_POW = 4,
  VA_MAXIMUM = 5,
  VA_MINIMUM = 6,
  VA_EQ = 7, /* comparisons: out is bool */
  VA_NE = 8,
  VA_LT = 9,
  VA_LE = 10,
  VA_GT = 11,
  VA_GE = 12,
  VA_AND = 13, /* logical on bool, bitwise on integers */
  VA_OR = 14,
  VA_XOR = 15,
  VA_FLOOR_DIV = 16,
  VA_REMAINDER = 17
};

typedef int32_t va_reduce;
enum {
  VA_SUM = 0,
  VA_MEAN = 1,
  VA_AMAX = 2,
  VA_AMIN = 3,
  VA_ARGMAX = 4, /* out int64; the first of equals */
  VA_ARGMIN = 5,
  VA_ALL = 6,
  VA_ANY = 7,
  VA_CUMSUM = 8, /* out has x's shape */
  VA_SOFTMAX = 9 /* out has x's shape */
};

typedef struct va_unary_args {
  uint32_t size;
  va_unary kind;
  va_stream stream;
  va_tensor out, x; /* one shape */
} va_unary_args;

typedef struct va_binary_args { /* broadcast by strides of 0; other may be "none": scalar */
  uint32_t size;
  va_binary kind;
  va_stream stream;
  va_tensor out, x, other;
  double alpha;
  double scalar;
  int64_t integer_scalar; /* used where x's dtype is an integer */
} va_binary_args;

typedef struct va_reduce_args { /* over the last dimension of x; out lacks it, or has x's shape */
  uint32_t size;
  va_reduce kind;
  va_stream stream;
  va_tensor out, x;
} va_reduce_args;

typedef struct va_where_args {
  uint32_t size, reserved;
  va_stream stream;
  va_tensor out, condition, x, other; /* broadcast by strides of 0 */
} va_where_args;

typedef struct va_index_args { /* out[i, ...] = x[index[i], ...]; negative counts from the end */
  uint32_t size;
  int32_t scatter; /* 1: x[index[i], ...] = out[i, ...] */
  va_stream stream;
  va_tensor out, x, index;
} va_index_args;

typedef struct va_gather_args { /* along the last dimension: out[.., j] = x[.., index[.., j]] */
  uint32_t size, reserved;
  va_stream stream;
  va_tensor out, x, index;
} va_gather_args;

typedef struct va_matmul_args { /* out[B, M, N] = x[B, M, K] other[B, K, N], by strides */
  uint32_t size, reserved;
  va_stream stream;
  va_tensor out, x, other;
} va_matmul_args;

typedef struct va_fill_args { /* value, or start + i * step over a one-dimensional out */
  uint32_t size;
  int32_t arange;
  va_stream stream;
  va_tensor out;
  double value, step;
  int64_t integer_value, integer_step; /* used where out's dtype is an integer or bool */
} va_fill_args;

/* ---- the table ---------------------------------------------------------------------------- */

typedef struct va_api {
  uint32_t size; /* of this table, as the library knows it */
  uint16_t abi_major, abi_minor;
  const char *vendor;  /* who made the library */
  const char *version; /* of the library, as the vendor writes it */

  /* Runtime: all required but those marked "or NULL". */
  const char *(*last_error)(void); /* of this thread; "" where there was none */
  va_status (*device_count)(int32_t *count); /* the same as long as the process lives */
  va_status (*device_info)(int32_t device, va_device_info *info); /* it need not be open */
  va_status (*open)(int32_t device); /* again: VA_OK */
  int32_t (*in_bad_fork)(void); /* 1: opened before this process was forked */
  /* uint8[size] with a deleter that is C, safe on any thread, and waits for no stream: memory is
     handed out again only when the work that was queued before the release has passed it.
     alignment: a power of two or a multiple of the device's own, 0: device_info.alignment. */
  va_status (*allocate)(int32_t device, uint64_t size, uint64_t alignment, va_managed_tensor **out);
  va_status (*allocate_pinned)(uint64_t size, uint64_t alignment, void **out); /* or NULL */
  va_status (*free_pinned)(void *memory);                                      /* or NULL */
  va_status (*memory_info)(int32_t device, uint64_t *free_bytes, uint64_t *total_bytes);
  va_status (*memory_stats)(int32_t device, va_memory_stats *stats);
  va_status (*copy_to_device)(int32_t device, va_stream stream, void *to, const void *from,
                              uint64_t size);
  va_status (*copy_to_host)(int32_t device, va_stream stream, void *to, const void *from,
                            uint64_t size);
  va_status (*copy_on_device)(va_stream stream, int32_t to_device, void *to, int32_t from_device,
                              const void *from, uint64_t size); /* ordered on to_device's stream */
  va_status (*stream_create)(int32_t device, va_stream *stream);
  va_status (*stream_destroy)(int32_t device, va_stream stream); /* what is queued is still done */
  va_status (*stream_synchronize)(int32_t device, va_stream stream); /* reports earlier failures */
  va_status (*stream_wait_event)(int32_t device, va_stream stream, va_event event);
  va_status (*event_create)(int32_t device, va_event *event);
  va_status (*event_destroy)(int32_t device, va_event event);
  va_status (*event_record)(int32_t device, va_stream stream, va_event event);
  va_status (*event_query)(int32_t device, va_event event); /* VA_OK or VA_NOT_READY */
  va_status (*event_synchronize)(int32_t device, va_event event);
  va_status (*event_elapsed)(int32_t device, va_event start, va_event end, double *milliseconds);
  va_status (*fence)(int32_t device, va_stream stream, va_fence_scope scope);

  /* Which dtypes an operator has kernels for, as VA_DTYPE_BITs of its first floating tensor. */
  va_status (*operator_dtypes)(int32_t device, va_operator op, uint64_t *dtypes);

  /* Operators, each or NULL. */
  va_status (*linear)(const va_linear_args *args);
  va_status (*rms_norm)(const va_rms_norm_args *args);
  va_status (*fused_add_rms_norm)(const va_fused_add_rms_norm_args *args);
  va_status (*silu_and_mul)(const va_gated_args *args);
  va_status (*layer_norm)(const va_layer_norm_args *args);
  va_status (*gelu)(const va_gelu_args *args);
  va_status (*gelu_and_mul)(const va_gated_args *args);
  va_status (*embedding)(const va_embedding_args *args);
  va_status (*rotary_embedding)(const va_rotary_embedding_args *args);
  va_status (*reshape_and_cache)(const va_reshape_and_cache_args *args);
  va_status (*paged_attention)(const va_paged_attention_args *args);
  va_status (*attention)(const va_attention_args *args);

  /* Plain tensor work, each or NULL: what is missing meets the fallback on the host. */
  va_status (*unary)(const va_unary_args *args);
  va_status (*binary)(const va_binary_args *args);
  va_status (*reduce)(const va_reduce_args *args);
  va_status (*where)(const va_where_args *args);
  va_status (*index)(const va_index_args *args);
  va_status (*gather)(const va_gather_args *args);
  va_status (*matmul)(const va_matmul_args *args);
  va_status (*fill)(const va_fill_args *args);
} va_api;

/* The table for an ABI of this major version and at least this minor one; NULL: not offered. The
   table and what it points at stay valid for the life of the process. */
VA_EXPORT const va_api *va_get_api(uint32_t major, uint32_t minor);

#ifdef __cplusplus
}
#endif

#endif
