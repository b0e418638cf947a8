/* Reductions over the last dimension, and elements or rows by number. */
#include <math.h>
#include <string.h>

#include "sim.h"

typedef struct {
  va_tensor out, x, index;
  char *out_at, *x_at, *index_at;
  int kind, outside;
} rows;

/* The bytes of element number `row` of a tensor that lacks x's last dimension. */
static char *reduced(char *base, const va_tensor *out, int64_t row) {
  int64_t size = (int64_t)sim_size_of(out->dtype);
  for (int i = out->ndim - 1; i >= 0; i--) {
    base += row % out->shape[i] * out->strides[i] * size;
    row /= out->shape[i];
  }
  return base;
}

static void reduce_row(const void *arguments, int64_t row) {
  const rows *r = arguments;
  int last = r->x.ndim - 1;
  int64_t width = r->x.shape[last], best = 0;
  int64_t step = r->x.strides[last] * (int64_t)sim_size_of(r->x.dtype);
  const char *x = width ? sim_row(r->x_at, &r->x, row) : NULL;
  int whole = r->kind == VA_CUMSUM || r->kind == VA_SOFTMAX;
  char *out = whole ? sim_row(r->out_at, &r->out, row) : reduced(r->out_at, &r->out, row);
  int64_t out_step = whole ? r->out.strides[last] * (int64_t)sim_size_of(r->out.dtype) : 0;
  int integral = !sim_is_float(r->x.dtype);
  uint64_t integer_sum = 0;
  int64_t integer_top = 0;
  float lanes[SIM_SUBGROUP] = {0}, top = 0;
  double running = 0;
  int all = 1, any = 0;
  for (int64_t i = 0; i < width; i++) {
    const char *at = x + i * step;
    float value = integral ? 0 : sim_load(at, r->x.dtype);
    int64_t number = integral ? sim_load_integer(at, r->x.dtype) : 0;
    int low = r->kind == VA_AMIN || r->kind == VA_ARGMIN;
    int better = integral ? (low ? number < integer_top : number > integer_top)
                          : !isnan(top) && (isnan(value) || (low ? value < top : value > top));
    if (!i || better) {
      best = i;
      top = value;
      integer_top = number;
    }
    all &= integral ? number != 0 : value != 0;
    any |= integral ? number != 0 : value != 0;
    integer_sum += (uint64_t)number;
    lanes[i % SIM_SUBGROUP] += value;
    if (r->kind == VA_CUMSUM) {
      running += value;
      if (integral) sim_store_integer(out + i * out_step, r->out.dtype, (int64_t)integer_sum);
      else sim_store_any(out + i * out_step, r->out.dtype, running);
    }
  }
  if (r->kind == VA_SOFTMAX) {
    memset(lanes, 0, sizeof lanes);
    for (int64_t i = 0; i < width; i++)
      lanes[i % SIM_SUBGROUP] += expf(sim_load(x + i * step, r->x.dtype) - top);
    float total = sim_subgroup_sum(lanes);
    for (int64_t i = 0; i < width; i++)
      sim_store(out + i * out_step, r->out.dtype,
                expf(sim_load(x + i * step, r->x.dtype) - top) / total);
  } else if (r->kind == VA_ARGMAX || r->kind == VA_ARGMIN) {
    sim_store_integer(out, r->out.dtype, best);
  } else if (r->kind == VA_ALL || r->kind == VA_ANY) {
    sim_store_integer(out, r->out.dtype, r->kind == VA_ALL ? all : any);
  } else if (r->kind == VA_AMAX || r->kind == VA_AMIN) {
    if (integral) sim_store_integer(out, r->out.dtype, integer_top);
    else sim_store_any(out, r->out.dtype, top);
  } else if (r->kind == VA_SUM || r->kind == VA_MEAN) {
    float sum = sim_subgroup_sum(lanes);
    if (integral) sim_store_integer(out, r->out.dtype, (int64_t)integer_sum);
    else sim_store_any(out, r->out.dtype, r->kind == VA_MEAN ? sum / (float)width : sum);
  }
}

