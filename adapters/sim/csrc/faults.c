/* SIM_FAULT=KIND@N[,KIND@N...]: the N-th chance (from 1) of that kind strikes; KIND@N+ strikes from
 * then on. Kinds: oom (an allocation), lost (any queued work), launch (a kernel), corrupt (a copy
 * over the link). slow:MS lets every copy over the link take that long. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static const char *const names[SIM_FAULTS] = {"oom", "lost", "launch", "slow", "corrupt"};
static struct {
  int64_t at;
  int always;
  int64_t seen;
} plan[SIM_FAULTS];
static int64_t slow_ms, latency_us = 30;
static int lost[SIM_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_plan(void) {
  const char *latency = getenv("SIM_LATENCY_US"), *text = getenv("SIM_FAULT");
  if (latency) latency_us = strtoll(latency, NULL, 10);
  while (text && *text) {
    size_t length = strcspn(text, ",");
    for (int kind = 0; kind < SIM_FAULTS; kind++) {
      size_t name = strlen(names[kind]);
      if (length <= name || strncmp(text, names[kind], name)) continue;
      char *end;
      int64_t number = strtoll(text + name + 1, &end, 10);
      if (kind == SIM_FAULT_SLOW && text[name] == ':') slow_ms = number;
      if (text[name] == '@') {
        plan[kind].at = number;
        plan[kind].always = *end == '+';
      }
    }
    text += length;
    text += *text == ',';
  }
}

int sim_due(sim_fault fault) {
  pthread_once(&once, read_plan);
  if (!plan[fault].at) return 0;
  pthread_mutex_lock(&lock);
  int64_t seen = ++plan[fault].seen;
  pthread_mutex_unlock(&lock);
  return seen == plan[fault].at || (plan[fault].always && seen > plan[fault].at);
}

int64_t sim_slow_milliseconds(void) {
  pthread_once(&once, read_plan);
  return slow_ms;
}

int64_t sim_latency_microseconds(void) {
  pthread_once(&once, read_plan);
  return latency_us;
}

int sim_is_lost(int32_t device) { return __atomic_load_n(&lost[device], __ATOMIC_ACQUIRE); }

void sim_lose(int32_t device) { __atomic_store_n(&lost[device], 1, __ATOMIC_RELEASE); }
