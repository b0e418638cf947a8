/* Streams. Each device has one worker thread that takes work from its streams: in order within a
 * stream. Among streams it takes the newest work that is ready, so that who forgets to wait for an
 * event reads old data; and each work is late by SIM_LATENCY_US, as on a real device, so that who
 * forgets to synchronise reads old data.
 *
 * A failure while work runs is kept for its stream, skips what is queued behind it, goes with
 * events to the streams that wait for them, and is reported by the next synchronise. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

#define FAIR 16 /* one in so many picks takes the oldest work, so that none waits for ever */

enum { WORK, WAIT, RECORD };

typedef struct {
  va_status status;
  char sentence[192];
} failure;

typedef struct task {
  int kind;
  sim_work work;
  uint64_t ticket;
  struct timespec due;
  va_event event;
  uint64_t recording; /* which record of the event is waited for, or made */
  struct task *next;
  _Alignas(16) char arguments[SIM_WORK_BYTES];
} task;

typedef struct stream {
  va_stream id;
  task *first, *last;
  uint64_t queued, done; /* counts of this stream */
  failure failed;
  int closing;
  struct stream *next;
} stream;

typedef struct event {
  va_event id;
  uint64_t recorded, reached; /* records asked for, and passed */
  struct timespec when;
  failure failed; /* of the stream, when it passed the record */
  struct event *next;
} event;

static struct {
  int running;
  unsigned picks;
  stream *streams;
  event *events;
} queues[SIM_DEVICES];
static uint64_t ids, tickets; /* given so far */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over all of the above */
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

void sim_prepare_queues(void) { pthread_once(&once, prepare); }

static int earlier(const struct timespec *a, const struct timespec *b) {
  return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

static stream *find_stream(int32_t device, va_stream id) {
  stream *s = queues[device].streams;
  while (s && s->id != id) s = s->next;
  return s;
}

static event *find_event(int32_t device, va_event id) {
  event *e = queues[device].events;
  while (e && e->id != id) e = e->next;
  return e;
}

/* An event of any device: its number says whose it is. */
static event *any_event(va_event id) { return find_event((int32_t)(id % SIM_DEVICES), id); }

static int is_waiting(const task *t) {
  const event *e = t->kind == WAIT ? any_event(t->event) : NULL;
  return e && e->reached < t->recording;
}

/* The stream whose first task runs next; NULL: none now, and *until (if *timed) is when to look
 * again. */
static stream *pick(int32_t device, int *timed, struct timespec *until) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int oldest = ++queues[device].picks % FAIR == 0;
  stream *best = NULL;
  *timed = 0;
  for (stream *s = queues[device].streams; s; s = s->next) {
    if (!s->first || is_waiting(s->first)) continue;
    if (earlier(&now, &s->first->due)) {
      if (!*timed || earlier(&s->first->due, until)) *until = s->first->due;
      *timed = 1;
    } else if (!best || (s->first->ticket < best->first->ticket) == oldest) {
      best = s;
    }
  }
  return best;
}

static void pass_on(failure *to, const failure *from, const char *how) {
  if (to->status || !from->status) return;
  to->status = from->status;
  snprintf(to->sentence, sizeof to->sentence, "%s%.120s", how, from->sentence);
}

static void perform(int32_t device, stream *s, task *t) {
  event *e = t->kind == WORK ? NULL : any_event(t->event);
  if (t->kind == WAIT && e) pass_on(&s->failed, &e->failed, "work that was waited for failed: ");
  if (t->kind == RECORD && e && e->reached < t->recording) {
    e->reached = t->recording;
    e->failed = s->failed;
    clock_gettime(CLOCK_MONOTONIC, &e->when);
  }
  if (t->kind != WORK) return;
  if (sim_due(SIM_FAULT_LOST)) sim_lose(device);
  if (s->failed.status) return;
  failure now = {VA_OK, ""};
  pthread_mutex_unlock(&lock);
  now.status = sim_is_lost(device) ? sim_fail(VA_ERROR_DEVICE_LOST, "device %d is lost", device)
                                   : t->work(t->arguments);
  if (now.status) snprintf(now.sentence, sizeof now.sentence, "%.190s", sim_last_error());
  pthread_mutex_lock(&lock);
  pass_on(&s->failed, &now, "");
}

