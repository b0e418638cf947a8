#include <math.h>
#include <string.h>

#include "sim.h"

/* rms_norm, with or without a residual that is added first, and layer_norm: one group a row. */
typedef struct {
  va_tensor out, sum, x, residual, weight, bias;
  char *out_at, *sum_at, *x_at, *residual_at, *weight_at, *bias_at;
  float eps;
  int centred;
} norm;

static float lane_sum(const norm *n, const char *row, const va_tensor *tensor, float mean,
                      int squared) {
  float lanes[SIM_SUBGROUP] = {0};
  int last = tensor->ndim - 1;
  int64_t size = (int64_t)sim_size_of(tensor->dtype);
  for (int64_t i = 0; i < n->x.shape[n->x.ndim - 1]; i++) {
    float value = sim_load(row + i * tensor->strides[last] * size, tensor->dtype) - mean;
    lanes[i % SIM_SUBGROUP] += squared ? value * value : value;
  }
  return sim_subgroup_sum(lanes);
}

static void norm_row(const void *arguments, int64_t row) {
  const norm *n = arguments;
  int last = n->x.ndim - 1;
  int64_t width = n->x.shape[last], size = (int64_t)sim_size_of(n->x.dtype);
  const va_tensor *source = &n->x;
  const char *from = sim_row(n->x_at, &n->x, row);
  if (n->sum_at) { /* the sum is rounded to its dtype, and the norm is of what was rounded */
    const char *other = sim_row(n->residual_at, &n->residual, row);
    char *sum = sim_row(n->sum_at, &n->sum, row);
    for (int64_t i = 0; i < width; i++) {
      float value = sim_load(from + i * n->x.strides[last] * size, n->x.dtype) +
                    sim_load(other + i * n->residual.strides[last] * size, n->residual.dtype);
      sim_store(sum + i * n->sum.strides[last] * size, n->sum.dtype, value);
    }
    source = &n->sum;
    from = sum;
  }
  float mean = n->centred ? lane_sum(n, from, source, 0, 0) / (float)width : 0;
  float scale = 1.0f / sqrtf(lane_sum(n, from, source, mean, 1) / (float)width + n->eps);
  char *to = sim_row(n->out_at, &n->out, row);
  for (int64_t i = 0; i < width; i++) {
    float value = (sim_load(from + i * source->strides[last] * size, source->dtype) - mean) * scale;
    value *= sim_load(n->weight_at + i * n->weight.strides[0] * size, n->weight.dtype);
    if (n->bias_at) value += sim_load(n->bias_at + i * n->bias.strides[0] * size, n->bias.dtype);
    sim_store(to + i * n->out.strides[last] * size, n->out.dtype, value);
  }
}

static va_status run(void *arguments) {
  const norm *n = arguments;
  return sim_launch_all(sim_rows(&n->x), norm_row, n);
}

static va_status check_width(const char *what, const va_tensor *tensor, const va_tensor *x) {
  va_status status = sim_check(what, tensor, x->device, 1);
  if (status) return status;
  if (tensor->shape[0] != x->shape[x->ndim - 1] || tensor->dtype != x->dtype)
    return sim_fail(VA_ERROR_INVALID, "%s does not fit x: width %lld, dtype %d", what,
                    (long long)tensor->shape[0], tensor->dtype);
  return VA_OK;
}

static va_status like_x(const char *what, const va_tensor *tensor, const va_tensor *x,
                        int written) {
  va_status status = written ? sim_check_out(what, tensor, x->device, x->ndim)
                             : sim_check(what, tensor, x->device, x->ndim);
  if (!status) status = sim_same_shape(what, tensor, x);
  if (!status && tensor->dtype != x->dtype)
    status = sim_fail(VA_ERROR_INVALID, "%s has dtype %d, and x has %d", what, tensor->dtype,
                      x->dtype);
  return status;
}

static va_status queue(va_stream stream, norm *n) {
  const va_tensor *x = &n->x;
  va_status status = sim_usable(x->device);
  if (!status) status = sim_check("x", x, x->device, -1);
  if (!status && x->ndim < 1) status = sim_fail(VA_ERROR_INVALID, "x has no dimension");
  if (!status) status = sim_floating("x", x);
  if (!status) status = like_x("out", &n->out, x, 1);
  if (!status) status = check_width("weight", &n->weight, x);
  if (!status && !sim_is_none(&n->bias)) status = check_width("bias", &n->bias, x);
  if (!status && !sim_is_none(&n->sum)) status = like_x("sum", &n->sum, x, 1);
  if (!status && !sim_is_none(&n->sum)) status = like_x("residual", &n->residual, x, 0);
  if (status || !sim_count(x)) return status;
  n->x_at = sim_view(x);
  n->out_at = sim_view(&n->out);
  n->weight_at = sim_view(&n->weight);
  n->bias_at = sim_is_none(&n->bias) ? NULL : sim_view(&n->bias);
  n->sum_at = sim_is_none(&n->sum) ? NULL : sim_view(&n->sum);
  n->residual_at = sim_is_none(&n->sum) ? NULL : sim_view(&n->residual);
  return sim_enqueue(x->device, stream, run, n, sizeof *n);
}

static norm empty(void) {
  norm n;
  memset(&n, 0, sizeof n);
  n.bias.ndim = n.sum.ndim = n.residual.ndim = -1;
  return n;
}

va_status sim_rms_norm(const va_rms_norm_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  norm n = empty();
  n.out = args->out;
  n.x = args->x;
  n.weight = args->weight;
  n.eps = (float)args->eps;
  return queue(args->stream, &n);
}

va_status sim_fused_add_rms_norm(const va_fused_add_rms_norm_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  norm n = empty();
  n.out = args->out;
  n.sum = args->sum;
  n.x = args->x;
  n.residual = args->residual;
  n.weight = args->weight;
  n.eps = (float)args->eps;
  if (sim_is_none(&n.sum)) return sim_fail(VA_ERROR_INVALID, "sum is none");
  return queue(args->stream, &n);
}

va_status sim_layer_norm(const va_layer_norm_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  norm n = empty();
  n.out = args->out;
  n.x = args->x;
  n.weight = args->weight;
  n.bias = args->bias;
  n.eps = (float)args->eps;
  n.centred = 1;
  return queue(args->stream, &n);
}
