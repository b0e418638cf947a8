#include "sim.h"

va_status sim_launch(int64_t groups, sim_group body, const void *arguments) {
  if (groups < 0 || groups > SIM_MAX_GRID)
    return sim_fail(VA_ERROR_LAUNCH, "a grid of %lld groups: the most is %d", (long long)groups,
                    SIM_MAX_GRID);
  if (groups && sim_due(SIM_FAULT_LAUNCH))
    return sim_fail(VA_ERROR_LAUNCH, "a kernel of %lld groups failed", (long long)groups);
  for (int64_t group = 0; group < groups; group++) body(arguments, group);
  return VA_OK;
}

typedef struct {
  sim_group body;
  const void *arguments;
  int64_t first;
} tile;

static void shifted(const void *arguments, int64_t group) {
  const tile *t = arguments;
  t->body(t->arguments, t->first + group);
}

va_status sim_launch_all(int64_t groups, sim_group body, const void *arguments) {
  va_status status = VA_OK;
  for (int64_t first = 0; first < groups && !status; first += SIM_MAX_GRID) {
    tile t = {body, arguments, first};
    int64_t left = groups - first;
    status = sim_launch(left < SIM_MAX_GRID ? left : SIM_MAX_GRID, shifted, &t);
  }
  return status;
}

float sim_subgroup_sum(const float *lanes) {
  float sum[SIM_SUBGROUP];
  for (int i = 0; i < SIM_SUBGROUP; i++) sum[i] = lanes[i];
  for (int width = SIM_SUBGROUP; width > 1;) { /* 48, 24, 12, 6, 3, 2, 1 */
    int half = (width + 1) / 2;
    for (int i = 0; i + half < width; i++) sum[i] += sum[i + half];
    width = half;
  }
  return sum[0];
}
