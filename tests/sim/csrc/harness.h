/* What the C tests share: a check that names its line, and tensors of the simulated chip beside
 * the values that they should hold. The library is linked in, and called by its table alone. */
#ifndef HARNESS_H
#define HARNESS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vllm_adapter.h"

static const va_api *api;

#define CHECK(condition, ...)                                      \
  do {                                                             \
    if (!(condition)) {                                            \
      fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      fprintf(stderr, __VA_ARGS__);                                \
      fprintf(stderr, " (%s)\n", api ? api->last_error() : "");    \
      exit(1);                                                     \
    }                                                              \
  } while (0)
#define OK(call)                                            \
  do {                                                      \
    va_status ok_status = (call);                           \
    CHECK(ok_status == VA_OK, "status %d", (int)ok_status); \
  } while (0)
#define REFUSED(wanted, call)                                                           \
  do {                                                                                  \
    va_status refused_status = (call);                                                  \
    CHECK(refused_status == (wanted), "status %d and not %d", (int)refused_status, (int)(wanted)); \
    CHECK(api->last_error()[0], "no sentence");                                         \
  } while (0)

#define MOST 65536 /* elements of the storage of a tensor here */

typedef enum { PLAIN, PADDED, TURNED, STEPPED, BACKWARD, LAYOUTS } layout;

typedef struct {
  va_tensor t;
  va_managed_tensor *managed;
  int64_t count, span; /* elements: of the tensor, and of its storage */
  int64_t first;       /* element of the storage at which the tensor begins */
  double *values;      /* what the elements should be, in the order of a contiguous tensor */
  unsigned char *bytes; /* the storage as it was written */
} array;

static inline uint64_t next_random(uint64_t *state) { /* xorshift */
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static inline double uniform(uint64_t *state, double low, double high) {
  return low + (high - low) * (double)(next_random(state) >> 11) * 0x1p-53;
}

static inline size_t size_of(va_dtype dtype) {
  static const size_t sizes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1, 1};
  return sizes[dtype];
}

static inline int is_floating(va_dtype dtype) { return dtype >= VA_FLOAT16; }

static inline double read_value(const unsigned char *at, va_dtype dtype) {
  _Float16 half;
  float single;
  double wide;
  int32_t word;
  int64_t big;
  switch (dtype) {
    case VA_FLOAT16: memcpy(&half, at, 2); return (double)half;
    case VA_FLOAT32: memcpy(&single, at, 4); return (double)single;
    case VA_FLOAT64: memcpy(&wide, at, 8); return wide;
    case VA_INT32: memcpy(&word, at, 4); return word;
    case VA_INT64: memcpy(&big, at, 8); return (double)big;
    default: return *at;
  }
}

static inline void write_value(unsigned char *at, va_dtype dtype, double value) {
  _Float16 half = (_Float16)value;
  float single = (float)value;
  int32_t word;
  int64_t big;
  switch (dtype) {
    case VA_FLOAT16: memcpy(at, &half, 2); break;
    case VA_FLOAT32: memcpy(at, &single, 4); break;
    case VA_FLOAT64: memcpy(at, &value, 8); break;
    case VA_INT32: word = (int32_t)value; memcpy(at, &word, 4); break;
    case VA_INT64: big = (int64_t)value; memcpy(at, &big, 8); break;
    default: *at = (unsigned char)value;
  }
}

/* Element number i of a contiguous tensor of that shape: where it is in the storage. */
static inline int64_t place(const array *a, int64_t i) {
  int64_t at = a->first;
  for (int d = a->t.ndim - 1; d >= 0; d--) {
    at += i % a->t.shape[d] * a->t.strides[d];
    i /= a->t.shape[d];
  }
  return at;
}

