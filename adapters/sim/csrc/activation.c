#include <math.h>
#include <string.h>

#include "sim.h"

enum { SILU, GELU, GELU_TANH };

typedef struct {
  va_tensor out, x;
  char *out_at, *x_at;
  int function, gated;
} activation;

static float apply(int function, float x) {
  if (function == SILU) return x / (1.0f + expf(-x));
  if (function == GELU) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

static void row_of(const void *arguments, int64_t row) {
  const activation *a = arguments;
  int last = a->x.ndim - 1;
  int64_t size = (int64_t)sim_size_of(a->x.dtype), width = a->out.shape[last];
  const char *from = sim_row(a->x_at, &a->x, row);
  char *to = sim_row(a->out_at, &a->out, row);
  for (int64_t i = 0; i < width; i++) {
    float value = apply(a->function, sim_load(from + i * a->x.strides[last] * size, a->x.dtype));
    if (a->gated)
      value *= sim_load(from + (i + width) * a->x.strides[last] * size, a->x.dtype);
    sim_store(to + i * a->out.strides[last] * size, a->out.dtype, value);
  }
}

static va_status run(void *arguments) {
  const activation *a = arguments;
  return sim_launch_all(sim_rows(&a->out), row_of, a);
}

static va_status queue(va_stream stream, const va_tensor *out, const va_tensor *x, int function,
                       int gated) {
  va_status status = sim_usable(x->device);
  if (!status) status = sim_check("x", x, x->device, -1);
  if (!status && x->ndim < 1) status = sim_fail(VA_ERROR_INVALID, "x has no dimension");
  if (!status) status = sim_floating("x", x);
  if (!status) status = sim_check_out("out", out, x->device, x->ndim);
  if (status) return status;
  for (int i = 0; i < x->ndim; i++) {
    int64_t want = x->shape[i];
    if (gated && i == x->ndim - 1) {
      if (want % 2) return sim_fail(VA_ERROR_INVALID, "x has an odd width to be halved");
      want /= 2;
    }
    if (out->shape[i] != want || out->dtype != x->dtype)
      return sim_fail(VA_ERROR_INVALID, "out does not fit x");
  }
  if (!sim_count(out)) return VA_OK;
  activation a;
  memset(&a, 0, sizeof a);
  a.out = *out;
  a.x = *x;
  a.out_at = sim_view(out);
  a.x_at = sim_view(x);
  a.function = function;
  a.gated = gated;
  return sim_enqueue(x->device, stream, run, &a, sizeof a);
}

va_status sim_silu_and_mul(const va_gated_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  return queue(args->stream, &args->out, &args->x, SILU, 1);
}

va_status sim_gelu_and_mul(const va_gated_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  return queue(args->stream, &args->out, &args->x, args->tanh ? GELU_TANH : GELU, 1);
}

va_status sim_gelu(const va_gelu_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  return queue(args->stream, &args->out, &args->x, args->tanh ? GELU_TANH : GELU, 0);
}
