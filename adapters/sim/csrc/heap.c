/* A device's memory. Its addresses lie in pages that the host may not touch; the chip reaches the
 * same bytes through a second mapping. So host code that follows a device pointer faults at once.
 *
 * A released block is handed out again only when the work that was queued before its release is
 * done: the worker may still read it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

enum { FREE, USED, LEAVING };

typedef struct block {
  uint64_t offset, size;
  uint64_t ticket; /* LEAVING: the last work, of any device, that may still use it */
  uint64_t asked;  /* USED: the bytes that were asked for */
  int state;
  struct block *next;
} block;

static struct {
  char *outer, *inner; /* the device's addresses, and the chip's view of them */
  block *blocks;
  uint64_t used, peak, live, link;
} heaps[SIM_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t opener;

int32_t sim_in_bad_fork(void) {
  pid_t first = __atomic_load_n(&opener, __ATOMIC_ACQUIRE);
  return first && first != getpid();
}

static va_status map(int32_t device) {
  int file = memfd_create("vllm_adapter_sim", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)SIM_HEAP)) {
    if (file >= 0) close(file);
    return sim_fail(VA_ERROR_INTERNAL, "the system gives no memory file for device %d", device);
  }
  uint64_t unit = 4096 * 3; /* of which both the page size and 384 are divisors */
  char *inner = mmap(NULL, SIM_HEAP, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  char *outer = mmap(NULL, SIM_HEAP + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0);
  close(file);
  block *whole = calloc(1, sizeof *whole);
  if (inner == MAP_FAILED || outer == MAP_FAILED || !whole) {
    if (inner != MAP_FAILED) munmap(inner, SIM_HEAP);
    if (outer != MAP_FAILED) munmap(outer, SIM_HEAP + unit);
    free(whole);
    return sim_fail(VA_ERROR_INTERNAL, "the system gives no addresses for device %d", device);
  }
  whole->size = SIM_HEAP;
  heaps[device].blocks = whole;
  heaps[device].inner = inner;
  heaps[device].outer = outer + (unit - (uintptr_t)outer % unit) % unit;
  return VA_OK;
}

