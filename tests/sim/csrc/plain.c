/* Plain tensor work against plain C: elementwise, reductions, rows by number, matmul, fill. */
#include "harness.h"

static uint64_t state = 77;
static layout how;

static const va_dtype kinds[] = {VA_FLOAT32, VA_FLOAT16, VA_INT64, VA_INT32, VA_UINT8};
#define KINDS (sizeof kinds / sizeof *kinds)

static array some(va_dtype dtype, double low, double high) {
  return make(0, dtype, how, low, high, &state, SHAPE(3, 4, 5));
}

static double budget(va_dtype dtype) {
  return dtype == VA_FLOAT16 ? 2e-3 : dtype == VA_FLOAT32 ? 2e-6 : 0;
}

static double one(va_unary kind, double x) {
  switch (kind) {
    case VA_NEG: return -x;
    case VA_ABS: return fabs(x);
    case VA_EXP: return exp(x);
    case VA_LOG: return log(x);
    case VA_SQRT: return sqrt(x);
    case VA_RSQRT: return 1 / sqrt(x);
    case VA_SIN: return sin(x);
    case VA_COS: return cos(x);
    case VA_TANH: return tanh(x);
    case VA_SIGMOID: return 1 / (1 + exp(-x));
    case VA_SILU: return x / (1 + exp(-x));
    case VA_RELU: return x > 0 ? x : 0;
    case VA_NOT: return x == 0;
    default: return x;
  }
}

static void test_unary(void) {
  for (size_t k = 0; k < KINDS; k++)
    for (va_unary kind = VA_COPY; kind <= VA_NOT; kind++) {
      va_dtype dtype = kinds[k];
      int positive = kind == VA_LOG || kind == VA_SQRT || kind == VA_RSQRT;
      array x = some(dtype, dtype == VA_UINT8 ? 0 : positive ? 0.1 : -3, 3);
      array y = some(kind == VA_NOT ? VA_BOOL : dtype, 0, 1);
      va_unary_args args = {.size = sizeof args, .kind = kind, .out = y.t, .x = x.t};
      if (kind >= VA_EXP && kind <= VA_SILU && !is_floating(dtype)) {
        REFUSED(VA_ERROR_UNSUPPORTED, api->unary(&args));
      } else {
        OK(api->unary(&args));
        double wanted[60];
        for (int i = 0; i < 60; i++) {
          wanted[i] = one(kind, x.values[i]);
          if (dtype == VA_UINT8 && kind == VA_NEG) wanted[i] = fmod(256 - x.values[i], 256);
        }
        same("unary", &y, wanted, budget(dtype));
      }
      drop(&x), drop(&y);
    }
}

static void test_copies(void) { /* between dtypes: as C converts */
  for (size_t from = 0; from < KINDS; from++)
    for (size_t to = 0; to < KINDS; to++) {
      array x = some(kinds[from], 0, 9), y = some(kinds[to], 0, 1);
      va_unary_args args = {.size = sizeof args, .kind = VA_COPY, .out = y.t, .x = x.t};
      OK(api->unary(&args));
      double wanted[60];
      for (int i = 0; i < 60; i++) {
        unsigned char stored[8]; /* rounded as the compiler does */
        write_value(stored, kinds[to], x.values[i]);
        wanted[i] = read_value(stored, kinds[to]);
      }
      same("a copy", &y, wanted, 0);
      drop(&x), drop(&y);
    }
}