static void *work(void *argument) {
  int32_t device = (int32_t)(intptr_t)argument;
  pthread_mutex_lock(&lock);
  for (;;) {
    int timed;
    struct timespec until;
    stream *s = pick(device, &timed, &until);
    if (!s) {
      if (timed) pthread_cond_timedwait(&changed, &lock, &until);
      else pthread_cond_wait(&changed, &lock);
      continue;
    }
    task *t = s->first;
    perform(device, s, t);
    s->first = t->next;
    if (!s->first) s->last = NULL;
    s->done++;
    free(t);
    pthread_cond_broadcast(&changed);
  }
  return NULL;
}

static va_status start(int32_t device) { /* with the lock held */
  if (queues[device].running) return VA_OK;
  stream *first = calloc(1, sizeof *first);
  if (!first) return sim_fail(VA_ERROR_INTERNAL, "no memory for a stream");
  queues[device].streams = first;
  pthread_t worker;
  if (pthread_create(&worker, NULL, work, (void *)(intptr_t)device)) {
    queues[device].streams = NULL;
    free(first);
    return sim_fail(VA_ERROR_INTERNAL, "no thread for device %d", device);
  }
  pthread_detach(worker);
  queues[device].running = 1;
  return VA_OK;
}

static va_status no_stream(int32_t device, va_stream id) {
  return sim_fail(VA_ERROR_INVALID, "device %d has no stream %llu", device,
                  (unsigned long long)id);
}

static va_status no_event(int32_t device, va_event id) {
  return sim_fail(VA_ERROR_INVALID, "device %d has no event %llu", device,
                  (unsigned long long)id);
}

/* Queues a task, which is freed where that fails. */
static va_status push(int32_t device, va_stream id, task *t) {
  va_status status = sim_usable(device);
  if (!status && !t) status = sim_fail(VA_ERROR_INTERNAL, "no memory for work");
  if (status) {
    free(t);
    return status;
  }
  int64_t late = sim_latency_microseconds();
  clock_gettime(CLOCK_MONOTONIC, &t->due);
  t->due.tv_sec += late / 1000000;
  t->due.tv_nsec += late % 1000000 * 1000;
  if (t->due.tv_nsec >= 1000000000) {
    t->due.tv_nsec -= 1000000000;
    t->due.tv_sec++;
  }
  pthread_mutex_lock(&lock);
  status = start(device);
  stream *s = status ? NULL : find_stream(device, id);
  event *e = t->kind == WAIT ? any_event(t->event) : find_event(device, t->event);
  if (!status && (!s || s->closing)) status = no_stream(device, id);
  if (!status && t->kind != WORK && !e) status = no_event(device, t->event);
  if (status) {
    free(t);
  } else {
    if (t->kind == RECORD) e->recorded++;
    if (t->kind != WORK) t->recording = e->recorded;
    t->ticket = ++tickets;
    if (s->last) s->last->next = t;
    else s->first = t;
    s->last = t;
    s->queued++;
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  return status;
}

va_status sim_enqueue(int32_t device, va_stream id, sim_work function, const void *arguments,
                      size_t size) {
  if (size > SIM_WORK_BYTES)
    return sim_fail(VA_ERROR_INTERNAL, "work of %zu bytes cannot be queued", size);
  task *t = calloc(1, sizeof *t);
  if (t) {
    t->work = function;
    memcpy(t->arguments, arguments, size);
  }
  return push(device, id, t);
}

static va_status push_event(int32_t device, va_stream id, va_event name, int kind) {
  task *t = calloc(1, sizeof *t);
  if (t) {
    t->kind = kind;
    t->event = name;
  }
  return push(device, id, t);
}

va_status sim_event_record(int32_t device, va_stream id, va_event name) {
  return push_event(device, id, name, RECORD);
}

va_status sim_stream_wait_event(int32_t device, va_stream id, va_event name) {
  return push_event(device, id, name, WAIT);
}

va_status sim_stream_create(int32_t device, va_stream *out) {
  va_status status = sim_usable(device);
  if (status) return status;
  if (!out) return sim_fail(VA_ERROR_INVALID, "stream is NULL");
  pthread_mutex_lock(&lock);
  status = start(device);
  stream *s = status ? NULL : calloc(1, sizeof *s);
  if (s) {
    s->id = ++ids;
    s->next = queues[device].streams->next; /* behind the default stream, which is the first */
    queues[device].streams->next = s;
    *out = s->id;
  } else if (!status) {
    status = sim_fail(VA_ERROR_INTERNAL, "no memory for a stream");
  }
  pthread_mutex_unlock(&lock);
  return status;
}

va_status sim_stream_destroy(int32_t device, va_stream id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&lock);
  stream *s = id ? find_stream(device, id) : NULL;
  if (!s || s->closing) {
    status = no_stream(device, id);
  } else {
    s->closing = 1;
    while (s->done < s->queued) pthread_cond_wait(&changed, &lock);
    stream *before = queues[device].streams;
    while (before->next != s) before = before->next;
    before->next = s->next;
    if (s->failed.status) status = sim_fail(s->failed.status, "%s", s->failed.sentence);
    free(s);
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  return status;
}

va_status sim_stream_synchronize(int32_t device, va_stream id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&lock);
  status = start(device);
  stream *s = status ? NULL : find_stream(device, id);
  if (!status && !s) status = no_stream(device, id);
  uint64_t until = s ? s->queued : 0;
  while (s && s->done < until) {
    pthread_cond_wait(&changed, &lock);
    s = find_stream(device, id); /* another thread may have destroyed it, which waits too */
  }
  if (s && s->failed.status) {
    status = sim_fail(s->failed.status, "%s", s->failed.sentence);
    s->failed.status = VA_OK; /* reported once; unless it is lost, the device goes on */
  }
  pthread_mutex_unlock(&lock);
  return status;
}

