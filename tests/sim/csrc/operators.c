/* Every portable operator against plain C in double precision, for both dtypes and every layout of
 * its arguments; refusals of what the chip has not. */
#include "harness.h"

static uint64_t state = 20261;
static va_dtype dtype;
static layout how;

static double budget(void) { return dtype == VA_FLOAT16 ? 2e-3 : 4e-6; }

static array floats(int32_t ndim, const int64_t *shape) {
  return make(0, dtype, how, -2, 2, &state, ndim, shape);
}

static double *numbers(int64_t count) {
  double *values = calloc((size_t)count + 1, sizeof *values);
  CHECK(values, "no memory");
  return values;
}

static double rounded(double value) { /* as a tensor of this dtype stores it */
  unsigned char bytes[8];
  write_value(bytes, dtype, value);
  return read_value(bytes, dtype);
}

static void test_linear(int64_t rows, int64_t in, int64_t out, int with_bias) {
  array x = floats(SHAPE(2, rows, in)), w = floats(SHAPE(out, in)), b = floats(SHAPE(out));
  array y = floats(SHAPE(2, rows, out));
  va_linear_args args = {.size = sizeof args, .out = y.t, .x = x.t, .weight = w.t, .bias = none()};
  if (with_bias) args.bias = b.t;
  OK(api->linear(&args));
  double *wanted = numbers(y.count);
  for (int64_t r = 0; r < 2 * rows; r++)
    for (int64_t o = 0; o < out; o++) {
      double sum = with_bias ? b.values[o] : 0;
      for (int64_t i = 0; i < in; i++) sum += x.values[r * in + i] * w.values[o * in + i];
      wanted[r * out + o] = sum;
    }
  same("linear", &y, wanted, 4 * budget());
  free(wanted);
  drop(&x), drop(&w), drop(&b), drop(&y);
}

static void norm_of(const double *x, const double *w, const double *b, int64_t rows, int64_t width,
                    int centred, double eps, double *out) {
  for (int64_t r = 0; r < rows; r++) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < width && centred; i++) mean += x[r * width + i] / (double)width;
    for (int64_t i = 0; i < width; i++) squares += pow(x[r * width + i] - mean, 2) / (double)width;
    for (int64_t i = 0; i < width; i++)
      out[r * width + i] =
          (x[r * width + i] - mean) / sqrt(squares + eps) * w[i] + (b ? b[i] : 0);
  }
}

static void test_norms(int64_t rows, int64_t width) {
  array x = floats(SHAPE(rows, width)), w = floats(SHAPE(width)), b = floats(SHAPE(width));
  array res = floats(SHAPE(rows, width)), sum = floats(SHAPE(rows, width));
  array y = floats(SHAPE(rows, width));
  double *wanted = numbers(y.count), *added = numbers(y.count);
  va_rms_norm_args rms = {.size = sizeof rms, .out = y.t, .x = x.t, .weight = w.t, .eps = 1e-5};
  OK(api->rms_norm(&rms));
  norm_of(x.values, w.values, NULL, rows, width, 0, 1e-5, wanted);
  same("rms_norm", &y, wanted, 2 * budget());
  va_layer_norm_args layer = {.size = sizeof layer, .out = y.t, .x = x.t, .weight = w.t,
                              .bias = none(), .eps = 1e-5};
  for (int with_bias = 0; with_bias < 2; with_bias++) {
    if (with_bias) layer.bias = b.t;
    OK(api->layer_norm(&layer));
    norm_of(x.values, w.values, with_bias ? b.values : NULL, rows, width, 1, 1e-5, wanted);
    same("layer_norm", &y, wanted, 8 * budget());
  }
  va_fused_add_rms_norm_args fused = {.size = sizeof fused, .out = y.t, .sum = sum.t, .x = x.t,
                                      .residual = res.t, .weight = w.t, .eps = 1e-5};
  OK(api->fused_add_rms_norm(&fused));
  for (int64_t i = 0; i < x.count; i++) added[i] = rounded(x.values[i] + res.values[i]);
  same("the sum", &sum, added, budget());
  norm_of(added, w.values, NULL, rows, width, 0, 1e-5, wanted);
  same("fused_add_rms_norm", &y, wanted, 2 * budget());
  free(wanted), free(added);
  drop(&x), drop(&w), drop(&b), drop(&res), drop(&sum), drop(&y);
}

