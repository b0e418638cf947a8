/* Streams. Each device has one worker thread that takes work from its streams: in order within a
 * stream, and from any stream whose next work is not waiting for an event. It begins a little late
 * (SIM_LATENCY_US), as a real device does: who does not synchronise reads old data.
 *
 * A failure while work runs is kept for its stream and reported by the next synchronise. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

enum { WORK, WAIT, RECORD };

typedef struct task {
  int kind;
  sim_work work;
  uint64_t ticket;
  va_event event;
  uint64_t recording; /* which record of the event is waited for, or made */
  struct task *next;
  _Alignas(16) char arguments[SIM_WORK_BYTES];
} task;

typedef struct stream {
  va_stream id;
  task *first, *last;
  uint64_t queued, done; /* counts of this stream */
  va_status failure;
  char sentence[192];
  int closing;
  struct stream *next;
} stream;

typedef struct event {
  va_event id;
  uint64_t recorded, reached; /* records asked for, and passed */
  struct timespec when;
  struct event *next;
} event;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t worker;
  int running;
  stream *streams;
  event *events;
  uint64_t next_id;
  uint64_t tickets; /* given so far */
} queues[SIM_DEVICES] = {
    {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER},
    {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER},
};

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

/* An event of any device may be waited for; its own device's lock guards it. */
static int reached(va_event id, uint64_t recording) {
  int32_t device = (int32_t)(id % SIM_DEVICES);
  pthread_mutex_lock(&queues[device].lock);
  event *e = find_event(device, id);
  int done = !e || e->reached >= recording;
  pthread_mutex_unlock(&queues[device].lock);
  return done;
}

static void run(int32_t device, stream *s, task *t) {
  if (t->kind == WORK) {
    va_status status = VA_OK;
    if (sim_due(SIM_FAULT_LOST)) sim_lose(device);
    if (sim_is_lost(device))
      status = sim_fail(VA_ERROR_DEVICE_LOST, "device %d is lost", device);
    else if (!s->failure)
      status = t->work(t->arguments);
    pthread_mutex_lock(&queues[device].lock);
    if (status && !s->failure) {
      s->failure = status;
      snprintf(s->sentence, sizeof s->sentence, "%s", sim_last_error());
    }
    pthread_mutex_unlock(&queues[device].lock);
  } else if (t->kind == RECORD) {
    pthread_mutex_lock(&queues[device].lock);
    event *e = find_event(device, t->event);
    if (e && e->reached < t->recording) {
      e->reached = t->recording;
      clock_gettime(CLOCK_MONOTONIC, &e->when);
    }
    pthread_mutex_unlock(&queues[device].lock);
  }
}

/* The next stream whose first task may run; NULL: none now. Called with the lock held. */
static stream *ready(int32_t device, int *blocked) {
  *blocked = 0;
  for (stream *s = queues[device].streams; s; s = s->next) {
    task *t = s->first;
    if (!t) continue;
    if (t->kind == WAIT) {
      va_event id = t->event;
      uint64_t recording = t->recording;
      int here = (int32_t)(id % SIM_DEVICES) == device;
      if (!here) {
        pthread_mutex_unlock(&queues[device].lock);
        int done = reached(id, recording);
        pthread_mutex_lock(&queues[device].lock);
        if (!done) *blocked = 1;
        else return s;
        continue;
      }
      event *e = find_event(device, id);
      if (e && e->reached < recording) {
        *blocked = 1;
        continue;
      }
    }
    return s;
  }
  return NULL;
}

static void *work(void *argument) {
  int32_t device = (int32_t)(intptr_t)argument;
  pthread_mutex_lock(&queues[device].lock);
  for (;;) {
    int blocked;
    stream *s = ready(device, &blocked);
    if (!s) {
      struct timespec until;
      clock_gettime(CLOCK_REALTIME, &until);
      until.tv_nsec += blocked ? 200000 : 100000000;
      if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
      }
      if (pthread_cond_timedwait(&queues[device].changed, &queues[device].lock, &until) == 0) {
        int64_t late = sim_latency_microseconds();
        pthread_mutex_unlock(&queues[device].lock);
        if (late > 0) usleep((useconds_t)late);
        pthread_mutex_lock(&queues[device].lock);
      }
      continue;
    }
    task *t = s->first;
    pthread_mutex_unlock(&queues[device].lock);
    run(device, s, t);
    pthread_mutex_lock(&queues[device].lock);
    s->first = t->next;
    if (!s->first) s->last = NULL;
    s->done++;
    free(t);
    pthread_cond_broadcast(&queues[device].changed);
  }
  return NULL;
}

