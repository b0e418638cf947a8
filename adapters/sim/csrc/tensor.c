/* Plain tensor work: elementwise, reductions, rows by number. One group a row. */
#include <math.h>
#include <string.h>

#include "sim.h"

typedef struct {
  va_tensor out, x, other, condition;
  char *out_at, *x_at, *other_at, *condition_at;
  double alpha, scalar;
  int64_t integer, step;
  int kind, integral, outside;
} elementwise;

static const char *element(const char *row, const va_tensor *tensor, int64_t i) {
  int64_t stride = tensor->ndim ? tensor->strides[tensor->ndim - 1] : 0;
  return row + i * stride * (int64_t)sim_size_of(tensor->dtype);
}

static int64_t width_of(const va_tensor *tensor) {
  return tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1;
}

static double one(int kind, double x) {
  switch (kind) {
    case VA_NEG: return -x;
    case VA_ABS: return fabs(x);
    case VA_EXP: return expf((float)x);
    case VA_LOG: return logf((float)x);
    case VA_SQRT: return sqrtf((float)x);
    case VA_RSQRT: return 1.0f / sqrtf((float)x);
    case VA_SIN: return sinf((float)x);
    case VA_COS: return cosf((float)x);
    case VA_TANH: return tanhf((float)x);
    case VA_SIGMOID: return 1.0f / (1.0f + expf(-(float)x));
    case VA_SILU: return (float)x / (1.0f + expf(-(float)x));
    case VA_RELU: return x < 0 ? 0 : x;
    case VA_NOT: return x == 0;
    default: return x;
  }
}

static int64_t one_integer(int kind, int64_t x) {
  switch (kind) {
    case VA_NEG: return (int64_t)(0 - (uint64_t)x);
    case VA_ABS: return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
    case VA_RELU: return x < 0 ? 0 : x;
    case VA_NOT: return x == 0;
    default: return x;
  }
}

static void unary_row(const void *arguments, int64_t row) {
  const elementwise *e = arguments;
  const char *x = sim_row(e->x_at, &e->x, row);
  char *out = sim_row(e->out_at, &e->out, row);
  size_t size = sim_size_of(e->out.dtype);
  int plain = e->kind == VA_COPY && e->x.dtype == e->out.dtype;
  for (int64_t i = 0; i < width_of(&e->out); i++) {
    const char *from = element(x, &e->x, i);
    char *to = (char *)(uintptr_t)element(out, &e->out, i);
    if (plain) memcpy(to, from, size);
    else if (e->integral)
      sim_store_integer(to, e->out.dtype, one_integer(e->kind, sim_load_integer(from, e->x.dtype)));
    else sim_store_any(to, e->out.dtype, one(e->kind, sim_load_any(from, e->x.dtype)));
  }
}

static va_status run_unary(void *arguments) {
  const elementwise *e = arguments;
  return sim_launch_all(sim_rows(&e->out), unary_row, e);
}

va_status sim_unary(const va_unary_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *x = &args->x;
  va_status status = sim_usable(x->device);
  if (!status) status = sim_check("x", x, x->device, -1);
  if (!status) status = sim_check_out("out", &args->out, x->device, x->ndim);
  if (!status) status = sim_same_shape("out", &args->out, x);
  if (status) return status;
  if (args->kind < VA_COPY || args->kind > VA_NOT)
    return sim_fail(VA_ERROR_UNSUPPORTED, "there is no unary kernel %d", args->kind);
  if (args->kind >= VA_EXP && args->kind <= VA_SILU && !sim_is_float(x->dtype))
    return sim_fail(VA_ERROR_UNSUPPORTED, "kernel %d is for floating tensors", args->kind);
  if (args->kind == VA_NOT ? args->out.dtype != VA_BOOL
                           : args->kind != VA_COPY &&
                                 sim_is_float(x->dtype) != sim_is_float(args->out.dtype))
    return sim_fail(VA_ERROR_UNSUPPORTED, "kernel %d of dtype %d gives no dtype %d", args->kind,
                    x->dtype, args->out.dtype);
  if (x->dtype == VA_FLOAT64 && args->kind != VA_COPY)
    return sim_fail(VA_ERROR_UNSUPPORTED, "this chip computes no float64");
  if (!sim_count(x)) return VA_OK;
  elementwise e;
  memset(&e, 0, sizeof e);
  e.out = args->out;
  e.x = *x;
  e.kind = args->kind;
  e.integral = !sim_is_float(x->dtype) && !sim_is_float(args->out.dtype);
  e.out_at = sim_view(&e.out);
  e.x_at = sim_view(&e.x);
  return sim_enqueue(x->device, args->stream, run_unary, &e, sizeof e);
}

