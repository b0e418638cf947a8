/* Attention of one query token's one head: a group. Two passes over the keys, none of which is
 * kept: the running maximum and sum are rescaled (online softmax). */
#include <math.h>
#include <string.h>

#include "sim.h"

#define WIDEST 256 /* elements of a head that fit the group's local memory */

typedef struct {
  va_tensor out, query, key, value, table, lengths, starts;
  char *out_at, *query_at, *key_at, *value_at, *table_at, *lengths_at, *starts_at;
  float scale, soft_cap;
  int32_t window, causal;
  int paged, outside;
} attention;

static int64_t at(const char *base, const va_tensor *tensor, int64_t i) {
  return sim_load_integer(base + i * tensor->strides[0] * (int64_t)sim_size_of(tensor->dtype),
                          tensor->dtype);
}

/* Where token number `position` of a sequence has its key (or value) of a KV head. */
static const char *find(attention *a, const va_tensor *cache, const char *base, int64_t sequence,
                        int64_t start, int64_t position, int64_t head) {
  int64_t size = (int64_t)sim_size_of(cache->dtype);
  if (!a->paged)
    return base + ((start + position) * cache->strides[0] + head * cache->strides[1]) * size;
  int64_t block_size = cache->shape[1], column = position / block_size;
  if (column >= a->table.shape[1]) return NULL;
  int64_t block = sim_load_integer(
      a->table_at + (sequence * a->table.strides[0] + column * a->table.strides[1]) *
                        (int64_t)sim_size_of(a->table.dtype),
      a->table.dtype);
  if (block < 0 || block >= cache->shape[0]) return NULL;
  return base + (block * cache->strides[0] + position % block_size * cache->strides[1] +
                 head * cache->strides[2]) *
                    size;
}

static void attend(const void *arguments, int64_t group) {
  attention *a = (attention *)(uintptr_t)arguments;
  int64_t heads = a->query.shape[1], width = a->query.shape[2], token = group / heads;
  int64_t head = group % heads, size = (int64_t)sim_size_of(a->query.dtype);
  int64_t kv_heads = a->key.shape[a->paged ? 2 : 1], kv_head = head / (heads / kv_heads);
  int64_t key_step = a->key.strides[a->paged ? 3 : 2], value_step = a->value.strides[a->paged ? 3 : 2];
  int64_t sequences = a->starts.shape[0] - 1, sequence = 0;
  while (sequence < sequences && at(a->starts_at, &a->starts, sequence + 1) <= token) sequence++;
  char *out = a->out_at + (token * a->out.strides[0] + head * a->out.strides[1]) * size;
  if (sequence == sequences) { /* behind the last sequence: padding */
    for (int64_t i = 0; i < width; i++) sim_store(out + i * a->out.strides[2] * size, a->out.dtype, 0);
    return;
  }
  int64_t start = at(a->starts_at, &a->starts, sequence);
  int64_t end = at(a->starts_at, &a->starts, sequence + 1);
  if (start < 0 || start > token || end > a->query.shape[0]) {
    a->outside = 1;
    return;
  }
  int64_t added = end - start;
  int64_t length = a->paged ? at(a->lengths_at, &a->lengths, sequence) : added;
  if (length < added || (a->paged && length > a->table.shape[1] * a->key.shape[1])) {
    a->outside = 1;
    return;
  }
  int64_t position = length - added + (token - start); /* of this token in its sequence */
  int64_t last = a->causal ? position : length - 1, first = 0;
  if (a->window) {
    if (position - a->window + 1 > first) first = position - a->window + 1;
    if (!a->causal && position + a->window - 1 < last) last = position + a->window - 1;
  }
  float q[WIDEST], sum[WIDEST] = {0}, top = -INFINITY, total = 0;
  const char *query = a->query_at + (token * a->query.strides[0] + head * a->query.strides[1]) * size;
  for (int64_t i = 0; i < width; i++) q[i] = sim_load(query + i * a->query.strides[2] * size, a->query.dtype);
  for (int64_t p = first; p <= last; p++) {
    const char *key = find(a, &a->key, a->key_at, sequence, start, p, kv_head);
    const char *value = find(a, &a->value, a->value_at, sequence, start, p, kv_head);
    if (!key || !value) {
      a->outside = 1;
      return;
    }
    float lanes[SIM_SUBGROUP] = {0};
    for (int64_t i = 0; i < width; i++)
      lanes[i % SIM_SUBGROUP] += q[i] * sim_load(key + i * key_step * size, a->key.dtype);
    float score = sim_subgroup_sum(lanes) * a->scale;
    if (a->soft_cap > 0) score = a->soft_cap * tanhf(score / a->soft_cap);
    float higher = score > top ? score : top, before = expf(top - higher), now = expf(score - higher);
    for (int64_t i = 0; i < width; i++)
      sum[i] = sum[i] * before + now * sim_load(value + i * value_step * size, a->value.dtype);
    total = total * before + now;
    top = higher;
  }
  for (int64_t i = 0; i < width; i++)
    sim_store(out + i * a->out.strides[2] * size, a->out.dtype, total == 0 ? 0 : sum[i] / total);
}