static double silu(double x) { return x / (1 + exp(-x)); }
static double gelu(double x) { return x * 0.5 * erfc(-x * sqrt(0.5)); }
static double gelu_tanh(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void test_activations(int64_t rows, int64_t width) {
  array x = floats(SHAPE(rows, 2 * width)), y = floats(SHAPE(rows, width));
  array plain = floats(SHAPE(rows, 2 * width));
  double *wanted = numbers(plain.count);
  for (int kind = 0; kind < 3; kind++) {
    double (*f)(double) = kind == 0 ? silu : kind == 1 ? gelu : gelu_tanh;
    va_gated_args gated = {.size = sizeof gated, .tanh = kind == 2, .out = y.t, .x = x.t};
    OK(kind ? api->gelu_and_mul(&gated) : api->silu_and_mul(&gated));
    for (int64_t i = 0; i < y.count; i++) {
      const double *row = x.values + i / width * 2 * width + i % width;
      wanted[i] = f(row[0]) * row[width];
    }
    same("a gated activation", &y, wanted, 2 * budget());
    if (!kind) continue;
    va_gelu_args one = {.size = sizeof one, .tanh = kind == 2, .out = plain.t, .x = x.t};
    OK(api->gelu(&one));
    for (int64_t i = 0; i < x.count; i++) wanted[i] = f(x.values[i]);
    same("gelu", &plain, wanted, 2 * budget());
  }
  free(wanted);
  drop(&x), drop(&y), drop(&plain);
}

static void test_embedding(va_dtype index) {
  array w = floats(SHAPE(11, 7)), y = floats(SHAPE(2, 3, 7));
  array ids = make(0, index, how, 0, 11, &state, SHAPE(2, 3));
  va_embedding_args args = {.size = sizeof args, .out = y.t, .ids = ids.t, .weight = w.t};
  OK(api->embedding(&args));
  double *wanted = numbers(y.count);
  for (int64_t i = 0; i < y.count; i++)
    wanted[i] = w.values[(int64_t)ids.values[i / 7] * 7 + i % 7];
  same("embedding", &y, wanted, 0);
  free(wanted);
  drop(&w), drop(&y), drop(&ids);
}

static void turn(const double *from, const double *table, const double *positions, int64_t tokens,
                 int64_t heads, int64_t width, int64_t rotary, int interleaved, double *to) {
  memcpy(to, from, (size_t)(tokens * heads * width) * sizeof *to);
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < rotary / 2; i++) {
        const double *row = table + (int64_t)positions[t] * rotary;
        double c = row[i], s = row[i + rotary / 2], *head = to + (t * heads + h) * width;
        int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + rotary / 2;
        double a = head[first], b = head[second];
        head[first] = a * c - b * s;
        head[second] = b * c + a * s;
      }
}

static void test_rotary(int interleaved, int64_t rotary, va_dtype table_dtype) {
  array q = floats(SHAPE(5, 6, 10)), k = floats(SHAPE(5, 2, 10));
  array table = make(0, table_dtype, how, -1, 1, &state, SHAPE(9, rotary));
  array positions = make(0, VA_INT64, how, 0, 9, &state, SHAPE(5));
  va_rotary_embedding_args args = {.size = sizeof args, .interleaved = interleaved,
                                   .positions = positions.t, .query = q.t, .key = k.t,
                                   .cos_sin_cache = table.t};
  OK(api->rotary_embedding(&args));
  double *wanted = numbers(q.count);
  turn(q.values, table.values, positions.values, 5, 6, 10, rotary, interleaved, wanted);
  same("a rotated query", &q, wanted, 2 * budget());
  turn(k.values, table.values, positions.values, 5, 2, 10, rotary, interleaved, wanted);
  same("a rotated key", &k, wanted, 2 * budget());
  free(wanted);
  drop(&q), drop(&k), drop(&table), drop(&positions);
}

