/* Random arguments, half of them near to good ones: every call gives a status, and none crashes,
 * hangs, or touches what is not the chip's. usage: fuzz SEED CALLS */
#include "harness.h"

enum { BLOCKS = 6, BLOCK_BYTES = 65536 };

static uint64_t state;
static va_managed_tensor *blocks[BLOCKS];
static va_stream streams[2];
static va_event events[2];
static char host[BLOCK_BYTES];

static uint64_t below(uint64_t n) { return next_random(&state) % n; }
static int now_and_then(void) { return below(40) == 0; }

static int64_t odd(void) {
  static const int64_t values[] = {-1, INT64_MIN, INT64_MAX, INT64_C(1) << 33, -(INT64_C(1) << 40),
                                   4294967297};
  return values[below(sizeof values / sizeof *values)];
}

static int64_t extent(void) {
  static const int64_t values[] = {0, 1, 2, 3, 4, 5, 8, 24, 24, 48};
  return now_and_then() ? odd() : values[below(sizeof values / sizeof *values)];
}

static int64_t stride(int64_t packed) {
  if (now_and_then()) return odd();
  return below(3) ? packed : (int64_t)below(40) - 8;
}

static va_stream any_stream(void) {
  return now_and_then() ? next_random(&state) : below(2) ? 0 : streams[below(2)];
}

static int32_t any_device(void) { return now_and_then() ? (int32_t)odd() : (int32_t)below(2); }

static int32_t bias; /* of the device of this call's tensors */
static va_dtype usual;

static va_tensor tensor(int32_t ndim) {
  va_tensor t;
  memset(&t, (int)below(256), sizeof t);
  t.device = below(30) ? bias : any_device();
  t.dtype = below(10) ? usual : (va_dtype)((int)below(16) - 1);
  t.ndim = below(30) ? ndim : (int32_t)below(9) - 2;
  va_managed_tensor *block = blocks[t.device == 1 ? 3 + below(3) : below(3)];
  t.data = (char *)block->tensor.data + (below(4) ? 0 : below(30) ? below(BLOCK_BYTES / 8) * 8 : below(BLOCK_BYTES));
  if (now_and_then()) t.data = below(2) ? NULL : (void *)(uintptr_t)next_random(&state);
  int64_t packed = 1;
  for (int d = VA_MAX_DIMS - 1; d >= 0; d--) {
    t.shape[d] = extent();
    t.strides[d] = stride(packed);
    if (d < t.ndim && t.shape[d] > 0 && t.shape[d] < 100) packed *= t.shape[d];
  }
  return t;
}

/* One whose shape fits another one's, most of the time. */
static va_tensor like(const va_tensor *other) {
  va_tensor t = tensor(other->ndim);
  if (below(8)) {
    memcpy(t.shape, other->shape, sizeof t.shape);
    if (below(4)) memcpy(t.strides, other->strides, sizeof t.strides);
    t.dtype = below(10) ? other->dtype : t.dtype;
    t.device = other->device;
  }
  return t;
}

static va_tensor shaped(va_dtype dtype, int32_t ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
  va_tensor t = tensor(ndim);
  const int64_t wanted[] = {a, b, c, d};
  int64_t packed = 1;
  for (int i = ndim - 1; i >= 0 && below(12); i--) {
    t.shape[i] = wanted[i];
    if (below(8)) t.strides[i] = packed;
    packed *= wanted[i] > 0 && wanted[i] < 100 ? wanted[i] : 1;
  }
  if (below(12)) t.dtype = dtype;
  return t;
}