static va_status run_reduce(void *arguments) {
  const rows *r = arguments;
  return sim_launch_all(sim_rows(&r->x), reduce_row, r);
}

va_status sim_reduce(const va_reduce_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *x = &args->x, *out = &args->out;
  int whole = args->kind == VA_CUMSUM || args->kind == VA_SOFTMAX;
  va_status status = sim_usable(x->device);
  if (!status) status = sim_check("x", x, x->device, -1);
  if (!status && x->ndim < 1) status = sim_fail(VA_ERROR_INVALID, "x has no dimension");
  if (!status) status = sim_check_out("out", out, x->device, whole ? x->ndim : x->ndim - 1);
  if (status) return status;
  if (args->kind < VA_SUM || args->kind > VA_SOFTMAX)
    return sim_fail(VA_ERROR_UNSUPPORTED, "there is no reduction %d", args->kind);
  for (int i = 0; i < out->ndim; i++)
    if (out->shape[i] != x->shape[i]) return sim_fail(VA_ERROR_INVALID, "out does not fit x");
  int integral = !sim_is_float(x->dtype);
  if (x->dtype == VA_FLOAT64 || (integral && (args->kind == VA_MEAN || args->kind == VA_SOFTMAX)))
    return sim_fail(VA_ERROR_UNSUPPORTED, "reduction %d is not for dtype %d", args->kind, x->dtype);
  if ((args->kind == VA_ARGMAX || args->kind == VA_ARGMIN) && out->dtype != VA_INT64)
    return sim_fail(VA_ERROR_INVALID, "out of an argmax is int64");
  int judged = args->kind == VA_ALL || args->kind == VA_ANY;
  if (args->kind != VA_ARGMAX && args->kind != VA_ARGMIN &&
      (judged ? out->dtype != VA_BOOL : integral == sim_is_float(out->dtype)))
    return sim_fail(VA_ERROR_UNSUPPORTED, "reduction %d of dtype %d gives no dtype %d", args->kind,
                    x->dtype, out->dtype);
  if (!x->shape[x->ndim - 1] && args->kind != VA_SUM && args->kind != VA_ALL &&
      args->kind != VA_ANY && !whole)
    return sim_fail(VA_ERROR_INVALID, "a reduction of nothing has no value");
  if (!sim_count(out)) return VA_OK;
  rows r;
  memset(&r, 0, sizeof r);
  r.out = *out;
  r.x = *x;
  r.kind = args->kind;
  r.out_at = sim_view(out);
  r.x_at = sim_count(x) ? sim_view(x) : NULL;
  return sim_enqueue(x->device, args->stream, run_reduce, &r, sizeof r);
}

static void index_row(const void *arguments, int64_t group) {
  rows *r = (rows *)(uintptr_t)arguments;
  int64_t size = (int64_t)sim_size_of(r->x.dtype), inner = 1;
  for (int i = 1; i < r->x.ndim; i++) inner *= r->x.shape[i];
  int64_t id = sim_load_integer(
      r->index_at + group * r->index.strides[0] * (int64_t)sim_size_of(r->index.dtype),
      r->index.dtype);
  if (id < 0) id += r->x.shape[0];
  if (id < 0 || id >= r->x.shape[0]) {
    r->outside = 1;
    return;
  }
  for (int64_t i = 0; i < inner; i++) {
    int64_t rest = i, a = group * r->out.strides[0], b = id * r->x.strides[0];
    for (int d = r->x.ndim - 1; d >= 1; d--) {
      a += rest % r->x.shape[d] * r->out.strides[d];
      b += rest % r->x.shape[d] * r->x.strides[d];
      rest /= r->x.shape[d];
    }
    if (r->kind) memcpy(r->x_at + b * size, r->out_at + a * size, (size_t)size);
    else memcpy(r->out_at + a * size, r->x_at + b * size, (size_t)size);
  }
}

static va_status run_index(void *arguments) {
  rows *r = arguments;
  va_status status = sim_launch_all(r->index.shape[0], index_row, r);
  if (!status && r->outside) return sim_fail(VA_ERROR_LAUNCH, "an index outside the tensor");
  return status;
}