va_status sim_open(int32_t device) {
  if (device < 0 || device >= SIM_DEVICES)
    return sim_fail(VA_ERROR_NO_DEVICE, "there is no device %d: there are %d", device, SIM_DEVICES);
  if (sim_in_bad_fork())
    return sim_fail(VA_ERROR_FORKED, "the device was opened before this process was forked");
  if (sim_is_lost(device)) return sim_fail(VA_ERROR_DEVICE_LOST, "device %d is lost", device);
  sim_prepare_queues();
  va_status status = sim_fault_plan();
  if (status) return status;
  pthread_mutex_lock(&lock);
  if (!heaps[device].outer) status = map(device);
  if (!status && !opener) __atomic_store_n(&opener, getpid(), __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  return status;
}

va_status sim_usable(int32_t device) { return sim_open(device); }

/* Blocks whose last work is done become free; neighbours that are free become one. */
static void reclaim(int32_t device) {
  uint64_t pending = sim_oldest_pending();
  for (block *b = heaps[device].blocks; b; b = b->next)
    if (b->state == LEAVING && b->ticket < pending) {
      b->state = FREE;
      /* Its pages go back to the system: a freed gigabyte is not kept. */
      uint64_t start = (b->offset + 4095) / 4096 * 4096;
      uint64_t end = (b->offset + b->size) / 4096 * 4096;
      if (end > start + (1u << 20))
        madvise(heaps[device].inner + start, end - start, MADV_REMOVE);
    }
  for (block *b = heaps[device].blocks; b;) {
    block *next = b->next;
    if (next && b->state == FREE && next->state == FREE) {
      b->size += next->size;
      b->next = next->next;
      free(next);
    } else {
      b = next;
    }
  }
}

static block *split(block *b, uint64_t size) {
  if (b->size == size) return b;
  block *rest = calloc(1, sizeof *rest);
  if (!rest) return NULL;
  rest->offset = b->offset + size;
  rest->size = b->size - size;
  rest->next = b->next;
  b->next = rest;
  b->size = size;
  return b;
}

/* First fit. The block's own offset stays a multiple of SIM_ALIGNMENT. */
static block *take(int32_t device, uint64_t size, uint64_t alignment) {
  uint64_t base = (uint64_t)(uintptr_t)heaps[device].outer;
  for (block *b = heaps[device].blocks; b; b = b->next) {
    if (b->state != FREE) continue;
    uint64_t at = b->offset;
    while ((base + at) % alignment && at - b->offset < b->size) at += SIM_ALIGNMENT;
    uint64_t skipped = at - b->offset;
    if (skipped + size > b->size || skipped + size < size) continue;
    if (skipped) {
      if (!split(b, skipped)) return NULL;
      b = b->next;
    }
    if (!split(b, size)) return NULL;
    b->state = USED;
    return b;
  }
  return NULL;
}

static void release(va_managed_tensor *self) {
  if (sim_in_bad_fork()) return; /* the parent's block; its locks may be held for ever here */
  int32_t device = self->tensor.device.id;
  uint64_t ticket = sim_ticket();
  pthread_mutex_lock(&lock);
  block *b = self->manager;
  b->state = LEAVING;
  b->ticket = ticket;
  heaps[device].used -= b->size;
  heaps[device].live--;
  pthread_mutex_unlock(&lock);
  free(self->tensor.shape);
  free(self);
}

va_status sim_allocate(int32_t device, uint64_t size, uint64_t alignment,
                       va_managed_tensor **out) {
  if (!out) return sim_fail(VA_ERROR_INVALID, "out is NULL");
  *out = NULL;
  va_status status = sim_usable(device);
  if (status) return status;
  if (!alignment) alignment = SIM_ALIGNMENT;
  if (alignment & (alignment - 1) && alignment % SIM_ALIGNMENT)
    return sim_fail(VA_ERROR_INVALID, "alignment %llu is no power of two nor a multiple of %u",
                    (unsigned long long)alignment, SIM_ALIGNMENT);
  if (alignment > 1u << 21)
    return sim_fail(VA_ERROR_INVALID, "alignment %llu is above 2 MiB",
                    (unsigned long long)alignment);
  uint64_t rounded = (size + SIM_ALIGNMENT - 1) / SIM_ALIGNMENT * SIM_ALIGNMENT;
  if (!rounded && !size) rounded = SIM_ALIGNMENT;
  va_managed_tensor *managed = calloc(1, sizeof *managed);
  int64_t *shape = calloc(1, sizeof *shape);
  block *b = NULL;
  if (managed && shape && rounded >= size && rounded <= SIM_HEAP && !sim_due(SIM_FAULT_OOM)) {
    for (int attempt = 0; attempt < 2 && !b; attempt++) {
      if (attempt) sim_wait_passed(sim_ticket());
      pthread_mutex_lock(&lock);
      reclaim(device);
      b = take(device, rounded, alignment);
      if (b) {
        b->asked = size;
        heaps[device].live++;
        heaps[device].used += b->size;
        if (heaps[device].used > heaps[device].peak) heaps[device].peak = heaps[device].used;
      }
      pthread_mutex_unlock(&lock);
    }
  }
  if (!b) {
    free(managed);
    free(shape);
    return sim_fail(VA_ERROR_OUT_OF_MEMORY, "device %d has no %llu bytes in one piece", device,
                    (unsigned long long)size);
  }
  memset(heaps[device].inner + b->offset, SIM_POISON, b->size);
  *shape = (int64_t)size;
  managed->manager = b;
  managed->deleter = release;
  managed->tensor.data = heaps[device].outer + b->offset;
  managed->tensor.device.type = 12;
  managed->tensor.device.id = device;
  managed->tensor.ndim = 1;
  managed->tensor.dtype.code = 1;
  managed->tensor.dtype.bits = 8;
  managed->tensor.dtype.lanes = 1;
  managed->tensor.shape = shape;
  *out = managed;
  return VA_OK;
}

va_status sim_memory_info(int32_t device, uint64_t *free_bytes, uint64_t *total_bytes) {
  va_status status = sim_usable(device);
  if (status) return status;
  if (!free_bytes || !total_bytes) return sim_fail(VA_ERROR_INVALID, "an output is NULL");
  pthread_mutex_lock(&lock);
  *free_bytes = SIM_HEAP - heaps[device].used;
  *total_bytes = SIM_HEAP;
  pthread_mutex_unlock(&lock);
  return VA_OK;
}

va_status sim_memory_stats(int32_t device, va_memory_stats *stats) {
  va_status status = sim_usable(device);
  if (status) return status;
  if (!stats || stats->size < sizeof *stats)
    return sim_fail(VA_ERROR_INVALID, "va_memory_stats.size is too small");
  pthread_mutex_lock(&lock);
  stats->allocated_bytes = heaps[device].used;
  stats->peak_bytes = heaps[device].peak;
  stats->live_allocations = heaps[device].live;
  stats->link_bytes = heaps[device].link;
  pthread_mutex_unlock(&lock);
  return VA_OK;
}

void sim_count_link(int32_t device, uint64_t bytes) {
  pthread_mutex_lock(&lock);
  heaps[device].link += bytes;
  pthread_mutex_unlock(&lock);
}

char *sim_chip(int32_t device, const void *address, uint64_t size) {
  if (device < 0 || device >= SIM_DEVICES) return NULL;
  char *found = NULL;
  pthread_mutex_lock(&lock);
  uint64_t at = (uint64_t)(uintptr_t)address - (uint64_t)(uintptr_t)heaps[device].outer;
  if (heaps[device].outer && at < SIM_HEAP && size <= SIM_HEAP - at)
    for (block *b = heaps[device].blocks; b && b->offset <= at; b = b->next)
      if (b->state == USED && at + size <= b->offset + b->asked)
        found = heaps[device].inner + at;
  pthread_mutex_unlock(&lock);
  return found;
}

char *sim_view(const va_tensor *tensor) {
  int64_t low = 0, high = 0;
  for (int i = 0; i < tensor->ndim; i++) {
    if (tensor->shape[i] == 0) return sim_chip(tensor->device, tensor->data, 0);
    int64_t stride = tensor->strides[i] < 0 ? -tensor->strides[i] : tensor->strides[i];
    if (stride && tensor->shape[i] - 1 > (int64_t)SIM_HEAP / stride) return NULL;
    int64_t reach = (tensor->shape[i] - 1) * tensor->strides[i];
    if (reach < 0) low += reach;
    else high += reach;
  }
  int64_t size = (int64_t)sim_size_of(tensor->dtype);
  uintptr_t start = (uintptr_t)tensor->data + (uintptr_t)(low * size);
  char *chip = sim_chip(tensor->device, (void *)start, (uint64_t)((high - low + 1) * size));
  return chip ? chip - low * size : NULL;
}
