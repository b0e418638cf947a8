#include <stdarg.h>
#include <stdio.h>

#include "sim.h"

static __thread char sentence[256];

va_status sim_fail(va_status status, const char *format, ...) {
  va_list rest;
  va_start(rest, format);
  vsnprintf(sentence, sizeof sentence, format, rest);
  va_end(rest);
  return status;
}

const char *sim_last_error(void) { return sentence; }
