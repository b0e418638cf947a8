/* Memory, streams, events, refusals. SIM_LATENCY_US is set here: what is late stays visible. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define BYTES 4096u
#define TRIES 20 /* at what may be seen by luck of the scheduler */

static void *block(int32_t device, uint64_t size, va_managed_tensor **owner) {
  OK(api->allocate(device, size, 0, owner));
  return (*owner)->tensor.data;
}

static void drop_block(va_managed_tensor *owner) { owner->deleter(owner); }

static void put(int32_t device, void *to, int byte, uint64_t size) {
  char *host = malloc(size);
  memset(host, byte, size);
  OK(api->copy_to_device(device, 0, to, host, size));
  OK(api->stream_synchronize(device, 0));
  free(host);
}

static void all(const char *what, const char *bytes, int wanted, uint64_t size) {
  for (uint64_t i = 0; i < size; i++)
    CHECK((unsigned char)bytes[i] == wanted, "%s: byte %llu is %d", what, (unsigned long long)i,
          (unsigned char)bytes[i]);
}

static void table(void) {
  CHECK(!va_get_api(VA_ABI_MAJOR + 1, 0), "another major");
  CHECK(!va_get_api(VA_ABI_MAJOR, VA_ABI_MINOR + 1), "a later minor");
  int32_t count = 0;
  OK(api->device_count(&count));
  CHECK(count == 2, "%d devices", count);
  va_device_info info = {.size = sizeof info};
  OK(api->device_info(1, &info));
  CHECK(!strcmp(info.arch, "sim48") && info.subgroup_size == 48 && info.alignment == 384,
        "another chip");
  info.size = 8;
  REFUSED(VA_ERROR_INVALID, api->device_info(0, &info));
  REFUSED(VA_ERROR_NO_DEVICE, api->open(2));
  REFUSED(VA_ERROR_NO_DEVICE, api->open(-1));
  for (va_operator op = 0; op < VA_OP_COUNT; op++) {
    uint64_t dtypes = 0;
    OK(api->operator_dtypes(0, op, &dtypes));
    CHECK(dtypes == (VA_DTYPE_BIT(VA_FLOAT32) | VA_DTYPE_BIT(VA_FLOAT16)), "operator %d", op);
  }
}

static void memory(void) {
  va_memory_stats before = {.size = sizeof before}, now = {.size = sizeof now};
  OK(api->memory_stats(0, &before));
  va_managed_tensor *a, *b;
  char *data = block(0, 1000, &a), host[1000];
  CHECK((uintptr_t)data % 384 == 0, "aligned otherwise");
  CHECK(a->tensor.device.type == 12 && a->tensor.shape[0] == 1000, "no uint8[1000] of ours");
  OK(api->copy_to_host(0, 0, host, data, 1000));
  OK(api->stream_synchronize(0, 0));
  all("fresh memory", host, 0xA5, 1000);
  REFUSED(VA_ERROR_NOT_DEVICE, api->copy_to_host(0, 0, host, data, 1001));
  REFUSED(VA_ERROR_NOT_DEVICE, api->copy_to_host(0, 0, host, data + 999, 2));
  REFUSED(VA_ERROR_NOT_DEVICE, api->copy_to_host(1, 0, host, data, 10)); /* the other device's */
  REFUSED(VA_ERROR_NOT_DEVICE, api->copy_to_device(0, 0, host, host, 10)); /* the host's */
  static const uint64_t alignments[] = {1, 2, 64, 256, 4096, 1u << 21, 384, 384 * 5};
  for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
    OK(api->allocate(0, 10, alignments[i], &b));
    CHECK((uintptr_t)b->tensor.data % alignments[i] == 0, "not aligned");
    drop_block(b);
  }
  REFUSED(VA_ERROR_INVALID, api->allocate(0, 10, 100, &b));
  REFUSED(VA_ERROR_INVALID, api->allocate(0, 10, UINT64_C(1) << 40, &b));
  drop_block(a);
  REFUSED(VA_ERROR_NOT_DEVICE, api->copy_to_host(0, 0, host, data, 10)); /* use after free */
  OK(api->memory_stats(0, &now));
  CHECK(now.allocated_bytes == before.allocated_bytes &&
            now.live_allocations == before.live_allocations && now.peak_bytes >= 1000,
        "memory is missing");
}

static void capacity(void) {
  uint64_t free_bytes, total, again;
  OK(api->memory_info(1, &free_bytes, &total));
  va_managed_tensor *part, *more;
  REFUSED(VA_ERROR_OUT_OF_MEMORY, api->allocate(1, total + 1, 0, &more));
  REFUSED(VA_ERROR_OUT_OF_MEMORY, api->allocate(1, UINT64_MAX, 0, &more));
  uint64_t taken = total / 32 / 384 * 384; /* more would cost memory of this machine */
  OK(api->allocate(1, taken, 0, &part));
  REFUSED(VA_ERROR_OUT_OF_MEMORY, api->allocate(1, total - taken + 384, 0, &more));
  OK(api->memory_info(1, &again, &total));
  CHECK(again == free_bytes - taken, "%llu are free", (unsigned long long)again);
  drop_block(part);
  OK(api->memory_info(1, &again, &total));
  CHECK(again == free_bytes, "%llu are free after the release", (unsigned long long)again);
}