static void test_cache(va_dtype index) {
  enum { BLOCKS = 3, BLOCK = 24, HEADS = 2, WIDTH = 5, TOKENS = 7 };
  array k = floats(SHAPE(TOKENS, HEADS, WIDTH)), v = floats(SHAPE(TOKENS, HEADS, WIDTH));
  array kc = floats(SHAPE(BLOCKS, BLOCK, HEADS, WIDTH));
  array vc = floats(SHAPE(BLOCKS, BLOCK, HEADS, WIDTH));
  array slots = make(0, index, how, 0, 1, &state, SHAPE(TOKENS));
  static const double chosen[TOKENS] = {0, 71, -1, 24, 47, 23, 50};
  memcpy(slots.values, chosen, sizeof chosen);
  upload(&slots);
  va_reshape_and_cache_args args = {.size = sizeof args, .key = k.t, .value = v.t,
                                    .key_cache = kc.t, .value_cache = vc.t,
                                    .slot_mapping = slots.t};
  OK(api->reshape_and_cache(&args));
  for (int t = 0; t < TOKENS; t++)
    for (int i = 0; i < HEADS * WIDTH && chosen[t] >= 0; i++) {
      kc.values[(int64_t)chosen[t] * HEADS * WIDTH + i] = k.values[t * HEADS * WIDTH + i];
      vc.values[(int64_t)chosen[t] * HEADS * WIDTH + i] = v.values[t * HEADS * WIDTH + i];
    }
  same("the key cache", &kc, kc.values, 0);
  same("the value cache", &vc, vc.values, 0);
  drop(&k), drop(&v), drop(&kc), drop(&vc), drop(&slots);
}

/* Of one query: its scores over keys first..last, whose values come from at(). */
typedef struct {
  const double *keys, *values;
  int64_t kv_heads, width, start;
  const double *table; /* or NULL: keys follow each other from `start` */
  int64_t block;
} source;

static int64_t row_of(const source *s, int64_t position, int64_t head) {
  int64_t token = s->table ? (int64_t)s->table[position / s->block] * s->block + position % s->block
                           : s->start + position;
  return (token * s->kv_heads + head) * s->width;
}

static void attend(const source *s, const double *q, int64_t head, int64_t first, int64_t last,
                   double scale, double cap, double *out) {
  double top = -INFINITY, total = 0, scores[256];
  for (int64_t p = first; p <= last; p++) {
    double score = 0;
    for (int64_t i = 0; i < s->width; i++) score += q[i] * s->keys[row_of(s, p, head) + i];
    score *= scale;
    scores[p] = cap > 0 ? cap * tanh(score / cap) : score;
    if (scores[p] > top) top = scores[p];
  }
  for (int64_t i = 0; i < s->width; i++) out[i] = 0;
  for (int64_t p = first; p <= last; p++) total += exp(scores[p] - top);
  for (int64_t p = first; p <= last; p++)
    for (int64_t i = 0; i < s->width; i++)
      out[i] += exp(scores[p] - top) / total * s->values[row_of(s, p, head) + i];
}