static va_status run(void *arguments) {
  attention *a = arguments;
  va_status status = sim_launch_all(a->query.shape[0] * a->query.shape[1], attend, a);
  if (!status && a->outside)
    return sim_fail(VA_ERROR_LAUNCH, "attention: a length or block number outside the cache");
  return status;
}

static va_status check_integers(const char *name, const va_tensor *tensor, int32_t device,
                                int32_t ndim) {
  va_status status = sim_check(name, tensor, device, ndim);
  if (!status && tensor->dtype != VA_INT32 && tensor->dtype != VA_INT64)
    status = sim_fail(VA_ERROR_INVALID, "%s has dtype %d and is no integer", name, tensor->dtype);
  return status;
}

static va_status queue(va_stream stream, attention *a) {
  const va_tensor *query = &a->query, *key = &a->key, *value = &a->value;
  int32_t dims = a->paged ? 4 : 3, device = query->device;
  va_status status = sim_usable(device);
  if (!status) status = sim_check("query", query, device, 3);
  if (!status) status = sim_floating("query", query);
  if (!status) status = sim_check_out("out", &a->out, device, 3);
  if (!status) status = sim_same_shape("out", &a->out, query);
  if (!status) status = sim_check("key", key, device, dims);
  if (!status) status = sim_check("value", value, device, dims);
  if (!status) status = sim_same_shape("value", value, key);
  if (!status) status = check_integers("query_start_loc", &a->starts, device, 1);
  if (!status && a->paged) status = check_integers("seq_lens", &a->lengths, device, 1);
  if (!status && a->paged) status = check_integers("block_table", &a->table, device, 2);
  if (status) return status;
  int64_t kv_heads = key->shape[dims - 2];
  if (key->dtype != query->dtype || value->dtype != query->dtype || a->out.dtype != query->dtype)
    return sim_fail(VA_ERROR_UNSUPPORTED, "query, keys, values and out have unlike dtypes");
  if (query->shape[2] > WIDEST)
    return sim_fail(VA_ERROR_UNSUPPORTED, "a head of %lld elements: the most is %d",
                    (long long)query->shape[2], WIDEST);
  if (a->paged && (!key->shape[1] || key->shape[1] % SIM_KV_BLOCK))
    return sim_fail(VA_ERROR_UNSUPPORTED, "a block of %lld tokens is no multiple of %d",
                    (long long)key->shape[1], SIM_KV_BLOCK);
  if (key->shape[dims - 1] != query->shape[2] || !kv_heads || query->shape[1] % kv_heads ||
      a->starts.shape[0] < 1 || a->window < 0 ||
      (a->paged && (a->lengths.shape[0] != a->starts.shape[0] - 1 ||
                    a->table.shape[0] < a->lengths.shape[0])) ||
      (!a->paged && key->shape[0] != query->shape[0]))
    return sim_fail(VA_ERROR_INVALID, "shapes of query, keys and lengths do not fit");
  if (!sim_count(query)) return VA_OK;
  a->out_at = sim_view(&a->out);
  a->query_at = sim_view(query);
  a->key_at = sim_view(key);
  a->value_at = sim_view(value);
  a->starts_at = sim_view(&a->starts);
  if (a->paged) {
    a->lengths_at = sim_view(&a->lengths);
    a->table_at = sim_view(&a->table);
  }
  return sim_enqueue(device, stream, run, a, sizeof *a);
}

va_status sim_paged_attention(const va_paged_attention_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  attention a;
  memset(&a, 0, sizeof a);
  a.out = args->out;
  a.query = args->query;
  a.key = args->key_cache;
  a.value = args->value_cache;
  a.table = args->block_table;
  a.lengths = args->seq_lens;
  a.starts = args->query_start_loc;
  a.scale = (float)args->scale;
  a.soft_cap = (float)args->soft_cap;
  a.window = args->window;
  a.causal = 1;
  a.paged = 1;
  return queue(args->stream, &a);
}

va_status sim_attention(const va_attention_args *args) {
  if (!args || args->size < sizeof *args) return sim_fail(VA_ERROR_INVALID, "arguments too short");
  attention a;
  memset(&a, 0, sizeof a);
  a.out = args->out;
  a.query = args->query;
  a.key = args->key;
  a.value = args->value;
  a.starts = args->query_start_loc;
  a.scale = (float)args->scale;
  a.soft_cap = (float)args->soft_cap;
  a.window = args->window;
  a.causal = args->causal;
  return queue(args->stream, &a);
}