/* A release while work still reads the block: its bytes are not handed out before that is done. */
static void release(void) {
  char host[BYTES];
  for (int i = 0; i < TRIES; i++) {
    va_managed_tensor *a, *b, *c;
    void *from = block(0, BYTES, &a), *to = block(1, BYTES, &b);
    put(0, from, 7, BYTES);
    OK(api->copy_on_device(0, 1, to, 0, from, BYTES)); /* on the queue of the other device */
    drop_block(a);
    (void)block(0, BYTES, &c); /* poisoned at once */
    OK(api->copy_to_host(1, 0, host, to, BYTES));
    OK(api->stream_synchronize(1, 0));
    all("a block released early", host, 7, BYTES);
    drop_block(b);
    drop_block(c);
  }
}

static void missing_synchronise(void) {
  int seen = 0;
  char *host = malloc(BYTES);
  va_managed_tensor *a;
  void *data = block(0, BYTES, &a);
  put(0, data, 1, BYTES);
  for (int i = 0; i < TRIES; i++) {
    memset(host, 0, BYTES);
    OK(api->copy_to_host(0, 0, host, data, BYTES));
    seen += ((volatile char *)host)[BYTES - 1] == 0; /* a race, on purpose */
    OK(api->stream_synchronize(0, 0));
    all("after synchronising", host, 1, BYTES);
  }
  CHECK(seen, "who does not synchronise never reads old data");
  drop_block(a);
  free(host);
}

/* Producer and consumer on two streams (of one device, or of two): right with an event, and old
 * data without one. */
static void streams(int32_t producer, int with_event) {
  int old = 0;
  va_stream first, second;
  va_event done;
  OK(api->stream_create(producer, &first));
  OK(api->stream_create(0, &second));
  OK(api->event_create(producer, &done));
  char host[BYTES], fresh[BYTES];
  va_managed_tensor *a, *b;
  void *from = block(producer, BYTES, &a), *to = block(0, BYTES, &b);
  for (int i = 0; i < TRIES; i++) {
    put(producer, from, 1, BYTES);
    memset(fresh, 2, BYTES);
    OK(api->copy_to_device(producer, first, from, fresh, BYTES));
    OK(api->event_record(producer, first, done));
    if (with_event) OK(api->stream_wait_event(0, second, done));
    OK(api->copy_on_device(second, 0, to, producer, from, BYTES));
    OK(api->copy_to_host(0, second, host, to, BYTES));
    OK(api->stream_synchronize(0, second));
    old += host[0] != 2;
    OK(api->event_synchronize(producer, done));
    CHECK(api->event_query(producer, done) == VA_OK, "not reached");
  }
  CHECK(with_event ? !old : producer || old, "%d of %d reads were of old data", old, TRIES);
  drop_block(a);
  drop_block(b);
  OK(api->event_destroy(producer, done));
  OK(api->stream_destroy(producer, first));
  OK(api->stream_destroy(0, second));
}

static void order(void) { /* of one stream: each fill sees the one before */
  uint64_t state = 11;
  array x = make(0, VA_INT64, PLAIN, 0, 1, &state, SHAPE(64));
  va_fill_args fill = {.size = sizeof fill, .out = x.t};
  va_binary_args add = {.size = sizeof add, .kind = VA_ADD, .out = x.t, .x = x.t, .other = none(),
                        .alpha = 1, .integer_scalar = 1};
  OK(api->fill(&fill));
  for (int i = 0; i < 1000; i++) OK(api->binary(&add));
  for (int i = 0; i < 64; i++) x.values[i] = 1000;
  same("a thousand additions", &x, x.values, 0);
  drop(&x);
}

static void events(void) {
  va_event a, b, other;
  double ms = -1;
  OK(api->event_create(0, &a));
  OK(api->event_create(0, &b));
  OK(api->event_create(1, &other));
  CHECK(api->event_query(0, a) == VA_OK, "an event that was never recorded is waited for");
  OK(api->event_synchronize(0, a));
  REFUSED(VA_ERROR_INVALID, api->event_elapsed(0, a, b, &ms));
  OK(api->event_record(0, 0, a));
  OK(api->fence(0, 0, VA_FENCE_SYSTEM));
  OK(api->event_record(0, 0, b));
  OK(api->event_synchronize(0, b));
  OK(api->event_elapsed(0, a, b, &ms));
  CHECK(ms >= 0, "%g ms", ms);
  REFUSED(VA_ERROR_INVALID, api->event_record(0, 0, other));
  REFUSED(VA_ERROR_INVALID, api->event_record(0, 12345, a));
  OK(api->event_synchronize(0, a)); /* what was refused is not waited for */
  REFUSED(VA_ERROR_INVALID, api->fence(0, 0, 9));
  REFUSED(VA_ERROR_INVALID, api->stream_synchronize(0, 12345));
  REFUSED(VA_ERROR_INVALID, api->stream_destroy(0, 0));
  OK(api->event_destroy(0, a));
  REFUSED(VA_ERROR_INVALID, api->event_synchronize(0, a));
  OK(api->event_destroy(0, b));
  OK(api->event_destroy(1, other));
}