/* Every half to float and back; and floats about every border of halves, to the nearest even. */
static void test_halves(void) {
  array half = make(0, VA_FLOAT16, PLAIN, 0, 1, &state, SHAPE(32768));
  array single = make(0, VA_FLOAT32, PLAIN, 0, 1, &state, SHAPE(32768));
  array back = make(0, VA_FLOAT16, PLAIN, 0, 1, &state, SHAPE(32768));
  double wanted[32768];
  for (int sign = 0; sign < 2; sign++) {
    for (int i = 0; i < 32768; i++) {
      uint16_t bits = (uint16_t)(i | sign << 15);
      memcpy(half.bytes + 2 * i, &bits, 2);
      wanted[i] = half.values[i] = read_value(half.bytes + 2 * i, VA_FLOAT16);
    }
    upload(&half);
    va_unary_args copy = {.size = sizeof copy, .kind = VA_COPY, .out = single.t, .x = half.t};
    OK(api->unary(&copy));
    same("halves as floats", &single, wanted, 0);
    copy.x = single.t;
    copy.out = back.t;
    OK(api->unary(&copy));
    same("halves and back", &back, wanted, 0);
    for (int shift = -1; shift <= 1; shift++) { /* at the middle of two halves, and beside it */
      for (int i = 0; i < 32768; i++) {
        uint16_t next = (uint16_t)((i + 1) | sign << 15);
        unsigned char stored[2];
        memcpy(stored, &next, 2);
        double upper = i < 0x7bff ? read_value(stored, VA_FLOAT16) : sign ? -65536 : 65536;
        float middle = (float)((wanted[i] + upper) / 2);
        single.values[i] = i > 0x7bff ? 1e6 : (double)nextafterf(middle, (float)shift * INFINITY);
        if (!shift && i <= 0x7bff) single.values[i] = (double)middle;
      }
      upload(&single);
      double rounded[32768];
      for (int i = 0; i < 32768; i++) {
        unsigned char stored[2];
        write_value(stored, VA_FLOAT16, single.values[i]);
        rounded[i] = read_value(stored, VA_FLOAT16);
      }
      OK(api->unary(&copy));
      same("floats as halves", &back, rounded, 0);
    }
  }
  drop(&half), drop(&single), drop(&back);
}

static double two(va_binary kind, double x, double y, int whole) {
  int64_t a = whole ? (int64_t)x : 0, b = whole ? (int64_t)y : 0;
  switch (kind) {
    case VA_ADD: return x + 2 * y;
    case VA_SUB: return x - 2 * y;
    case VA_MUL: return x * y;
    case VA_DIV: return x / y;
    case VA_POW: return pow(x, y);
    case VA_MAXIMUM: return fmax(x, y);
    case VA_MINIMUM: return fmin(x, y);
    case VA_EQ: return x == y;
    case VA_NE: return x != y;
    case VA_LT: return x < y;
    case VA_LE: return x <= y;
    case VA_GT: return x > y;
    case VA_GE: return x >= y;
    case VA_AND: return (double)(a & b);
    case VA_OR: return (double)(a | b);
    case VA_XOR: return (double)(a ^ b);
    case VA_FLOOR_DIV: return floor(x / y);
    default: return x - floor(x / y) * y;
  }
}

static void test_binary(void) {
  static const va_dtype dtypes[] = {VA_FLOAT32, VA_FLOAT16, VA_INT64, VA_INT32};
  for (int k = 0; k < 4; k++)
    for (va_binary kind = VA_ADD; kind <= VA_REMAINDER; kind++)
      for (int scalar = 0; scalar < 2; scalar++) {
        va_dtype dtype = dtypes[k];
        int whole = !is_floating(dtype), compares = kind >= VA_EQ && kind <= VA_GE;
        int divides = kind == VA_DIV || kind >= VA_FLOOR_DIV, wide = kind == VA_DIV && whole;
        array x = some(dtype, kind == VA_POW ? 0.1 : -9, 9);
        array other = some(dtype, divides ? 1 : -3, 3);
        array y = some(compares ? VA_BOOL : wide ? VA_FLOAT32 : dtype, 0, 1);
        va_binary_args args = {.size = sizeof args, .kind = kind, .out = y.t, .x = x.t,
                               .other = scalar ? none() : other.t, .alpha = 2, .scalar = 2.5,
                               .integer_scalar = 3};
        double wanted[60];
        int refused = whole ? kind == VA_POW : kind >= VA_AND && kind <= VA_XOR;
        if (refused) {
          REFUSED(VA_ERROR_UNSUPPORTED, api->binary(&args));
        } else {
          if (wide && scalar) args.scalar = 3;
          OK(api->binary(&args));
          for (int i = 0; i < 60; i++)
            wanted[i] = two(kind, x.values[i], scalar ? (whole ? 3 : 2.5) : other.values[i], whole);
          same("binary", &y, wanted, wide ? 2e-6 : 4 * budget(dtype));
        }
        drop(&x), drop(&other), drop(&y);
      }
  array x = some(VA_INT64, 1, 9), zero = some(VA_INT64, 0, 1), y = some(VA_INT64, 0, 1);
  va_binary_args args = {.size = sizeof args, .kind = VA_FLOOR_DIV, .out = y.t, .x = x.t,
                         .other = zero.t};
  OK(api->binary(&args));
  REFUSED(VA_ERROR_LAUNCH, api->stream_synchronize(0, 0));
  drop(&x), drop(&zero), drop(&y);
}