static void test_paged(int64_t heads, int64_t kv_heads, int64_t width, int32_t window, double cap) {
  enum { N = 4, COLUMNS = 3, BLOCKS = 13, BLOCK = 24, TOKENS = 10 };
  static const double starts[N + 1] = {0, 1, 6, 6, 9}, lengths[N] = {25, 5, 0, 72};
  static const double blocks[N * COLUMNS] = {3, 12, 0, 7, 0, 0, 0, 0, 0, 1, 9, 5};
  array q = floats(SHAPE(TOKENS, heads, width)), y = floats(SHAPE(TOKENS, heads, width));
  array kc = floats(SHAPE(BLOCKS, BLOCK, kv_heads, width));
  array vc = floats(SHAPE(BLOCKS, BLOCK, kv_heads, width));
  array table = make(0, VA_INT32, how, 0, 1, &state, SHAPE(N, COLUMNS));
  array seq = make(0, VA_INT32, how, 0, 1, &state, SHAPE(N));
  array loc = make(0, VA_INT32, how, 0, 1, &state, SHAPE(N + 1));
  memcpy(table.values, blocks, sizeof blocks);
  memcpy(seq.values, lengths, sizeof lengths);
  memcpy(loc.values, starts, sizeof starts);
  upload(&table), upload(&seq), upload(&loc);
  double scale = 1 / sqrt((double)width), *wanted = numbers(q.count);
  va_paged_attention_args args = {.size = sizeof args, .window = window, .out = y.t, .query = q.t,
                                  .key_cache = kc.t, .value_cache = vc.t, .block_table = table.t,
                                  .seq_lens = seq.t, .query_start_loc = loc.t, .scale = scale,
                                  .soft_cap = cap};
  OK(api->paged_attention(&args));
  for (int64_t n = 0; n < N; n++)
    for (int64_t t = (int64_t)starts[n]; t < (int64_t)starts[n + 1]; t++)
      for (int64_t h = 0; h < heads; h++) {
        source s = {kc.values, vc.values, kv_heads, width, 0, blocks + n * COLUMNS, BLOCK};
        int64_t last = (int64_t)(lengths[n] - starts[n + 1]) + t;
        int64_t first = window && last - window + 1 > 0 ? last - window + 1 : 0;
        attend(&s, q.values + (t * heads + h) * width, h / (heads / kv_heads), first, last, scale,
               cap, wanted + (t * heads + h) * width);
      }
  same("paged_attention", &y, wanted, 8 * budget()); /* token 9 is padding: 0 */
  seq.values[3] = 73; /* one token more than its blocks hold */
  upload(&seq);
  OK(api->paged_attention(&args));
  REFUSED(VA_ERROR_LAUNCH, api->stream_synchronize(0, 0));
  free(wanted);
  drop(&q), drop(&y), drop(&kc), drop(&vc), drop(&table), drop(&seq), drop(&loc);
}

static void test_attention(int64_t heads, int64_t kv_heads, int causal, int32_t window,
                           double cap) {
  enum { N = 3, TOKENS = 13, WIDTH = 7 };
  static const double starts[N + 1] = {0, 1, 4, 13};
  array q = floats(SHAPE(TOKENS, heads, WIDTH)), y = floats(SHAPE(TOKENS, heads, WIDTH));
  array k = floats(SHAPE(TOKENS, kv_heads, WIDTH)), v = floats(SHAPE(TOKENS, kv_heads, WIDTH));
  array loc = make(0, VA_INT32, how, 0, 1, &state, SHAPE(N + 1));
  memcpy(loc.values, starts, sizeof starts);
  upload(&loc);
  double *wanted = numbers(q.count);
  va_attention_args args = {.size = sizeof args, .window = window, .causal = causal, .out = y.t,
                            .query = q.t, .key = k.t, .value = v.t, .query_start_loc = loc.t,
                            .scale = 0.4, .soft_cap = cap};
  OK(api->attention(&args));
  for (int64_t n = 0; n < N; n++)
    for (int64_t t = (int64_t)starts[n]; t < (int64_t)starts[n + 1]; t++)
      for (int64_t h = 0; h < heads; h++) {
        source s = {k.values, v.values, kv_heads, WIDTH, (int64_t)starts[n], NULL, 0};
        int64_t here = t - s.start, last = (int64_t)(starts[n + 1] - starts[n]) - 1, first = 0;
        if (causal) last = here;
        if (window && here - window + 1 > 0) first = here - window + 1;
        if (window && here + window - 1 < last) last = here + window - 1;
        attend(&s, q.values + (t * heads + h) * WIDTH, h / (heads / kv_heads), first, last, 0.4,
               cap, wanted + (t * heads + h) * WIDTH);
      }
  same("attention", &y, wanted, 8 * budget());
  free(wanted);
  drop(&q), drop(&y), drop(&k), drop(&v), drop(&loc);
}

