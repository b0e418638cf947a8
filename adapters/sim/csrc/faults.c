/* SIM_FAULT=KIND@N[,KIND@N...]: the N-th chance (from 1) of that kind strikes; with KIND@N+ all
 * after it too, with KIND@N/M each M-th after it. Kinds: oom (an allocation), lost (any queued work), launch (a kernel), corrupt (a copy
 * over the link). slow:MS lets every copy over the link take that long. SIM_FAULT_FROM=FILE: chances
 * are counted from the moment that there is such a file. SIM_LATENCY_US: how long after it was queued
 * work begins at the earliest. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

#define LONGEST INT64_C(60000000) /* of a latency, in microseconds */

static const char *const names[SIM_FAULTS] = {"oom", "lost", "launch", "slow", "corrupt"};
static struct {
  int64_t at, every; /* every: 0 is once */
  int64_t seen;
} plan[SIM_FAULTS];
static int64_t slow_ms, latency_us = 30;
static const char *from; /* a file that is not there yet; NULL: count */
static char amiss[160];
static int lost[SIM_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A whole number from 0 to LONGEST, and where it ends; -1: there is none. */
static int64_t number_at(const char *text, const char **end) {
  char *rest;
  long long value = *text >= '0' && *text <= '9' ? strtoll(text, &rest, 10) : -1;
  if (value < 0 || value > LONGEST) return -1;
  *end = rest;
  return value;
}

static int read_fault(const char *text, size_t length) {
  for (int kind = 0; kind < SIM_FAULTS; kind++) {
    size_t name = strlen(names[kind]);
    if (length <= name || strncmp(text, names[kind], name)) continue;
    const char *end = NULL;
    int64_t number = number_at(text + name + 1, &end);
    if (number < 1 || text[name] != (kind == SIM_FAULT_SLOW ? ':' : '@')) return 0;
    if (kind == SIM_FAULT_SLOW) {
      slow_ms = number;
    } else {
      plan[kind].at = number;
      plan[kind].every = *end == '+' ? 1 : *end == '/' ? number_at(end + 1, &end) : 0;
      if (plan[kind].every < 0) return 0;
      end += *end == '+';
    }
    return end == text + length;
  }
  return 0;
}

static void read_plan(void) {
  const char *latency = getenv("SIM_LATENCY_US"), *text = getenv("SIM_FAULT"), *end = NULL;
  if (latency && *latency) {
    latency_us = number_at(latency, &end);
    if (latency_us < 0 || *end)
      snprintf(amiss, sizeof amiss, "SIM_LATENCY_US is %.40s; write microseconds, such as 30",
               latency);
  }
  from = getenv("SIM_FAULT_FROM");
  if (from && !*from) from = NULL;
  while (text && *text) {
    size_t length = strcspn(text, ",");
    if (!read_fault(text, length))
      snprintf(amiss, sizeof amiss,
               "SIM_FAULT has %.*s; write oom@N, lost@N, launch@N, corrupt@N or slow:MS",
               length < 40 ? (int)length : 40, text);
    text += length;
    text += *text == ',';
  }
}

va_status sim_fault_plan(void) {
  pthread_once(&once, read_plan);
  return amiss[0] ? sim_fail(VA_ERROR_INVALID, "%s", amiss) : VA_OK;
}

int sim_due(sim_fault fault) {
  if (!plan[fault].at) return 0;
  pthread_mutex_lock(&lock);
  if (from && !access(from, F_OK)) from = NULL;
  int64_t seen = from ? 0 : ++plan[fault].seen;
  pthread_mutex_unlock(&lock);
  int64_t after = seen - plan[fault].at;
  return after == 0 || (after > 0 && plan[fault].every && after % plan[fault].every == 0);
}

int64_t sim_slow_milliseconds(void) { return slow_ms; }

int64_t sim_latency_microseconds(void) { return latency_us; }

int sim_is_lost(int32_t device) { return __atomic_load_n(&lost[device], __ATOMIC_ACQUIRE); }

void sim_lose(int32_t device) { __atomic_store_n(&lost[device], 1, __ATOMIC_RELEASE); }