va_status sim_event_create(int32_t device, va_event *out) {
  va_status status = sim_usable(device);
  if (status) return status;
  event *e = out ? calloc(1, sizeof *e) : NULL;
  if (!e) return sim_fail(VA_ERROR_INVALID, "event is NULL, or there is no memory for it");
  pthread_mutex_lock(&lock);
  e->id = ++ids * SIM_DEVICES + (uint64_t)device;
  e->next = queues[device].events;
  queues[device].events = e;
  *out = e->id;
  pthread_mutex_unlock(&lock);
  return VA_OK;
}

va_status sim_event_destroy(int32_t device, va_event id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&lock);
  event **place = &queues[device].events;
  while (*place && (*place)->id != id) place = &(*place)->next;
  event *gone = *place;
  if (gone) *place = gone->next;
  free(gone);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return gone ? VA_OK : no_event(device, id);
}

va_status sim_event_query(int32_t device, va_event id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&lock);
  event *e = find_event(device, id);
  status = !e ? no_event(device, id) : e->reached < e->recorded ? VA_NOT_READY : VA_OK;
  pthread_mutex_unlock(&lock);
  return status;
}

va_status sim_event_synchronize(int32_t device, va_event id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&lock);
  event *e = find_event(device, id);
  uint64_t until = e ? e->recorded : 0;
  while (e && e->reached < until) {
    pthread_cond_wait(&changed, &lock);
    e = find_event(device, id);
  }
  if (!e) status = no_event(device, id);
  else if (e->failed.status) status = sim_fail(e->failed.status, "%s", e->failed.sentence);
  pthread_mutex_unlock(&lock);
  return status;
}

va_status sim_event_elapsed(int32_t device, va_event start_id, va_event end_id, double *out) {
  va_status status = sim_usable(device);
  if (status) return status;
  if (!out) return sim_fail(VA_ERROR_INVALID, "milliseconds is NULL");
  pthread_mutex_lock(&lock);
  event *a = find_event(device, start_id), *b = find_event(device, end_id);
  if (!a || !b) status = no_event(device, a ? end_id : start_id);
  else if (!a->recorded || !b->recorded)
    status = sim_fail(VA_ERROR_INVALID, "an event was never recorded");
  else if (a->reached < a->recorded || b->reached < b->recorded)
    status = VA_NOT_READY;
  else
    *out = (double)(b->when.tv_sec - a->when.tv_sec) * 1e3 +
           (double)(b->when.tv_nsec - a->when.tv_nsec) * 1e-6;
  pthread_mutex_unlock(&lock);
  return status;
}

uint64_t sim_ticket(void) {
  pthread_mutex_lock(&lock);
  uint64_t ticket = tickets;
  pthread_mutex_unlock(&lock);
  return ticket;
}

static uint64_t oldest(void) {
  uint64_t least = UINT64_MAX;
  for (int device = 0; device < SIM_DEVICES; device++)
    for (stream *s = queues[device].streams; s; s = s->next)
      if (s->first && s->first->ticket < least) least = s->first->ticket;
  return least;
}

uint64_t sim_oldest_pending(void) {
  pthread_mutex_lock(&lock);
  uint64_t least = oldest();
  pthread_mutex_unlock(&lock);
  return least;
}

void sim_wait_passed(uint64_t ticket) {
  pthread_mutex_lock(&lock);
  while (oldest() <= ticket) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}
