/* A library with one fault, chosen by -DFAULT_<NAME>. Without one it is in order. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef FAULT_NO_ENTRY
#define va_get_api another_name
#endif
#include "vllm_adapter.h"

static const char *said(void) { return "the fan is off"; }
static va_status count(int32_t *n) {
#ifdef FAULT_COUNT_HANGS
  for (;;) sleep(1);
#endif
#ifdef FAULT_COUNT_CRASHES
  fprintf(stderr, "assertion failed: power\n");
  fflush(stderr);
  raise(SIGSEGV);
#endif
#ifdef FAULT_COUNT_FAILS
  return VA_ERROR_INTERNAL;
#endif
#ifdef FAULT_COUNT_NEGATIVE
  *n = -3;
  return VA_OK;
#endif
#ifdef FAULT_NO_DEVICE /* no fault */
  *n = 0;
  return VA_OK;
#endif
  *n = 1;
  return VA_OK;
}
static va_status info(int32_t device, va_device_info *i) {
#ifdef FAULT_INFO_EXITS
  exit(3);
#endif
  va_device_info made = {sizeof made, 7, 1, 1, 0, 0, 64, 1 << 20, "Faulty one", "f1"};
  (void)device;
  *i = made;
  return VA_OK;
}
static va_status ok_device(int32_t device) { (void)device; return VA_OK; }
static int32_t fork_state(void) { return 0; }
static void give_back(va_managed_tensor *self) {
  (void)self;
  fprintf(stdout, "given back\n");
  fflush(stdout);
}
static va_status allocate(int32_t device, uint64_t size, uint64_t alignment,
                          va_managed_tensor **out) {
  (void)device; (void)size; (void)alignment;
  *out = NULL;
  static int64_t shape = 8;
  static va_managed_tensor made = {.tensor = {.device = {12, 0}, .ndim = 1, .dtype = {1, 8, 1},
                                              .shape = &shape},
                                   .deleter = give_back};
#ifdef FAULT_OTHER_DEVICE
  made.tensor.device.id = 5;
  *out = &made;
#endif
#ifdef FAULT_OTHER_DTYPE
  made.tensor.dtype.bits = 16;
  *out = &made;
#endif
#ifdef FAULT_OTHER_SIZE
  shape = 7;
  *out = &made;
#endif
#ifdef FAULT_NO_SHAPE
  made.tensor.shape = NULL;
  *out = &made;
#endif
#ifdef FAULT_NO_DELETER
  made.deleter = NULL;
  *out = &made;
#endif
  (void)made;
#ifdef FAULT_STRANGE_STATUS
  return 77;
#endif
  return VA_OK;
}
static va_status failing(void) { return VA_ERROR_UNSUPPORTED; }

static va_api api;

const va_api *va_get_api(uint32_t major, uint32_t minor) {
#ifdef FAULT_ENTRY_CRASHES
  abort();
#endif
#ifdef FAULT_OTHER_MAJOR
  if (major != 2) return NULL;
#elif !defined(FAULT_LYING_MAJOR)
  if (major != VA_ABI_MAJOR) return NULL;
#endif
  (void)minor;
  /* What a test does not call needs no meaning, but must not be NULL. */
  void **functions = (void **)&api.last_error;
  size_t required = (offsetof(va_api, linear) - offsetof(va_api, last_error)) / sizeof(void *);
  for (size_t i = 0; i < required; i++) functions[i] = (void *)failing;
  api.size = sizeof api;
  api.abi_major = VA_ABI_MAJOR;
  api.abi_minor = VA_ABI_MINOR;
  api.vendor = "Faulty";
  api.version = "0";
  api.last_error = said;
  api.device_count = count;
  api.device_info = info;
  api.open = ok_device;
  api.in_bad_fork = fork_state;
  api.allocate = allocate;
  api.allocate_pinned = NULL;
  api.free_pinned = NULL;
#ifdef FAULT_LYING_MAJOR
  api.abi_major = 9;
#endif
#ifdef FAULT_SHORT_TABLE
  api.size = offsetof(va_api, fence);
#endif
#ifdef FAULT_NO_FENCE
  api.fence = NULL;
  api.event_query = NULL;
#endif
#ifdef FAULT_HALF_PINNED
  api.allocate_pinned = (va_status(*)(uint64_t, uint64_t, void **))failing;
#endif
#ifdef FAULT_OLDER_MINOR /* no fault: without the plain tensor work of today's table */
  api.size = offsetof(va_api, unary);
  api.unary = (va_status(*)(const va_unary_args *))failing; /* beyond the end: must not be read */
#endif
#ifdef FAULT_NEWER_MINOR /* no fault: a longer table than ours */
  static struct { va_api known; void (*added[4])(void); } longer;
  longer.known = api;
  longer.known.size = sizeof longer;
  longer.known.abi_minor = VA_ABI_MINOR + 1;
  return &longer.known;
#endif
  return &api;
}

#ifdef FAULT_LOAD_CRASHES
__attribute__((constructor)) static void begin(void) { raise(SIGBUS); }
#endif
#ifdef FAULT_LOAD_HANGS
__attribute__((constructor)) static void begin(void) { for (;;) sleep(1); }
#endif
#ifdef FAULT_LOAD_EXITS
__attribute__((constructor)) static void begin(void) { _exit(0); }
#endif
#ifdef FAULT_UNDEFINED
extern int of_another_library(void);
VA_EXPORT int uses_it(void) { return of_another_library(); }
#endif
