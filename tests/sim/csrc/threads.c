/* Many host threads at once: each allocates, copies, computes, makes streams and events on both
 * devices, and finds its own numbers again. Made for ThreadSanitizer. */
#include <pthread.h>

#include "harness.h"

enum { THREADS = 8, ROUNDS = 30, WIDTH = 97 };

static void *play(void *argument) {
  uint64_t state = 1000 + (uint64_t)(uintptr_t)argument;
  for (int round = 0; round < ROUNDS; round++) {
    int32_t device = (int32_t)(next_random(&state) % 2), other = 1 - device;
    float sent[WIDTH], got[WIDTH];
    va_managed_tensor *a, *b;
    va_stream stream;
    va_event done;
    for (int i = 0; i < WIDTH; i++) sent[i] = (float)uniform(&state, -1, 1);
    OK(api->allocate(device, sizeof sent, 0, &a));
    OK(api->allocate(other, sizeof sent, 0, &b));
    OK(api->stream_create(device, &stream));
    OK(api->event_create(device, &done));
    OK(api->copy_to_device(device, stream, a->tensor.data, sent, sizeof sent));
    va_tensor x = {.data = a->tensor.data, .device = device, .dtype = VA_FLOAT32, .ndim = 1,
                   .shape = {WIDTH}, .strides = {1}};
    va_binary_args twice = {.size = sizeof twice, .kind = VA_ADD, .stream = stream, .out = x,
                            .x = x, .other = x, .alpha = 1};
    OK(api->binary(&twice));
    OK(api->event_record(device, stream, done));
    OK(api->stream_wait_event(other, 0, done));
    OK(api->copy_on_device(0, other, b->tensor.data, device, a->tensor.data, sizeof sent));
    a->deleter(a); /* while the copy waits */
    OK(api->copy_to_host(other, 0, got, b->tensor.data, sizeof got));
    OK(api->stream_synchronize(other, 0));
    for (int i = 0; i < WIDTH; i++)
      CHECK(got[i] == sent[i] + sent[i], "thread %p, round %d, element %d", argument, round, i);
    b->deleter(b);
    va_status query = api->event_query(device, done);
    CHECK(query == VA_OK, "status %d", query);
    OK(api->event_destroy(device, done));
    OK(api->stream_destroy(device, stream));
    uint64_t free_bytes, total;
    OK(api->memory_info(device, &free_bytes, &total));
  }
  return NULL;
}

int main(void) {
  begin();
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++)
    CHECK(!pthread_create(&threads[i], NULL, play, (void *)i), "no thread");
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  for (int32_t device = 0; device < 2; device++) {
    va_memory_stats stats = {.size = sizeof stats};
    OK(api->memory_stats(device, &stats));
    CHECK(!stats.live_allocations && !stats.allocated_bytes, "memory is missing");
  }
  puts("ok");
  return 0;
}