static void link_bytes(void) {
  va_memory_stats before = {.size = sizeof before}, now = {.size = sizeof now};
  va_managed_tensor *a, *b;
  void *from = block(0, BYTES, &a), *to = block(1, BYTES, &b);
  OK(api->memory_stats(0, &before));
  OK(api->copy_on_device(0, 1, to, 0, from, BYTES));
  OK(api->copy_on_device(0, 0, from, 0, from, BYTES)); /* stays on the chip */
  OK(api->stream_synchronize(1, 0));
  OK(api->memory_stats(0, &now));
  CHECK(now.link_bytes == before.link_bytes + BYTES, "%llu bytes",
        (unsigned long long)(now.link_bytes - before.link_bytes));
  drop_block(a);
  drop_block(b);
}

/* Work that fails is told by the next synchronise, also on a stream that waited for it; after
 * that the device goes on. */
static void failing(void) {
  uint64_t state = 3;
  array weight = make(0, VA_FLOAT32, PLAIN, -1, 1, &state, SHAPE(4, 8));
  array ids = make(0, VA_INT64, PLAIN, 100, 200, &state, SHAPE(3));
  array out = make(0, VA_FLOAT32, PLAIN, -1, 1, &state, SHAPE(3, 8));
  va_embedding_args e = {.size = sizeof e, .out = out.t, .ids = ids.t, .weight = weight.t};
  va_stream other;
  va_event event;
  OK(api->stream_create(0, &other));
  OK(api->event_create(0, &event));
  OK(api->embedding(&e));
  OK(api->event_record(0, 0, event));
  OK(api->stream_wait_event(0, other, event));
  REFUSED(VA_ERROR_LAUNCH, api->stream_synchronize(0, other));
  CHECK(strstr(api->last_error(), "outside a table"), "another sentence");
  REFUSED(VA_ERROR_LAUNCH, api->event_synchronize(0, event));
  REFUSED(VA_ERROR_LAUNCH, api->stream_synchronize(0, 0));
  OK(api->stream_synchronize(0, 0));
  OK(api->embedding(&e));
  e.stream = other;
  OK(api->embedding(&e));
  REFUSED(VA_ERROR_LAUNCH, api->stream_destroy(0, other));
  REFUSED(VA_ERROR_LAUNCH, api->stream_synchronize(0, 0));
  OK(api->event_destroy(0, event));
  drop(&weight);
  drop(&ids);
  drop(&out);
}

static void pinned(void) {
  void *memory = NULL;
  OK(api->allocate_pinned(100, 0, &memory));
  memset(memory, 1, 100);
  OK(api->free_pinned(memory));
  REFUSED(VA_ERROR_INVALID, api->allocate_pinned(100, 3, &memory));
  REFUSED(VA_ERROR_OUT_OF_MEMORY, api->allocate_pinned(UINT64_MAX / 2, 0, &memory));
}

static void forked(void) {
#ifndef __SANITIZE_THREAD__ /* which refuses to go on in such a child itself */
  va_managed_tensor *a, *b;
  void *data = block(0, BYTES, &a);
  char host[16];
  CHECK(!api->in_bad_fork(), "the parent");
  pid_t child = fork();
  if (!child) {
    int32_t count;
    alarm(20);
    CHECK(api->in_bad_fork(), "not told");
    REFUSED(VA_ERROR_FORKED, api->device_count(&count));
    REFUSED(VA_ERROR_FORKED, api->open(0));
    REFUSED(VA_ERROR_FORKED, api->allocate(0, 1, 0, &b));
    REFUSED(VA_ERROR_FORKED, api->copy_to_host(0, 0, host, data, 16));
    REFUSED(VA_ERROR_FORKED, api->stream_synchronize(0, 0));
    drop_block(a); /* must neither hang nor crash */
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "the child's status is %d", status);
  drop_block(a);
#endif
}

int main(void) {
  setenv("SIM_LATENCY_US", "2000", 1);
  begin();
  table();
  memory();
  capacity();
  release();
#ifndef __SANITIZE_THREAD__ /* these race on purpose */
  missing_synchronise();
  streams(0, 0);
#endif
  streams(0, 1);
  streams(1, 1);
  order();
  events();
  link_bytes();
  failing();
  pinned();
  forked();
  puts("ok");
  return 0;
}
