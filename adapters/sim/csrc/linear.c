#include <string.h>

#include "sim.h"

typedef struct {
  va_tensor out, x, weight, bias;
  char *out_at, *x_at, *weight_at, *bias_at;
} linear;

/* Of nothing it is 0, and where a and b point does not matter. */
static float dot(const char *a, int64_t a_stride, const char *b, int64_t b_stride, int64_t length,
                 va_dtype dtype) {
  float lanes[SIM_SUBGROUP] = {0};
  if (dtype == VA_FLOAT32 && a_stride == 1 && b_stride == 1 &&
      ((uintptr_t)a | (uintptr_t)b) % sizeof(float) == 0) {
    const float *left = (const float *)(const void *)a, *right = (const float *)(const void *)b;
    int64_t i = 0;
    for (; i + SIM_SUBGROUP <= length; i += SIM_SUBGROUP)
      for (int lane = 0; lane < SIM_SUBGROUP; lane++)
        lanes[lane] += left[i + lane] * right[i + lane];
    for (int lane = 0; i < length; i++, lane++) lanes[lane] += left[i] * right[i];
  } else {
    int64_t size = (int64_t)sim_size_of(dtype);
    for (int64_t i = 0; i < length; i++)
      lanes[i % SIM_SUBGROUP] += sim_load(a + i * a_stride * size, dtype) *
                                 sim_load(b + i * b_stride * size, dtype);
  }
  return sim_subgroup_sum(lanes);
}

/* sim_view, or for a tensor without elements an address and strides that lead nowhere else. */
static char *inside(va_tensor *tensor) {
  static char nothing[1];
  if (sim_count(tensor)) return sim_view(tensor);
  memset(tensor->strides, 0, sizeof tensor->strides);
  return nothing;
}

static void linear_row(const void *arguments, int64_t row) {
  const linear *l = arguments;
  int last = l->x.ndim - 1;
  int64_t size = (int64_t)sim_size_of(l->x.dtype);
  const char *x = sim_row(l->x_at, &l->x, row);
  char *out = sim_row(l->out_at, &l->out, row);
  for (int64_t o = 0; o < l->weight.shape[0]; o++) {
    float value = dot(x, l->x.strides[last], l->weight_at + o * l->weight.strides[0] * size,
                      l->weight.strides[1], l->x.shape[last], l->x.dtype);
    if (l->bias_at) value += sim_load(l->bias_at + o * l->bias.strides[0] * size, l->bias.dtype);
    sim_store(out + o * l->out.strides[last] * size, l->out.dtype, value);
  }
}

static va_status run_linear(void *arguments) {
  const linear *l = arguments;
  return sim_launch_all(sim_rows(&l->x), linear_row, l);
}

static int same_rows(const va_tensor *a, const va_tensor *b) {
  for (int i = 0; i + 1 < a->ndim; i++)
    if (a->shape[i] != b->shape[i]) return 0;
  return 1;
}

va_status sim_linear(const va_linear_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *x = &args->x;
  va_status status = sim_usable(x->device);
  if (!status) status = sim_check("x", x, x->device, -1);
  if (!status && x->ndim < 1) status = sim_fail(VA_ERROR_INVALID, "x has no dimension");
  if (!status) status = sim_floating("x", x);
  if (!status) status = sim_check("weight", &args->weight, x->device, 2);
  if (!status) status = sim_check_out("out", &args->out, x->device, x->ndim);
  if (!status && !sim_is_none(&args->bias)) status = sim_check("bias", &args->bias, x->device, 1);
  if (status) return status;
  int last = x->ndim - 1;
  if (args->weight.shape[1] != x->shape[last] || args->out.shape[last] != args->weight.shape[0] ||
      !same_rows(&args->out, x) || args->weight.dtype != x->dtype ||
      args->out.dtype != x->dtype ||
      (!sim_is_none(&args->bias) && (args->bias.shape[0] != args->weight.shape[0] ||
                                     args->bias.dtype != x->dtype)))
    return sim_fail(VA_ERROR_INVALID, "shapes or dtypes of x, weight, bias and out do not fit");
  if (!sim_count(&args->out)) return VA_OK;
  linear l;
  memset(&l, 0, sizeof l);
  l.out = args->out;
  l.x = *x;
  l.weight = args->weight;
  l.bias = args->bias;
  l.out_at = sim_view(&l.out);
  l.x_at = inside(&l.x);
  l.weight_at = inside(&l.weight);
  l.bias_at = sim_is_none(&l.bias) ? NULL : sim_view(&l.bias);
  return sim_enqueue(x->device, args->stream, run_linear, &l, sizeof l);
}

typedef struct {
  va_tensor out, x, other;
  char *out_at, *x_at, *other_at;
} matmul;

static void matmul_row(const void *arguments, int64_t group) {
  const matmul *m = arguments;
  int64_t size = (int64_t)sim_size_of(m->x.dtype), rows = m->out.shape[1];
  int64_t batch = group / rows, row = group % rows;
  const char *x = m->x_at + (batch * m->x.strides[0] + row * m->x.strides[1]) * size;
  const char *other = m->other_at + batch * m->other.strides[0] * size;
  char *out = m->out_at + (batch * m->out.strides[0] + row * m->out.strides[1]) * size;
  for (int64_t n = 0; n < m->out.shape[2]; n++)
    sim_store(out + n * m->out.strides[2] * size, m->out.dtype,
              dot(x, m->x.strides[2], other + n * m->other.strides[2] * size, m->other.strides[1],
                  m->x.shape[2], m->x.dtype));
}

static va_status run_matmul(void *arguments) {
  const matmul *m = arguments;
  return sim_launch_all(m->out.shape[0] * m->out.shape[1], matmul_row, m);
}

va_status sim_matmul(const va_matmul_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *x = &args->x, *other = &args->other, *out = &args->out;
  va_status status = sim_usable(x->device);
  if (!status) status = sim_check("x", x, x->device, 3);
  if (!status) status = sim_floating("x", x);
  if (!status) status = sim_check("other", other, x->device, 3);
  if (!status) status = sim_check_out("out", out, x->device, 3);
  if (status) return status;
  if (x->shape[0] != out->shape[0] || other->shape[0] != out->shape[0] ||
      x->shape[1] != out->shape[1] || x->shape[2] != other->shape[1] ||
      other->shape[2] != out->shape[2] || other->dtype != x->dtype || out->dtype != x->dtype)
    return sim_fail(VA_ERROR_INVALID, "shapes or dtypes of x, other and out do not fit");
  if (!sim_count(out)) return VA_OK;
  matmul m;
  memset(&m, 0, sizeof m);
  m.out = *out;
  m.x = *x;
  m.other = *other;
  m.out_at = sim_view(out);
  m.x_at = inside(&m.x);
  m.other_at = inside(&m.other);
  return sim_enqueue(x->device, args->stream, run_matmul, &m, sizeof m);
}