/* As torch: of the sign of b, and exact where a / b is not. */
static float rest_of(float a, float b) {
  float rest = fmodf(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}

static float floor_of(float a, float b) {
  if (b == 0) return a / b;
  float quotient = (a - rest_of(a, b)) / b, low = floorf(quotient);
  return quotient - low > 0.5f ? low + 1 : low;
}

static int64_t two_integers(elementwise *e, int64_t a, int64_t b) {
  uint64_t x = (uint64_t)a, y = (uint64_t)b;
  switch (e->kind) {
    case VA_ADD: return (int64_t)(x + (uint64_t)sim_whole(e->alpha) * y);
    case VA_SUB: return (int64_t)(x - (uint64_t)sim_whole(e->alpha) * y);
    case VA_MUL: return (int64_t)(x * y);
    case VA_MAXIMUM: return a > b ? a : b;
    case VA_MINIMUM: return a < b ? a : b;
    case VA_EQ: return a == b;
    case VA_NE: return a != b;
    case VA_LT: return a < b;
    case VA_LE: return a <= b;
    case VA_GT: return a > b;
    case VA_GE: return a >= b;
    case VA_AND: return a & b;
    case VA_OR: return a | b;
    case VA_XOR: return a ^ b;
    default: break;
  }
  if (!b || (b == -1 && a == INT64_MIN)) {
    e->outside = 1;
    return 0;
  }
  int64_t rest = a % b;
  if (e->kind == VA_FLOOR_DIV) return a / b - (rest && (a < 0) != (b < 0));
  return rest && (rest < 0) != (b < 0) ? rest + b : rest;
}

static double two(const elementwise *e, double a, double b) {
  float x = (float)a, y = (float)b;
  switch (e->kind) {
    case VA_ADD: return x + (float)e->alpha * y;
    case VA_SUB: return x - (float)e->alpha * y;
    case VA_MUL: return x * y;
    case VA_DIV: return x / y;
    case VA_POW: return powf(x, y);
    case VA_MAXIMUM: return a > b || isnan(a) ? a : b;
    case VA_MINIMUM: return a < b || isnan(a) ? a : b;
    case VA_EQ: return a == b;
    case VA_NE: return a != b;
    case VA_LT: return a < b;
    case VA_LE: return a <= b;
    case VA_GT: return a > b;
    case VA_GE: return a >= b;
    case VA_FLOOR_DIV: return floor_of(x, y);
    default: return rest_of(x, y);
  }
}

static void binary_row(const void *arguments, int64_t row) {
  elementwise *e = (elementwise *)(uintptr_t)arguments;
  const char *x = sim_row(e->x_at, &e->x, row);
  const char *other = e->other_at ? sim_row(e->other_at, &e->other, row) : NULL;
  char *out = sim_row(e->out_at, &e->out, row);
  for (int64_t i = 0; i < width_of(&e->out); i++) {
    const char *a = element(x, &e->x, i);
    const char *b = other ? element(other, &e->other, i) : NULL;
    char *to = (char *)(uintptr_t)element(out, &e->out, i);
    if (e->integral)
      sim_store_integer(to, e->out.dtype,
                        two_integers(e, sim_load_integer(a, e->x.dtype),
                                     b ? sim_load_integer(b, e->other.dtype) : e->integer));
    else
      sim_store_any(to, e->out.dtype,
                    two(e, sim_load_any(a, e->x.dtype),
                        b ? sim_load_any(b, e->other.dtype) : e->scalar));
  }
}

static va_status run_binary(void *arguments) {
  elementwise *e = arguments;
  va_status status = sim_launch_all(sim_rows(&e->out), binary_row, e);
  if (!status && e->outside) return sim_fail(VA_ERROR_LAUNCH, "a division of integers by zero");
  return status;
}

va_status sim_binary(const va_binary_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *x = &args->x, *other = &args->other;
  int has_other = !sim_is_none(other);
  va_status status = sim_usable(x->device);
  if (!status) status = sim_check("x", x, x->device, -1);
  if (!status) status = sim_check_out("out", &args->out, x->device, x->ndim);
  if (!status) status = sim_same_shape("out", &args->out, x);
  if (!status && has_other) status = sim_check("other", other, x->device, x->ndim);
  if (!status && has_other) status = sim_same_shape("other", other, x);
  if (status) return status;
  int integral = !sim_is_float(x->dtype) && (!has_other || !sim_is_float(other->dtype)) &&
                 !sim_is_float(args->out.dtype);
  int compares = args->kind >= VA_EQ && args->kind <= VA_GE;
  if (args->kind < VA_ADD || args->kind > VA_REMAINDER)
    return sim_fail(VA_ERROR_UNSUPPORTED, "there is no binary kernel %d", args->kind);
  if (x->dtype == VA_FLOAT64 || (has_other && other->dtype == VA_FLOAT64))
    return sim_fail(VA_ERROR_UNSUPPORTED, "this chip computes no float64");
  if (integral ? args->kind == VA_DIV || args->kind == VA_POW
               : args->kind >= VA_AND && args->kind <= VA_XOR)
    return sim_fail(VA_ERROR_UNSUPPORTED, "kernel %d is not for these dtypes", args->kind);
  if (compares ? args->out.dtype != VA_BOOL : !integral && !sim_is_float(args->out.dtype))
    return sim_fail(VA_ERROR_UNSUPPORTED, "kernel %d of dtype %d gives no dtype %d", args->kind,
                    x->dtype, args->out.dtype);
  if (!sim_count(x)) return VA_OK;
  elementwise e;
  memset(&e, 0, sizeof e);
  e.out = args->out;
  e.x = *x;
  e.other = *other;
  e.kind = args->kind;
  e.alpha = args->alpha;
  e.scalar = args->scalar;
  e.integer = args->integer_scalar;
  e.integral = integral;
  e.out_at = sim_view(&e.out);
  e.x_at = sim_view(&e.x);
  e.other_at = has_other ? sim_view(&e.other) : NULL;
  return sim_enqueue(x->device, args->stream, run_binary, &e, sizeof e);
}

static void where_row(const void *arguments, int64_t row) {
  const elementwise *e = arguments;
  const char *condition = sim_row(e->condition_at, &e->condition, row);
  const char *x = sim_row(e->x_at, &e->x, row), *other = sim_row(e->other_at, &e->other, row);
  char *out = sim_row(e->out_at, &e->out, row);
  for (int64_t i = 0; i < width_of(&e->out); i++)
    memcpy((char *)(uintptr_t)element(out, &e->out, i),
           *element(condition, &e->condition, i) ? element(x, &e->x, i)
                                                 : element(other, &e->other, i),
           sim_size_of(e->out.dtype));
}

static va_status run_where(void *arguments) {
  const elementwise *e = arguments;
  return sim_launch_all(sim_rows(&e->out), where_row, e);
}

va_status sim_where(const va_where_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *out = &args->out;
  va_status status = sim_usable(out->device);
  const va_tensor *parts[] = {out, &args->condition, &args->x, &args->other};
  for (int i = 0; i < 4 && !status; i++) {
    status = i ? sim_check("an argument", parts[i], out->device, out->ndim)
               : sim_check_out("out", out, out->device, out->ndim);
    if (!status) status = sim_same_shape("an argument", parts[i], out);
  }
  if (status) return status;
  if (args->condition.dtype != VA_BOOL || args->x.dtype != out->dtype ||
      args->other.dtype != out->dtype)
    return sim_fail(VA_ERROR_UNSUPPORTED, "condition is no bool, or dtypes differ");
  if (!sim_count(out)) return VA_OK;
  elementwise e;
  memset(&e, 0, sizeof e);
  e.out = *out;
  e.condition = args->condition;
  e.x = args->x;
  e.other = args->other;
  e.out_at = sim_view(out);
  e.condition_at = sim_view(&e.condition);
  e.x_at = sim_view(&e.x);
  e.other_at = sim_view(&e.other);
  return sim_enqueue(out->device, args->stream, run_where, &e, sizeof e);
}

static void fill_group(const void *arguments, int64_t row) {
  const elementwise *e = arguments;
  char *out = sim_row(e->out_at, &e->out, row);
  for (int64_t i = 0; i < width_of(&e->out); i++) {
    char *to = (char *)(uintptr_t)element(out, &e->out, i);
    if (e->integral)
      sim_store_integer(to, e->out.dtype,
                        (int64_t)((uint64_t)e->integer + (uint64_t)i * (uint64_t)e->step));
    else sim_store_any(to, e->out.dtype, e->scalar + (double)i * e->alpha);
  }
}

static va_status run_fill(void *arguments) {
  const elementwise *e = arguments;
  return sim_launch_all(sim_rows(&e->out), fill_group, e);
}

va_status sim_fill(const va_fill_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *out = &args->out;
  va_status status = sim_usable(out->device);
  if (!status) status = sim_check_out("out", out, out->device, args->arange ? 1 : -1);
  if (status || !sim_count(out)) return status;
  elementwise e;
  memset(&e, 0, sizeof e);
  e.out = *out;
  e.integral = !sim_is_float(out->dtype);
  e.scalar = args->value;
  e.integer = args->integer_value;
  if (args->arange) {
    e.alpha = args->step;
    e.step = args->integer_step;
  }
  e.out_at = sim_view(out);
  return sim_enqueue(out->device, args->stream, run_fill, &e, sizeof e);
}