static void test_broadcast(void) {
  array x = some(VA_FLOAT32, -1, 1), y = some(VA_FLOAT32, -1, 1);
  array row = make(0, VA_FLOAT32, PLAIN, -1, 1, &state, SHAPE(5));
  va_tensor wide = x.t;
  wide.data = row.t.data;
  wide.strides[0] = wide.strides[1] = 0;
  wide.strides[2] = 1;
  va_binary_args args = {.size = sizeof args, .kind = VA_MUL, .out = y.t, .x = x.t, .other = wide};
  OK(api->binary(&args));
  double wanted[60];
  for (int i = 0; i < 60; i++) wanted[i] = x.values[i] * row.values[i % 5];
  same("a product with a row", &y, wanted, 2e-6);
  array condition = some(VA_BOOL, 0, 2);
  va_where_args where = {.size = sizeof where, .out = y.t, .condition = condition.t, .x = x.t,
                         .other = wide};
  OK(api->where(&where));
  for (int i = 0; i < 60; i++) wanted[i] = condition.values[i] ? x.values[i] : row.values[i % 5];
  same("where", &y, wanted, 0);
  drop(&x), drop(&y), drop(&row), drop(&condition);
}

static void reduced(va_reduce kind, const double *x, double *out) {
  double sum = 0, total = 0, least = x[0], most = x[0];
  int low = 0, high = 0, all = 1, any = 0;
  for (int i = 0; i < 5; i++) {
    sum += x[i];
    if (x[i] > most) most = x[i], high = i;
    if (x[i] < least) least = x[i], low = i;
    all = all && x[i] != 0;
    any = any || x[i] != 0;
  }
  for (int i = 0; i < 5; i++) total += exp(x[i] - most);
  double running = 0;
  for (int i = 0; i < 5; i++) {
    running += x[i];
    if (kind == VA_CUMSUM) out[i] = running;
    if (kind == VA_SOFTMAX) out[i] = exp(x[i] - most) / total;
  }
  const double single[] = {sum, sum / 5, most, least, high, low, all, any};
  if (kind < VA_CUMSUM) out[0] = single[kind];
}

static void test_reduce(void) {
  static const va_dtype dtypes[] = {VA_FLOAT32, VA_FLOAT16, VA_INT64, VA_INT32, VA_BOOL};
  for (int k = 0; k < 5; k++)
    for (va_reduce kind = VA_SUM; kind <= VA_SOFTMAX; kind++) {
      int judged = kind == VA_ALL || kind == VA_ANY, counts = kind == VA_ARGMAX || kind == VA_ARGMIN;
      int whole = kind >= VA_CUMSUM, integral = !is_floating(dtypes[k]);
      va_dtype out = judged ? VA_BOOL : counts ? VA_INT64 : dtypes[k];
      if (dtypes[k] == VA_BOOL && !judged) continue;
      array x = some(dtypes[k], dtypes[k] == VA_BOOL ? 0 : -2, dtypes[k] == VA_BOOL ? 2 : 3);
      array y = whole ? some(out, 0, 1) : make(0, out, how, 0, 1, &state, SHAPE(3, 4));
      va_reduce_args args = {.size = sizeof args, .kind = kind, .out = y.t, .x = x.t};
      for (int i = 0; i < 60 && counts; i++) x.values[i] = floor(x.values[i]); /* equal ones */
      if (counts) upload(&x);
      if (integral && (kind == VA_MEAN || kind == VA_SOFTMAX)) {
        REFUSED(VA_ERROR_UNSUPPORTED, api->reduce(&args));
      } else {
        double wanted[60];
        OK(api->reduce(&args));
        for (int r = 0; r < 12; r++) reduced(kind, x.values + r * 5, wanted + r * (whole ? 5 : 1));
        same("reduce", &y, wanted, 4 * budget(dtypes[k]));
      }
      drop(&x), drop(&y);
    }
}

