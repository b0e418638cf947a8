/* Rows of tables: embedding, rotary embedding, and writing into the paged cache. */
#include <string.h>

#include "sim.h"

static int is_index(const va_tensor *tensor) {
  return tensor->dtype == VA_INT32 || tensor->dtype == VA_INT64;
}

typedef struct {
  va_tensor out, ids, weight;
  char *out_at, *ids_at, *weight_at;
  int outside; /* set by a group that met an id outside the table */
} embedding;

/* The id of a row of out, whose leading dimensions are those of ids. */
static int64_t index_of(const va_tensor *ids, char *base, int64_t number) {
  int64_t size = (int64_t)sim_size_of(ids->dtype);
  for (int i = ids->ndim - 1; i >= 0; i--) {
    base += number % ids->shape[i] * ids->strides[i] * size;
    number /= ids->shape[i];
  }
  return sim_load_integer(base, ids->dtype);
}

static void embed_row(const void *arguments, int64_t row) {
  embedding *e = (embedding *)(uintptr_t)arguments;
  int64_t size = (int64_t)sim_size_of(e->out.dtype), last = e->out.ndim - 1;
  int64_t id = index_of(&e->ids, e->ids_at, row);
  if (id < 0 || id >= e->weight.shape[0]) {
    e->outside = 1;
    return;
  }
  char *to = sim_row(e->out_at, &e->out, row);
  const char *from = e->weight_at + id * e->weight.strides[0] * size;
  for (int64_t i = 0; i < e->weight.shape[1]; i++)
    memcpy(to + i * e->out.strides[last] * size, from + i * e->weight.strides[1] * size,
           (size_t)size);
}

static va_status run_embedding(void *arguments) {
  embedding *e = arguments;
  va_status status = sim_launch_all(sim_rows(&e->out), embed_row, e);
  if (!status && e->outside)
    return sim_fail(VA_ERROR_LAUNCH, "embedding: an id outside a table of %lld rows",
                    (long long)e->weight.shape[0]);
  return status;
}

va_status sim_embedding(const va_embedding_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *weight = &args->weight;
  va_status status = sim_usable(weight->device);
  if (!status) status = sim_check("weight", weight, weight->device, 2);
  if (!status) status = sim_floating("weight", weight);
  if (!status) status = sim_check("ids", &args->ids, weight->device, -1);
  if (!status) status = sim_check_out("out", &args->out, weight->device, args->ids.ndim + 1);
  if (status) return status;
  if (!is_index(&args->ids) || args->out.dtype != weight->dtype ||
      args->out.shape[args->out.ndim - 1] != weight->shape[1] ||
      sim_rows(&args->out) != sim_count(&args->ids))
    return sim_fail(VA_ERROR_INVALID, "shapes or dtypes of ids, weight and out do not fit");
  if (!sim_count(&args->out)) return VA_OK;
  embedding e;
  memset(&e, 0, sizeof e);
  e.out = args->out;
  e.ids = args->ids;
  e.weight = *weight;
  e.out_at = sim_view(&e.out);
  e.ids_at = sim_view(&e.ids);
  e.weight_at = sim_view(&e.weight);
  return sim_enqueue(weight->device, args->stream, run_embedding, &e, sizeof e);
}

typedef struct {
  va_tensor positions, tensor, table;
  char *positions_at, *tensor_at, *table_at;
  int64_t heads;
  int interleaved, outside;
} rotary;

/* One token's one head. */
static void rotate(const void *arguments, int64_t group) {
  rotary *r = (rotary *)(uintptr_t)arguments;
  int64_t token = group / r->heads, head = group % r->heads;
  int64_t size = (int64_t)sim_size_of(r->tensor.dtype), pairs = r->table.shape[1] / 2;
  int64_t position = index_of(&r->positions, r->positions_at, token);
  if (position < 0 || position >= r->table.shape[0]) {
    r->outside = 1;
    return;
  }
  int64_t step = r->tensor.strides[2];
  char *base = r->tensor_at + (token * r->tensor.strides[0] + head * r->tensor.strides[1]) * size;
  int64_t table_size = (int64_t)sim_size_of(r->table.dtype);
  int64_t table_step = r->table.strides[1] * table_size;
  const char *row = r->table_at + position * r->table.strides[0] * table_size;
  for (int64_t i = 0; i < pairs; i++) {
    int64_t first = r->interleaved ? 2 * i : i, second = r->interleaved ? 2 * i + 1 : i + pairs;
    float c = sim_load(row + i * table_step, r->table.dtype);
    float s = sim_load(row + (i + pairs) * table_step, r->table.dtype);
    char *a = base + first * step * size, *b = base + second * step * size;
    float x = sim_load(a, r->tensor.dtype), y = sim_load(b, r->tensor.dtype);
    sim_store(a, r->tensor.dtype, x * c - y * s);
    sim_store(b, r->tensor.dtype, y * c + x * s);
  }
}

static va_status run_rotary(void *arguments) {
  rotary *r = arguments;
  va_status status = sim_launch_all(r->tensor.shape[0] * r->heads, rotate, r);
  if (!status && r->outside)
    return sim_fail(VA_ERROR_LAUNCH, "rotary_embedding: a position outside a table of %lld rows",
                    (long long)r->table.shape[0]);
  return status;
}

static va_status check_rotary(const va_rotary_embedding_args *args, const va_tensor *tensor,
                              const char *name) {
  const va_tensor *table = &args->cos_sin_cache;
  va_status status = sim_check_out(name, tensor, table->device, 3);
  if (!status) status = sim_floating(name, tensor);
  if (status) return status;
  if (tensor->shape[0] != sim_count(&args->positions) ||
      tensor->shape[2] < table->shape[1])
    return sim_fail(VA_ERROR_INVALID, "%s does not fit positions and cos_sin_cache", name);
  return VA_OK;
}