static va_status start(int32_t device) { /* with the lock held */
  if (queues[device].running) return VA_OK;
  stream *first = calloc(1, sizeof *first);
  if (!first) return sim_fail(VA_ERROR_INTERNAL, "no memory for a stream");
  queues[device].streams = first;
  if (pthread_create(&queues[device].worker, NULL, work, (void *)(intptr_t)device)) {
    queues[device].streams = NULL;
    free(first);
    return sim_fail(VA_ERROR_INTERNAL, "no thread for device %d", device);
  }
  pthread_detach(queues[device].worker);
  queues[device].running = 1;
  return VA_OK;
}

static va_status push(int32_t device, va_stream id, task *t) {
  va_status status = sim_usable(device);
  if (status) {
    free(t);
    return status;
  }
  pthread_mutex_lock(&queues[device].lock);
  status = start(device);
  stream *s = status ? NULL : find_stream(device, id);
  if (!status && (!s || s->closing))
    status = sim_fail(VA_ERROR_INVALID, "device %d has no stream %llu", device,
                      (unsigned long long)id);
  if (status) {
    free(t);
  } else {
    t->ticket = ++queues[device].tickets;
    if (s->last) s->last->next = t;
    else s->first = t;
    s->last = t;
    s->queued++;
    pthread_cond_broadcast(&queues[device].changed);
  }
  pthread_mutex_unlock(&queues[device].lock);
  return status;
}

va_status sim_enqueue(int32_t device, va_stream id, sim_work function, const void *arguments,
                      size_t size) {
  task *t = size <= SIM_WORK_BYTES ? calloc(1, sizeof *t) : NULL;
  if (!t) return sim_fail(VA_ERROR_INTERNAL, "work of %zu bytes cannot be queued", size);
  t->work = function;
  memcpy(t->arguments, arguments, size);
  return push(device, id, t);
}

va_status sim_stream_create(int32_t device, va_stream *out) {
  va_status status = sim_usable(device);
  if (status) return status;
  if (!out) return sim_fail(VA_ERROR_INVALID, "stream is NULL");
  pthread_mutex_lock(&queues[device].lock);
  status = start(device);
  stream *s = status ? NULL : calloc(1, sizeof *s);
  if (s) {
    s->id = ++queues[device].next_id;
    stream *last = queues[device].streams;
    while (last->next) last = last->next;
    last->next = s;
    *out = s->id;
  } else if (!status) {
    status = sim_fail(VA_ERROR_INTERNAL, "no memory for a stream");
  }
  pthread_mutex_unlock(&queues[device].lock);
  return status;
}

va_status sim_stream_destroy(int32_t device, va_stream id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&queues[device].lock);
  stream *s = id ? find_stream(device, id) : NULL;
  if (!s || s->closing) {
    pthread_mutex_unlock(&queues[device].lock);
    return sim_fail(VA_ERROR_INVALID, "device %d has no stream %llu of yours", device,
                    (unsigned long long)id);
  }
  s->closing = 1;
  while (s->done < s->queued) pthread_cond_wait(&queues[device].changed, &queues[device].lock);
  stream *before = queues[device].streams;
  while (before->next != s) before = before->next;
  before->next = s->next;
  free(s);
  pthread_mutex_unlock(&queues[device].lock);
  return VA_OK;
}

va_status sim_stream_synchronize(int32_t device, va_stream id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&queues[device].lock);
  status = start(device);
  stream *s = status ? NULL : find_stream(device, id);
  if (!status && !s)
    status = sim_fail(VA_ERROR_INVALID, "device %d has no stream %llu", device,
                      (unsigned long long)id);
  if (s) {
    uint64_t until = s->queued;
    while (s->done < until) pthread_cond_wait(&queues[device].changed, &queues[device].lock);
    if (s->failure) {
      status = sim_fail(s->failure, "%s", s->sentence);
      if (!sim_is_lost(device)) s->failure = VA_OK; /* reported once; the device goes on */
    }
  }
  pthread_mutex_unlock(&queues[device].lock);
  return status;
}

va_status sim_event_create(int32_t device, va_event *out) {
  va_status status = sim_usable(device);
  if (status) return status;
  event *e = out ? calloc(1, sizeof *e) : NULL;
  if (!e) return sim_fail(VA_ERROR_INVALID, "event is NULL, or there is no memory for it");
  pthread_mutex_lock(&queues[device].lock);
  e->id = (++queues[device].next_id) * SIM_DEVICES + (uint64_t)device;
  e->next = queues[device].events;
  queues[device].events = e;
  *out = e->id;
  pthread_mutex_unlock(&queues[device].lock);
  return VA_OK;
}