va_status sim_index(const va_index_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *x = &args->x, *out = &args->out, *index = &args->index;
  va_status status = sim_usable(x->device);
  if (!status) status = sim_check("x", x, x->device, -1);
  if (!status && args->scatter) status = sim_check_out("x", x, x->device, -1);
  if (!status && x->ndim < 1) status = sim_fail(VA_ERROR_INVALID, "x has no dimension");
  if (!status)
    status = args->scatter ? sim_check("out", out, x->device, x->ndim)
                           : sim_check_out("out", out, x->device, x->ndim);
  if (!status) status = sim_check("index", index, x->device, 1);
  if (status) return status;
  for (int i = 0; i < x->ndim; i++)
    if (out->shape[i] != (i ? x->shape[i] : index->shape[0]))
      return sim_fail(VA_ERROR_INVALID, "out does not fit x and index");
  if (out->dtype != x->dtype || (index->dtype != VA_INT64 && index->dtype != VA_INT32))
    return sim_fail(VA_ERROR_UNSUPPORTED, "index is no integer, or dtypes differ");
  if (!sim_count(out)) return VA_OK;
  if (!x->shape[0]) return sim_fail(VA_ERROR_INVALID, "an index into nothing");
  rows r;
  memset(&r, 0, sizeof r);
  r.out = *out;
  r.x = *x;
  r.index = *index;
  r.kind = args->scatter;
  r.out_at = sim_view(out);
  r.x_at = sim_view(x);
  r.index_at = sim_view(index);
  return sim_enqueue(x->device, args->stream, run_index, &r, sizeof r);
}

static void gather_row(const void *arguments, int64_t row) {
  rows *r = (rows *)(uintptr_t)arguments;
  int last = r->x.ndim - 1;
  int64_t size = (int64_t)sim_size_of(r->x.dtype), index_size = (int64_t)sim_size_of(r->index.dtype);
  const char *x = sim_row(r->x_at, &r->x, row), *index = sim_row(r->index_at, &r->index, row);
  char *out = sim_row(r->out_at, &r->out, row);
  for (int64_t j = 0; j < r->out.shape[last]; j++) {
    int64_t id = sim_load_integer(index + j * r->index.strides[last] * index_size, r->index.dtype);
    if (id < 0 || id >= r->x.shape[last]) {
      r->outside = 1;
      return;
    }
    memcpy(out + j * r->out.strides[last] * size, x + id * r->x.strides[last] * size, (size_t)size);
  }
}

static va_status run_gather(void *arguments) {
  rows *r = arguments;
  va_status status = sim_launch_all(sim_rows(&r->out), gather_row, r);
  if (!status && r->outside) return sim_fail(VA_ERROR_LAUNCH, "an index outside the tensor");
  return status;
}

va_status sim_gather(const va_gather_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *x = &args->x, *out = &args->out, *index = &args->index;
  va_status status = sim_usable(x->device);
  if (!status) status = sim_check("x", x, x->device, -1);
  if (!status && x->ndim < 1) status = sim_fail(VA_ERROR_INVALID, "x has no dimension");
  if (!status) status = sim_check_out("out", out, x->device, x->ndim);
  if (!status) status = sim_check("index", index, x->device, x->ndim);
  if (!status) status = sim_same_shape("index", index, out);
  if (status) return status;
  for (int i = 0; i + 1 < x->ndim; i++)
    if (out->shape[i] != x->shape[i]) return sim_fail(VA_ERROR_INVALID, "out does not fit x");
  if (out->dtype != x->dtype || (index->dtype != VA_INT64 && index->dtype != VA_INT32))
    return sim_fail(VA_ERROR_UNSUPPORTED, "index is no integer, or dtypes differ");
  if (!sim_count(out)) return VA_OK;
  rows r;
  memset(&r, 0, sizeof r);
  r.out = *out;
  r.x = *x;
  r.index = *index;
  r.out_at = sim_view(out);
  r.x_at = sim_view(x);
  r.index_at = sim_view(index);
  return sim_enqueue(x->device, args->stream, run_gather, &r, sizeof r);
}