static void test_rows(void) {
  array x = make(0, VA_FLOAT16, how, -1, 1, &state, SHAPE(6, 3, 2));
  array ids = make(0, VA_INT64, how, -6, 6, &state, SHAPE(4));
  array y = make(0, VA_FLOAT16, how, -1, 1, &state, SHAPE(4, 3, 2));
  static const double rows[] = {5, -6, 3, -2}; /* 5 0 3 4 */
  memcpy(ids.values, rows, sizeof rows);
  upload(&ids);
  va_index_args args = {.size = sizeof args, .out = y.t, .x = x.t, .index = ids.t};
  OK(api->index(&args));
  double wanted[24];
  for (int i = 0; i < 24; i++) {
    int row = (int)rows[i / 6];
    wanted[i] = x.values[(row < 0 ? row + 6 : row) * 6 + i % 6];
  }
  same("index", &y, wanted, 0);
  args.scatter = 1;
  upload(&y);
  OK(api->index(&args));
  for (int i = 0; i < 24; i++) {
    int row = (int)rows[i / 6];
    x.values[(row < 0 ? row + 6 : row) * 6 + i % 6] = y.values[i];
  }
  same("scatter", &x, x.values, 0);
  array columns = make(0, VA_INT32, how, 0, 2, &state, SHAPE(6, 3, 5));
  array z = make(0, VA_FLOAT16, how, -1, 1, &state, SHAPE(6, 3, 5));
  va_gather_args gather = {.size = sizeof gather, .out = z.t, .x = x.t, .index = columns.t};
  OK(api->gather(&gather));
  double chosen[90];
  for (int i = 0; i < 90; i++) chosen[i] = x.values[i / 5 * 2 + (int)columns.values[i]];
  same("gather", &z, chosen, 0);
  drop(&x), drop(&ids), drop(&y), drop(&columns), drop(&z);
}

static void test_matmul(va_dtype dtype, int64_t inner) {
  array x = make(0, dtype, how, -1, 1, &state, SHAPE(2, 3, inner));
  array other = make(0, dtype, how, -1, 1, &state, SHAPE(2, inner, 4));
  array y = make(0, dtype, how, -1, 1, &state, SHAPE(2, 3, 4));
  va_matmul_args args = {.size = sizeof args, .out = y.t, .x = x.t, .other = other.t};
  OK(api->matmul(&args));
  double wanted[24];
  for (int64_t b = 0; b < 2; b++)
    for (int64_t m = 0; m < 3; m++)
      for (int64_t n = 0; n < 4; n++) {
        double sum = 0;
        for (int64_t i = 0; i < inner; i++)
          sum += x.values[(b * 3 + m) * inner + i] * other.values[(b * inner + i) * 4 + n];
        wanted[(b * 3 + m) * 4 + n] = sum;
      }
  same("matmul", &y, wanted, 4 * budget(dtype));
  drop(&x), drop(&other), drop(&y);
}

static void test_fill(void) {
  for (size_t k = 0; k < KINDS; k++) {
    array y = some(kinds[k], 0, 1), line = make(0, kinds[k], how, 0, 1, &state, SHAPE(9));
    va_fill_args args = {.size = sizeof args, .out = y.t, .value = 7, .integer_value = 7};
    double wanted[60];
    OK(api->fill(&args));
    for (int i = 0; i < 60; i++) wanted[i] = 7;
    same("fill", &y, wanted, 0);
    va_fill_args range = {.size = sizeof range, .arange = 1, .out = line.t, .value = 3, .step = 2,
                          .integer_value = 3, .integer_step = 2};
    OK(api->fill(&range));
    for (int i = 0; i < 9; i++) wanted[i] = 3 + 2 * i;
    same("arange", &line, wanted, 0);
    drop(&y), drop(&line);
  }
}

int main(void) {
  begin();
  for (int l = 0; l < LAYOUTS; l++) {
    how = (layout)l;
    test_unary();
    test_copies();
    test_binary();
    test_broadcast();
    test_reduce();
    test_rows();
    test_matmul(VA_FLOAT32, 50);
    test_matmul(VA_FLOAT16, 7);
    test_matmul(VA_FLOAT32, 0);
    test_fill();
  }
  test_halves();
  puts("ok");
  return 0;
}
