/* Each fault of SIM_FAULT ends in one status, or strikes once and is mended; none hangs, gives a
 * wrong byte, or loses memory. usage: SIM_FAULT=... faults WHAT */
#include "harness.h"

enum { BYTES = 1000 };

static va_managed_tensor *a;
static char sent[BYTES], got[BYTES];

/* There, doubled by a kernel, and back. */
static va_status round_trip(int32_t device) {
  va_status status = api->allocate(device, BYTES, 0, &a);
  if (status) return status;
  va_tensor x = {.data = a->tensor.data, .device = device, .dtype = VA_UINT8, .ndim = 1,
                 .shape = {BYTES}, .strides = {1}};
  va_binary_args twice = {.size = sizeof twice, .out = x, .x = x, .other = x, .alpha = 1};
  for (int i = 0; i < BYTES; i++) sent[i] = (char)(i % 60);
  memset(got, 0, BYTES);
  status = api->copy_to_device(device, 0, a->tensor.data, sent, BYTES);
  if (!status) status = api->binary(&twice);
  if (!status) status = api->copy_to_host(device, 0, got, a->tensor.data, BYTES);
  va_status waited = api->stream_synchronize(device, 0);
  a->deleter(a);
  return status ? status : waited;
}

static void right(int32_t device) {
  OK(round_trip(device));
  for (int i = 0; i < BYTES; i++) CHECK(got[i] == 2 * sent[i], "byte %d", i);
}

static void nothing_left(int32_t device) {
  va_memory_stats stats = {.size = sizeof stats};
  OK(api->memory_stats(device, &stats));
  CHECK(!stats.live_allocations && !stats.allocated_bytes, "memory is missing");
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  api = va_get_api(VA_ABI_MAJOR, VA_ABI_MINOR);
  if (!strcmp(what, "amiss")) {
    REFUSED(VA_ERROR_INVALID, api->open(0));
    CHECK(strstr(api->last_error(), "SIM_"), "another sentence");
  } else if (!strcmp(what, "mended")) { /* struck, and the answer is right all the same */
    for (int i = 0; i < 3; i++) right(0);
    nothing_left(0);
  } else if (!strcmp(what, "lost")) {
    REFUSED(VA_ERROR_DEVICE_LOST, round_trip(0));
    REFUSED(VA_ERROR_DEVICE_LOST, round_trip(0));
    REFUSED(VA_ERROR_DEVICE_LOST, api->open(0));
    right(1); /* the other device works */
    nothing_left(1);
  } else { /* out of memory, a launch, a copy: told once, and the device goes on */
    va_status wanted = strcmp(what, "oom") ? VA_ERROR_LAUNCH : VA_ERROR_OUT_OF_MEMORY;
    REFUSED(wanted, round_trip(0));
    if (!strcmp(what, "always")) { /* every copy is corrupted */
      REFUSED(wanted, round_trip(0));
    } else {
      right(0);
      right(1);
    }
    nothing_left(0);
  }
  puts("ok");
  return 0;
}