static va_status queue_rotary(const va_rotary_embedding_args *args, const va_tensor *tensor) {
  const va_tensor *table = &args->cos_sin_cache;
  if (!sim_count(tensor) || !sim_count(table)) return VA_OK;
  rotary r;
  memset(&r, 0, sizeof r);
  r.positions = args->positions;
  r.tensor = *tensor;
  r.table = *table;
  r.positions_at = sim_view(&r.positions);
  r.tensor_at = sim_view(&r.tensor);
  r.table_at = sim_view(&r.table);
  r.heads = tensor->shape[1];
  r.interleaved = args->interleaved;
  return sim_enqueue(table->device, args->stream, run_rotary, &r, sizeof r);
}

va_status sim_rotary_embedding(const va_rotary_embedding_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *table = &args->cos_sin_cache;
  va_status status = sim_usable(table->device);
  if (!status) status = sim_check("cos_sin_cache", table, table->device, 2);
  if (!status) status = sim_floating("cos_sin_cache", table);
  if (!status) status = sim_check("positions", &args->positions, table->device, 1);
  if (!status && !is_index(&args->positions))
    status = sim_fail(VA_ERROR_INVALID, "positions are no integers");
  if (!status && table->shape[1] % 2)
    status = sim_fail(VA_ERROR_INVALID, "cos_sin_cache has an odd width");
  if (!status) status = check_rotary(args, &args->query, "query");
  if (!status) status = check_rotary(args, &args->key, "key");
  if (!status) status = queue_rotary(args, &args->query);
  if (!status) status = queue_rotary(args, &args->key);
  return status;
}

typedef struct {
  va_tensor from, cache, slots;
  char *from_at, *cache_at, *slots_at;
  int outside;
} writing;

static void write_token(const void *arguments, int64_t token) {
  writing *w = (writing *)(uintptr_t)arguments;
  int64_t size = (int64_t)sim_size_of(w->from.dtype);
  int64_t slot = index_of(&w->slots, w->slots_at, token);
  if (slot < 0) return;
  if (slot >= w->cache.shape[0] * w->cache.shape[1]) {
    w->outside = 1;
    return;
  }
  char *to = w->cache_at + (slot / w->cache.shape[1] * w->cache.strides[0] +
                            slot % w->cache.shape[1] * w->cache.strides[1]) *
                               size;
  const char *from = w->from_at + token * w->from.strides[0] * size;
  for (int64_t head = 0; head < w->from.shape[1]; head++)
    for (int64_t i = 0; i < w->from.shape[2]; i++)
      memcpy(to + (head * w->cache.strides[2] + i * w->cache.strides[3]) * size,
             from + (head * w->from.strides[1] + i * w->from.strides[2]) * size, (size_t)size);
}

static va_status run_writing(void *arguments) {
  writing *w = arguments;
  va_status status = sim_launch_all(w->slots.shape[0], write_token, w);
  if (!status && w->outside)
    return sim_fail(VA_ERROR_LAUNCH, "reshape_and_cache: a slot outside the cache");
  return status;
}

static va_status check_writing(const va_reshape_and_cache_args *args, const va_tensor *from,
                               const va_tensor *cache, const char *name) {
  int32_t device = args->slot_mapping.device;
  va_status status = sim_check(name, from, device, 3);
  if (!status) status = sim_floating(name, from);
  if (!status) status = sim_check_out("the cache", cache, device, 4);
  if (status) return status;
  if (!cache->shape[1] || cache->shape[1] % SIM_KV_BLOCK)
    return sim_fail(VA_ERROR_UNSUPPORTED, "a block of %lld tokens is no multiple of %d",
                    (long long)cache->shape[1], SIM_KV_BLOCK);
  if (from->dtype != cache->dtype)
    return sim_fail(VA_ERROR_UNSUPPORTED, "%s and its cache have unlike dtypes", name);
  if (from->shape[0] < args->slot_mapping.shape[0] || from->shape[1] != cache->shape[2] ||
      from->shape[2] != cache->shape[3])
    return sim_fail(VA_ERROR_INVALID, "%s does not fit its cache and slot_mapping", name);
  return VA_OK;
}

static va_status queue_writing(const va_reshape_and_cache_args *args, const va_tensor *from,
                               const va_tensor *cache) {
  if (!args->slot_mapping.shape[0] || !from->shape[1] || !from->shape[2]) return VA_OK;
  writing w;
  memset(&w, 0, sizeof w);
  w.from = *from;
  w.cache = *cache;
  w.slots = args->slot_mapping;
  w.from_at = sim_view(from);
  w.cache_at = sim_view(cache);
  w.slots_at = sim_view(&w.slots);
  return sim_enqueue(args->slot_mapping.device, args->stream, run_writing, &w, sizeof w);
}

va_status sim_reshape_and_cache(const va_reshape_and_cache_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  const va_tensor *slots = &args->slot_mapping;
  va_status status = sim_usable(slots->device);
  if (!status) status = sim_check("slot_mapping", slots, slots->device, 1);
  if (!status && !is_index(slots)) status = sim_fail(VA_ERROR_INVALID, "slots are no integers");
  if (!status) status = check_writing(args, &args->key, &args->key_cache, "key");
  if (!status) status = check_writing(args, &args->value, &args->value_cache, "value");
  if (!status) status = queue_writing(args, &args->key, &args->key_cache);
  if (!status) status = queue_writing(args, &args->value, &args->value_cache);
  return status;
}
