#include <math.h>
#include <string.h>

#include "sim.h"

size_t sim_size_of(va_dtype dtype) {
  static const unsigned char sizes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1, 1};
  return dtype >= 0 && dtype < (va_dtype)sizeof sizes ? sizes[dtype] : 0;
}

int sim_is_float(va_dtype dtype) { return dtype >= VA_FLOAT16; }

static float from_half(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u;
  uint32_t fraction = half & 0x3ffu, bits;
  float value;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | fraction << 13;
  } else if (exponent) {
    bits = sign | (exponent + 112) << 23 | fraction << 13;
  } else { /* zero or subnormal: fraction x 2^-24 */
    value = (float)fraction * 0x1p-24f;
    return sign ? -value : value;
  }
  memcpy(&value, &bits, 4);
  return value;
}

static uint16_t to_half(float value) { /* to nearest, ties to even */
  uint32_t bits;
  memcpy(&bits, &value, 4);
  uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more */
  if (magnitude < 0x38800000u) { /* below 2^-14: subnormal */
    float scaled = nearbyintf(fabsf(value) * 0x1p24f);
    return (uint16_t)(sign | (uint32_t)scaled);
  }
  uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

float sim_load(const char *at, va_dtype dtype) {
  if (dtype == VA_FLOAT32) {
    float value;
    memcpy(&value, at, 4);
    return value;
  }
  uint16_t half;
  memcpy(&half, at, 2);
  return from_half(half);
}

void sim_store(char *at, va_dtype dtype, float value) {
  if (dtype == VA_FLOAT32) {
    memcpy(at, &value, 4);
  } else {
    uint16_t half = to_half(value);
    memcpy(at, &half, 2);
  }
}

int64_t sim_load_integer(const char *at, va_dtype dtype) {
  int64_t wide;
  int32_t word;
  int16_t half;
  switch (dtype) {
    case VA_INT64: memcpy(&wide, at, 8); return wide;
    case VA_INT32: memcpy(&word, at, 4); return word;
    case VA_INT16: memcpy(&half, at, 2); return half;
    case VA_INT8: return *(const signed char *)at;
    default: return *(const unsigned char *)at;
  }
}

void sim_store_integer(char *at, va_dtype dtype, int64_t value) {
  int32_t word = (int32_t)value;
  int16_t half = (int16_t)value;
  switch (dtype) {
    case VA_INT64: memcpy(at, &value, 8); break;
    case VA_INT32: memcpy(at, &word, 4); break;
    case VA_INT16: memcpy(at, &half, 2); break;
    case VA_BOOL: *at = value != 0; break;
    default: *at = (char)value;
  }
}

double sim_load_any(const char *at, va_dtype dtype) {
  double wide;
  if (dtype == VA_FLOAT64) {
    memcpy(&wide, at, 8);
    return wide;
  }
  return sim_is_float(dtype) ? (double)sim_load(at, dtype) : (double)sim_load_integer(at, dtype);
}

int64_t sim_whole(double value) {
  return value >= -0x1p63 && value < 0x1p63 ? (int64_t)value : INT64_MIN;
}

void sim_store_any(char *at, va_dtype dtype, double value) {
  if (dtype == VA_FLOAT64) memcpy(at, &value, 8);
  else if (sim_is_float(dtype)) sim_store(at, dtype, (float)value); /* too large: infinite */
  else if (dtype == VA_BOOL) *at = value != 0;
  else sim_store_integer(at, dtype, sim_whole(value));
}
