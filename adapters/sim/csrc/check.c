#include "sim.h"

#define LARGEST (INT64_C(1) << 31) /* elements, and strides: products stay far inside 64 bits */

int sim_is_none(const va_tensor *tensor) { return tensor->ndim < 0; }

va_status sim_check(const char *what, const va_tensor *tensor, int32_t device, int32_t ndim) {
  if (tensor->ndim < 0 || tensor->ndim > VA_MAX_DIMS || (ndim >= 0 && tensor->ndim != ndim))
    return sim_fail(VA_ERROR_INVALID, "%s has %d dimensions", what, tensor->ndim);
  if (!sim_size_of(tensor->dtype) || tensor->dtype == VA_BFLOAT16 ||
      tensor->dtype >= VA_FLOAT8_E4M3FN)
    return sim_fail(VA_ERROR_UNSUPPORTED, "%s has dtype %d, which this chip has not", what,
                    tensor->dtype);
  int64_t count = 1;
  for (int i = 0; i < tensor->ndim; i++)
    if (tensor->shape[i] < 0 || tensor->shape[i] > LARGEST ||
        (count *= tensor->shape[i]) > LARGEST || tensor->strides[i] > LARGEST ||
        tensor->strides[i] < -LARGEST)
      return sim_fail(VA_ERROR_INVALID, "%s has an extent or stride that makes no sense", what);
  if (tensor->device != device)
    return sim_fail(VA_ERROR_INVALID, "%s is on device %d, and the others are on %d", what,
                    tensor->device, device);
  if ((uintptr_t)tensor->data % sim_size_of(tensor->dtype))
    return sim_fail(VA_ERROR_INVALID, "%s begins at %p, which is no address of its dtype", what,
                    tensor->data);
  if (sim_count(tensor) && !sim_view(tensor))
    return sim_fail(VA_ERROR_NOT_DEVICE, "%s is not in live memory of device %d", what, device);
  return VA_OK;
}

va_status sim_check_out(const char *what, const va_tensor *tensor, int32_t device, int32_t ndim) {
  va_status status = sim_check(what, tensor, device, ndim);
  for (int i = 0; !status && sim_count(tensor) && i < tensor->ndim; i++)
    if (tensor->shape[i] > 1 && !tensor->strides[i])
      status = sim_fail(VA_ERROR_INVALID, "%s is written, and its elements lie on each other",
                        what);
  return status;
}

int64_t sim_count(const va_tensor *tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->ndim; i++) count *= tensor->shape[i];
  return count;
}

int64_t sim_rows(const va_tensor *tensor) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < tensor->ndim; i++) rows *= tensor->shape[i];
  return rows;
}

char *sim_row(char *base, const va_tensor *tensor, int64_t row) {
  int64_t size = (int64_t)sim_size_of(tensor->dtype);
  for (int i = tensor->ndim - 2; i >= 0; i--) {
    base += row % tensor->shape[i] * tensor->strides[i] * size;
    row /= tensor->shape[i];
  }
  return base;
}

va_status sim_same_shape(const char *what, const va_tensor *a, const va_tensor *b) {
  int same = a->ndim == b->ndim;
  for (int i = 0; same && i < a->ndim; i++) same = a->shape[i] == b->shape[i];
  return same ? VA_OK : sim_fail(VA_ERROR_INVALID, "%s has another shape", what);
}

va_status sim_floating(const char *what, const va_tensor *tensor) {
  if (tensor->dtype == VA_FLOAT32 || tensor->dtype == VA_FLOAT16) return VA_OK;
  return sim_fail(VA_ERROR_UNSUPPORTED, "%s has dtype %d; there are kernels for float32 and float16",
                  what, tensor->dtype);
}