static inline void settle(array *a, layout how) { /* strides, span and first from the shape */
  int n = a->t.ndim;
  int64_t step = how == STEPPED ? 2 : 1;
  for (int k = n - 1; k >= 0; k--) {
    int d = how == TURNED ? n - 1 - k : k;
    a->t.strides[d] = step;
    step *= a->t.shape[d];
    if (how == PADDED && k == n - 1) step += 5;
  }
  a->first = 0;
  if (how == BACKWARD && n) {
    a->first = (a->t.shape[0] - 1) * a->t.strides[0];
    if (a->first < 0) a->first = 0;
    a->t.strides[0] = -a->t.strides[0];
  }
  a->span = step > 0 ? step : 1;
}

static inline void upload(array *a) {
  size_t size = size_of(a->t.dtype);
  for (int64_t i = 0; i < a->count; i++) {
    write_value(a->bytes + (size_t)place(a, i) * size, a->t.dtype, a->values[i]);
    a->values[i] = read_value(a->bytes + (size_t)place(a, i) * size, a->t.dtype);
  }
  OK(api->copy_to_device(a->t.device, 0, a->managed->tensor.data, a->bytes,
                         (uint64_t)a->span * size));
  OK(api->stream_synchronize(a->t.device, 0));
}

/* A tensor with values from low to high; whole numbers where the dtype is an integer. */
static inline array make(int32_t device, va_dtype dtype, layout how, double low, double high,
                         uint64_t *state, int32_t ndim, const int64_t *shape) {
  array a;
  memset(&a, 0, sizeof a);
  a.t.device = device;
  a.t.dtype = dtype;
  a.t.ndim = ndim;
  a.count = 1;
  for (int d = 0; d < ndim; d++) a.count *= a.t.shape[d] = shape[d];
  settle(&a, how);
  size_t size = size_of(dtype);
  CHECK(a.span <= MOST, "a tensor of %lld elements", (long long)a.span);
  a.values = calloc((size_t)a.count + 1, sizeof *a.values);
  a.bytes = calloc((size_t)a.span + 1, size);
  CHECK(a.values && a.bytes, "no memory");
  memset(a.bytes, 0x5c, (size_t)a.span * size);
  OK(api->allocate(device, (uint64_t)a.span * size, 0, &a.managed));
  a.t.data = (char *)a.managed->tensor.data + (size_t)a.first * size;
  for (int64_t i = 0; i < a.count; i++) {
    a.values[i] = uniform(state, low, high);
    if (!is_floating(dtype)) a.values[i] = floor(a.values[i]);
  }
  upload(&a);
  return a;
}

#define SHAPE(...) \
  (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

static inline void drop(array *a) {
  a->managed->deleter(a->managed);
  free(a->values);
  free(a->bytes);
}

static inline va_tensor none(void) {
  va_tensor t;
  memset(&t, 0, sizeof t);
  t.ndim = -1;
  return t;
}

/* The tensor holds `wanted`, within budget x (1 + its magnitude), and nothing beside its elements
 * has been written. */
static inline void same(const char *what, const array *a, const double *wanted, double budget) {
  size_t size = size_of(a->t.dtype);
  unsigned char *now = malloc((size_t)a->span * size + 1);
  CHECK(now, "no memory");
  OK(api->copy_to_host(a->t.device, 0, now, a->managed->tensor.data, (uint64_t)a->span * size));
  OK(api->stream_synchronize(a->t.device, 0));
  for (int64_t i = 0; i < a->count; i++) {
    unsigned char *at = now + (size_t)place(a, i) * size;
    double got = read_value(at, a->t.dtype);
    int right = isnan(wanted[i]) ? isnan(got)
                                 : got == wanted[i] || fabs(got - wanted[i]) <=
                                                           budget * (1 + fabs(wanted[i]));
    CHECK(right, "%s: element %lld is %.9g and not %.9g", what, (long long)i, got, wanted[i]);
    memcpy(at, a->bytes + (size_t)place(a, i) * size, size);
  }
  CHECK(!memcmp(now, a->bytes, (size_t)a->span * size), "%s: written beside its elements", what);
  free(now);
}

static inline void begin(void) {
  api = va_get_api(VA_ABI_MAJOR, VA_ABI_MINOR);
  CHECK(api, "no table");
  OK(api->open(0));
  OK(api->open(1));
}

#endif