static va_status operate(uint32_t cut) {
  double eps = below(4) ? 1e-5 : (double)odd();
  va_tensor x = tensor(1 + (int32_t)below(4)), out = like(&x);
  int64_t last = x.ndim > 0 && x.ndim <= VA_MAX_DIMS ? x.shape[x.ndim - 1] : 1;
  int64_t T = extent(), H = 2 * (int64_t)below(4), KH = below(2) ? H : H / 2, D = extent();
  int64_t N = 1 + (int64_t)below(3), B = extent();
  va_tensor vector = shaped(usual, 1, last, 0, 0, 0);
  va_tensor ids = shaped(below(2) ? VA_INT32 : VA_INT64, 1, T, 0, 0, 0);
  va_tensor q = shaped(usual, 3, T, H, D, 0), k = shaped(usual, 3, T, KH, D, 0);
  va_tensor cache = shaped(usual, 4, B, 24 * (1 + (int64_t)below(2)), KH, D);
  va_stream stream = any_stream();
  switch (below(20)) {
    case 0: {
      va_linear_args a = {.size = sizeof a - cut, .stream = stream, .x = x};
      int64_t features = extent();
      a.weight = shaped(usual, 2, features, last, 0, 0);
      a.out = out;
      if (x.ndim > 0 && x.ndim <= VA_MAX_DIMS) a.out.shape[x.ndim - 1] = features;
      a.bias = below(2) ? none() : shaped(usual, 1, features, 0, 0, 0);
      return api->linear(&a);
    }
    case 1: {
      va_rms_norm_args a = {.size = sizeof a - cut, .stream = stream, .out = out, .x = x,
                            .weight = vector, .eps = eps};
      return api->rms_norm(&a);
    }
    case 2: {
      va_fused_add_rms_norm_args a = {.size = sizeof a - cut, .stream = stream, .out = out,
                                      .sum = like(&x), .x = x, .residual = like(&x),
                                      .weight = vector, .eps = eps};
      return api->fused_add_rms_norm(&a);
    }
    case 3: {
      va_layer_norm_args a = {.size = sizeof a - cut, .stream = stream, .out = out, .x = x,
                              .weight = vector, .bias = below(2) ? none() : vector, .eps = eps};
      return api->layer_norm(&a);
    }
    case 4:
    case 5: {
      va_gated_args a = {.size = sizeof a - cut, .stream = stream, .out = out, .x = x};
      if (x.ndim > 0 && x.ndim <= VA_MAX_DIMS && below(8)) a.out.shape[x.ndim - 1] = last / 2;
      return below(2) ? api->silu_and_mul(&a) : api->gelu_and_mul(&a);
    }
    case 6: {
      va_gelu_args a = {.size = sizeof a - cut, .tanh = 1, .stream = stream, .out = out, .x = x};
      return api->gelu(&a);
    }
    case 7: {
      va_embedding_args a = {.size = sizeof a - cut, .stream = stream,
                             .out = shaped(usual, 2, T, D, 0, 0), .ids = ids,
                             .weight = shaped(usual, 2, B, D, 0, 0)};
      return api->embedding(&a);
    }
    case 8: {
      va_rotary_embedding_args a = {.size = sizeof a - cut, .stream = stream, .positions = ids,
                                    .query = q, .key = k,
                                    .cos_sin_cache = shaped(usual, 2, B, D, 0, 0)};
      return api->rotary_embedding(&a);
    }
    case 9: {
      va_reshape_and_cache_args a = {.size = sizeof a - cut, .stream = stream, .key = k,
                                     .value = like(&k), .key_cache = cache,
                                     .value_cache = like(&cache), .slot_mapping = ids};
      return api->reshape_and_cache(&a);
    }
    case 10: {
      va_paged_attention_args a = {.size = sizeof a - cut, .window = (int32_t)below(9) - 1,
                                   .stream = stream, .out = like(&q), .query = q,
                                   .key_cache = cache, .value_cache = like(&cache),
                                   .block_table = shaped(VA_INT32, 2, N, extent(), 0, 0),
                                   .seq_lens = shaped(VA_INT32, 1, N, 0, 0, 0),
                                   .query_start_loc = shaped(VA_INT32, 1, N + 1, 0, 0, 0),
                                   .scale = eps, .soft_cap = eps};
      return api->paged_attention(&a);
    }
    case 11: {
      va_attention_args a = {.size = sizeof a - cut, .window = (int32_t)below(9) - 1,
                             .causal = (int32_t)below(2), .stream = stream, .out = like(&q),
                             .query = q, .key = k, .value = like(&k),
                             .query_start_loc = shaped(below(2) ? VA_INT32 : VA_INT64, 1, N + 1, 0,
                                                       0, 0),
                             .scale = eps};
      return api->attention(&a);
    }
    case 12: {
      va_unary_args a = {.size = sizeof a - cut, .kind = (int32_t)below(17) - 1, .stream = stream,
                         .out = out, .x = x};
      return api->unary(&a);
    }
    case 13: {
      va_binary_args a = {.size = sizeof a - cut, .kind = (int32_t)below(21) - 1, .stream = stream,
                          .out = out, .x = x, .other = below(2) ? none() : like(&x),
                          .alpha = (double)odd(), .scalar = eps, .integer_scalar = odd()};
      return api->binary(&a);
    }
    case 14: {
      va_reduce_args a = {.size = sizeof a - cut, .kind = (int32_t)below(13) - 1, .stream = stream,
                          .out = out, .x = x};
      if (below(2) && x.ndim > 0) a.out.ndim = x.ndim - 1;
      return api->reduce(&a);
    }
    case 15: {
      va_where_args a = {.size = sizeof a - cut, .stream = stream, .out = out,
                         .condition = like(&out), .x = like(&out), .other = x};
      if (below(4)) a.condition.dtype = VA_BOOL;
      return api->where(&a);
    }
    case 16: {
      va_index_args a = {.size = sizeof a - cut, .scatter = (int32_t)below(2), .stream = stream,
                         .out = out, .x = x, .index = ids};
      if (below(4)) a.out.shape[0] = T;
      return api->index(&a);
    }
    case 17: {
      va_gather_args a = {.size = sizeof a - cut, .stream = stream, .out = out, .x = x,
                          .index = like(&out)};
      if (below(4)) a.index.dtype = VA_INT64;
      return api->gather(&a);
    }
    case 18: {
      va_matmul_args a = {.size = sizeof a - cut, .stream = stream,
                          .out = shaped(usual, 3, N, T, D, 0), .x = shaped(usual, 3, N, T, B, 0),
                          .other = shaped(usual, 3, N, B, D, 0)};
      return api->matmul(&a);
    }
    default: {
      va_fill_args a = {.size = sizeof a - cut, .arange = (int32_t)below(2), .stream = stream,
                        .out = out, .value = (double)odd(), .step = eps, .integer_value = odd(),
                        .integer_step = odd()};
      return api->fill(&a);
    }
  }
}