static void refusals(void) {
  dtype = VA_FLOAT32, how = PLAIN;
  array x = floats(SHAPE(3, 8)), w = floats(SHAPE(8)), q = floats(SHAPE(2, 1, 257));
  array k = floats(SHAPE(2, 1, 257)), c = floats(SHAPE(2, 16, 1, 4)), t = floats(SHAPE(1, 1, 4));
  array loc = make(0, VA_INT32, PLAIN, 0, 1, &state, SHAPE(2));
  array slots = make(0, VA_INT64, PLAIN, 0, 1, &state, SHAPE(1));
  array far = make(1, VA_FLOAT32, PLAIN, 0, 1, &state, SHAPE(8));
  va_rms_norm_args rms = {.size = sizeof rms, .out = x.t, .x = x.t, .weight = w.t, .eps = 1e-5};
  rms.weight.device = 1;
  REFUSED(VA_ERROR_INVALID, api->rms_norm(&rms)); /* says device 1 */
  rms.weight = far.t;
  rms.weight.device = 0;
  REFUSED(VA_ERROR_NOT_DEVICE, api->rms_norm(&rms)); /* is on device 1 */
  rms.weight = w.t;
  rms.x.dtype = VA_BFLOAT16;
  REFUSED(VA_ERROR_UNSUPPORTED, api->rms_norm(&rms));
  rms.x = x.t;
  rms.size = 16;
  REFUSED(VA_ERROR_INVALID, api->rms_norm(&rms));
  REFUSED(VA_ERROR_INVALID, api->rms_norm(NULL));
  rms.size = sizeof rms;
  rms.weight.shape[0] = 9;
  REFUSED(VA_ERROR_NOT_DEVICE, api->rms_norm(&rms)); /* beyond its memory */
  rms.weight = w.t;
  rms.weight.data = (char *)rms.weight.data + 1;
  rms.weight.shape[0] = 7;
  REFUSED(VA_ERROR_INVALID, api->rms_norm(&rms)); /* between two elements */
  rms.weight = w.t;
  rms.weight.shape[0] = 7;
  REFUSED(VA_ERROR_INVALID, api->rms_norm(&rms));
  va_attention_args wide = {.size = sizeof wide, .out = q.t, .query = q.t, .key = k.t, .value = k.t,
                            .query_start_loc = loc.t};
  REFUSED(VA_ERROR_UNSUPPORTED, api->attention(&wide));
  va_reshape_and_cache_args cache = {.size = sizeof cache, .key = t.t, .value = t.t,
                                     .key_cache = c.t, .value_cache = c.t, .slot_mapping = slots.t};
  REFUSED(VA_ERROR_UNSUPPORTED, api->reshape_and_cache(&cache)); /* blocks of 16 */
  drop(&x), drop(&w), drop(&q), drop(&k), drop(&c), drop(&t), drop(&loc), drop(&slots), drop(&far);
}

int main(void) {
  begin();
  static const va_dtype dtypes[] = {VA_FLOAT32, VA_FLOAT16};
  for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
    for (int l = 0; l < LAYOUTS; l++) {
      dtype = dtypes[d];
      how = (layout)l;
      test_linear(3, 50, 9, 1), test_linear(1, 96, 5, 0), test_linear(1100, 3, 2, 1);
      test_linear(2, 0, 3, 1), test_linear(0, 4, 3, 0);
      test_norms(4, 64), test_norms(1, 65), test_norms(2, 1), test_norms(0, 8);
      test_activations(3, 48), test_activations(1, 33), test_activations(0, 4);
      test_embedding(VA_INT32), test_embedding(VA_INT64);
      for (int interleaved = 0; interleaved < 2; interleaved++)
        test_rotary(interleaved, 10, dtype), test_rotary(interleaved, 4, VA_FLOAT32);
      test_cache(VA_INT32), test_cache(VA_INT64);
      test_paged(2, 2, 5, 0, 0), test_paged(6, 2, 16, 0, 30), test_paged(4, 1, 33, 20, 0);
      test_attention(2, 2, 0, 0, 0), test_attention(6, 2, 1, 0, 30), test_attention(4, 1, 0, 3, 0);
      test_attention(4, 4, 1, 3, 0);
    }
  refusals();
  puts("ok");
  return 0;
}
