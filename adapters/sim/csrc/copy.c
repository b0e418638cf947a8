/* Copies. Every transfer over the link (host to chip, back, and between chips) carries a checksum:
 * one that arrives corrupted is sent again, and if that fails too the stream fails; never a wrong
 * byte in silence. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

#define ATTEMPTS 2

typedef struct {
  char *to;
  const char *from;
  uint64_t size;
} transfer;

static uint64_t checksum(const char *bytes, uint64_t size) { /* FNV-1a over words, then bytes */
  uint64_t hash = 14695981039346656037u, word;
  uint64_t whole = size / 8 * 8;
  for (uint64_t i = 0; i < whole; i += 8) {
    memcpy(&word, bytes + i, 8);
    hash = (hash ^ word) * 1099511628211u;
  }
  for (uint64_t i = whole; i < size; i++) hash = (hash ^ (uint8_t)bytes[i]) * 1099511628211u;
  return hash;
}

static va_status over_link(void *arguments) {
  const transfer *t = arguments;
  if (sim_slow_milliseconds()) usleep((useconds_t)(sim_slow_milliseconds() * 1000));
  for (int attempt = 0; attempt < ATTEMPTS && t->size; attempt++) {
    uint64_t sent = checksum(t->from, t->size);
    memcpy(t->to, t->from, t->size);
    if (sim_due(SIM_FAULT_CORRUPT)) t->to[t->size / 2] ^= 0x10;
    if (checksum(t->to, t->size) == sent) return VA_OK;
  }
  if (!t->size) return VA_OK;
  return sim_fail(VA_ERROR_LAUNCH, "a copy of %llu bytes arrived corrupted %d times",
                  (unsigned long long)t->size, ATTEMPTS);
}

static va_status on_chip(void *arguments) {
  const transfer *t = arguments;
  memmove(t->to, t->from, t->size);
  return VA_OK;
}

static va_status not_here(const void *address, uint64_t size, int32_t device) {
  return sim_fail(VA_ERROR_NOT_DEVICE, "%p and %llu bytes after it are no live memory of device %d",
                  (void *)(uintptr_t)address, (unsigned long long)size, device);
}

va_status sim_copy_to_device(int32_t device, va_stream stream, void *to, const void *from,
                             uint64_t size) {
  va_status status = sim_usable(device);
  if (status) return status;
  transfer t = {sim_chip(device, to, size), from, size};
  if (!t.to) return not_here(to, size, device);
  if (!from && size) return sim_fail(VA_ERROR_INVALID, "the source is NULL");
  return sim_enqueue(device, stream, over_link, &t, sizeof t);
}

va_status sim_copy_to_host(int32_t device, va_stream stream, void *to, const void *from,
                           uint64_t size) {
  va_status status = sim_usable(device);
  if (status) return status;
  transfer t = {to, sim_chip(device, from, size), size};
  if (!t.from) return not_here(from, size, device);
  if (!to && size) return sim_fail(VA_ERROR_INVALID, "the destination is NULL");
  return sim_enqueue(device, stream, over_link, &t, sizeof t);
}

/* Ordered on to_device's stream alone: work of from_device that is still to write the source has
 * to be waited for with an event. */
va_status sim_copy_on_device(va_stream stream, int32_t to_device, void *to, int32_t from_device,
                             const void *from, uint64_t size) {
  va_status status = sim_usable(to_device);
  if (!status) status = sim_usable(from_device);
  if (status) return status;
  transfer t = {sim_chip(to_device, to, size), sim_chip(from_device, from, size), size};
  if (!t.to) return not_here(to, size, to_device);
  if (!t.from) return not_here(from, size, from_device);
  status = sim_enqueue(to_device, stream, from_device == to_device ? on_chip : over_link, &t,
                       sizeof t);
  if (!status && from_device != to_device) sim_count_link(from_device, size);
  return status;
}

static va_status not_forked(void) {
  return sim_in_bad_fork()
             ? sim_fail(VA_ERROR_FORKED, "the device was opened before this process was forked")
             : VA_OK;
}

va_status sim_allocate_pinned(uint64_t size, uint64_t alignment, void **out) {
  if (!out) return sim_fail(VA_ERROR_INVALID, "out is NULL");
  *out = NULL;
  va_status status = not_forked();
  if (status) return status;
  if (!alignment) alignment = 4096;
  if (alignment & (alignment - 1) || alignment < sizeof(void *))
    return sim_fail(VA_ERROR_INVALID, "alignment %llu is no power of two of 8 or more",
                    (unsigned long long)alignment);
  if (size > SIM_HEAP || posix_memalign(out, alignment, size ? size : 1)) {
    *out = NULL;
    return sim_fail(VA_ERROR_OUT_OF_MEMORY, "the host has no %llu bytes",
                    (unsigned long long)size);
  }
  return VA_OK;
}

va_status sim_free_pinned(void *memory) {
  va_status status = not_forked();
  if (!status) free(memory);
  return status;
}