static va_status no_event(int32_t device, va_event id) {
  return sim_fail(VA_ERROR_INVALID, "device %d has no event %llu", device,
                  (unsigned long long)id);
}

va_status sim_event_destroy(int32_t device, va_event id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&queues[device].lock);
  event **at = &queues[device].events;
  while (*at && (*at)->id != id) at = &(*at)->next;
  event *gone = *at;
  if (gone) *at = gone->next;
  pthread_mutex_unlock(&queues[device].lock);
  free(gone);
  return gone ? VA_OK : no_event(device, id);
}

va_status sim_event_record(int32_t device, va_stream id, va_event name) {
  va_status status = sim_usable(device);
  if (status) return status;
  task *t = calloc(1, sizeof *t);
  if (!t) return sim_fail(VA_ERROR_INTERNAL, "no memory for a record");
  pthread_mutex_lock(&queues[device].lock);
  event *e = find_event(device, name);
  if (e) t->recording = ++e->recorded;
  pthread_mutex_unlock(&queues[device].lock);
  if (!e) {
    free(t);
    return no_event(device, name);
  }
  t->kind = RECORD;
  t->event = name;
  return push(device, id, t);
}

va_status sim_stream_wait_event(int32_t device, va_stream id, va_event name) {
  va_status status = sim_usable(device);
  if (status) return status;
  int32_t owner = (int32_t)(name % SIM_DEVICES);
  task *t = calloc(1, sizeof *t);
  if (!t) return sim_fail(VA_ERROR_INTERNAL, "no memory for a wait");
  pthread_mutex_lock(&queues[owner].lock);
  event *e = find_event(owner, name);
  if (e) t->recording = e->recorded;
  pthread_mutex_unlock(&queues[owner].lock);
  if (!e) {
    free(t);
    return no_event(device, name);
  }
  t->kind = WAIT;
  t->event = name;
  return push(device, id, t);
}

va_status sim_event_query(int32_t device, va_event id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&queues[device].lock);
  event *e = find_event(device, id);
  status = !e ? no_event(device, id) : e->reached < e->recorded ? VA_NOT_READY : VA_OK;
  pthread_mutex_unlock(&queues[device].lock);
  return status;
}

va_status sim_event_synchronize(int32_t device, va_event id) {
  va_status status = sim_usable(device);
  if (status) return status;
  pthread_mutex_lock(&queues[device].lock);
  event *e = find_event(device, id);
  uint64_t until = e ? e->recorded : 0;
  while (e && e->reached < until) {
    pthread_cond_wait(&queues[device].changed, &queues[device].lock);
    e = find_event(device, id);
  }
  pthread_mutex_unlock(&queues[device].lock);
  return e ? VA_OK : no_event(device, id);
}

va_status sim_event_elapsed(int32_t device, va_event start_id, va_event end_id, double *out) {
  va_status status = sim_usable(device);
  if (status) return status;
  if (!out) return sim_fail(VA_ERROR_INVALID, "milliseconds is NULL");
  pthread_mutex_lock(&queues[device].lock);
  event *a = find_event(device, start_id), *b = find_event(device, end_id);
  if (!a || !b) status = no_event(device, a ? end_id : start_id);
  else if (!a->reached || !b->reached || a->reached < a->recorded || b->reached < b->recorded)
    status = VA_NOT_READY;
  else
    *out = (double)(b->when.tv_sec - a->when.tv_sec) * 1e3 +
           (double)(b->when.tv_nsec - a->when.tv_nsec) * 1e-6;
  pthread_mutex_unlock(&queues[device].lock);
  return status;
}

uint64_t sim_ticket(int32_t device) {
  pthread_mutex_lock(&queues[device].lock);
  uint64_t ticket = queues[device].tickets;
  pthread_mutex_unlock(&queues[device].lock);
  return ticket;
}

/* With the lock held: whether no stream still holds work of that ticket or an earlier one. */
static int passed(int32_t device, uint64_t ticket) {
  for (stream *s = queues[device].streams; s; s = s->next)
    if (s->first && s->first->ticket <= ticket) return 0;
  return 1;
}

int sim_passed(int32_t device, uint64_t ticket) {
  pthread_mutex_lock(&queues[device].lock);
  int done = passed(device, ticket);
  pthread_mutex_unlock(&queues[device].lock);
  return done;
}

void sim_wait_passed(int32_t device, uint64_t ticket) {
  pthread_mutex_lock(&queues[device].lock);
  while (!passed(device, ticket))
    pthread_cond_wait(&queues[device].changed, &queues[device].lock);
  pthread_mutex_unlock(&queues[device].lock);
}