static va_status manage(void) {
  int32_t device = any_device();
  void *address = below(3) ? (char *)blocks[below(BLOCKS)]->tensor.data + below(BLOCK_BYTES)
                           : (void *)(uintptr_t)next_random(&state);
  uint64_t size = below(8) ? below(BLOCK_BYTES) : next_random(&state);
  va_managed_tensor *fresh = NULL;
  va_memory_stats stats = {.size = (uint32_t)below(60)};
  va_device_info info = {.size = (uint32_t)below(200)};
  uint64_t a, b;
  double ms;
  int good = size <= sizeof host && below(10);
  switch (below(13)) {
    case 0: {
      va_status status = api->allocate(device, below(8) ? size % 1000000 : size | 1ull << 40,
                                       below(3) ? 0 : next_random(&state) >> below(64), &fresh);
      if (fresh) fresh->deleter(fresh);
      return status;
    }
    case 1: return api->copy_to_device(device, any_stream(), address, good ? host : NULL, size);
    case 2: return api->copy_to_host(device, any_stream(), good ? host : NULL, address, size);
    case 3: return api->copy_on_device(any_stream(), device, address, any_device(), address, size);
    case 4: return api->memory_stats(device, &stats);
    case 5: return api->device_info(device, &info);
    case 6: return api->memory_info(device, &a, below(9) ? &b : NULL);
    case 7: return api->stream_synchronize(device, any_stream());
    case 8: return api->stream_wait_event(device, any_stream(), below(2) ? events[below(2)] : size);
    case 9: return api->event_record(device, any_stream(), below(2) ? events[below(2)] : size);
    case 10: return api->event_elapsed(device, events[0], events[below(2)], &ms);
    case 11: return api->fence(device, any_stream(), (int32_t)below(7) - 1);
    default: return api->operator_dtypes(device, (int32_t)below(15) - 1, below(9) ? &a : NULL);
  }
}

int main(int argc, char **argv) {
  state = argc > 1 ? strtoull(argv[1], NULL, 10) * 2654435761u + 1 : 1;
  long calls = argc > 2 ? strtol(argv[2], NULL, 10) : 10000, good = 0, launched = 0;
  setenv("SIM_LATENCY_US", "0", 1);
  begin();
  for (int i = 0; i < BLOCKS; i++) OK(api->allocate(i / 3, BLOCK_BYTES, 0, &blocks[i]));
  for (int i = 0; i < 2; i++) {
    OK(api->stream_create(i, &streams[i]));
    OK(api->event_create(i, &events[i]));
  }
  for (long call = 0; call < calls; call++) {
    bias = (int32_t)below(2);
    usual = below(4) ? below(2) ? VA_FLOAT32 : VA_FLOAT16 : (va_dtype)below(10);
    va_status status = below(4) ? operate(below(60) ? 0 : (uint32_t)(1 + below(100))) : manage();
    CHECK((status >= VA_OK && status <= VA_ERROR_INTERNAL) || status == VA_NOT_READY,
          "call %ld gave the status %d", call, status);
    CHECK(status != VA_ERROR_INTERNAL && status != VA_ERROR_DEVICE_LOST, "call %ld: status %d",
          call, status);
    CHECK(status == VA_OK || status == VA_NOT_READY || api->last_error()[0], "no sentence");
    good += status == VA_OK;
    if (call % 16 == 0) /* work that met bad values fails here, and the device goes on */
      for (int32_t device = 0; device < 2; device++) {
        launched += api->stream_synchronize(device, 0) != VA_OK;
        launched += api->stream_synchronize(device, streams[device]) != VA_OK;
      }
  }
  printf("ok: %ld calls, %ld accepted, %ld failed while running\n", calls, good, launched);
  return 0;
}
