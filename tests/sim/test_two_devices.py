"""An operator that serves two devices: L2.devices passes the right one, and sees the others."""

from __future__ import annotations

import pytest
import sim_library
from clib_judge import judge

pytestmark = pytest.mark.sim

RULE = "L2.devices"
LAUNCHED_ON_THE_FIRST = (
    "norm.c",
    "return sim_enqueue(x->device, stream, run, n, sizeof *n);",
    "return sim_enqueue(0, x->device ? 0 : stream, run, n, sizeof *n);",
    "norm.c",
    "const norm *n = arguments;\n  return sim_launch_all(",
    "const norm *n = arguments;\n  extern int usleep(unsigned);\n"
    "  if (n->x.device) usleep(3000);\n  return sim_launch_all(",
)
"""Its queue is behind, so that whoever asks the second device has the memory as it was."""
SCRATCH_BY_WIDTH = (
    "norm.c",
    "n->weight_at = sim_view(&n->weight);",
    "static char *first_at[1 << 13];\n  static int32_t of[1 << 13];\n"
    "  int64_t w = x->shape[x->ndim - 1];\n  n->weight_at = sim_view(&n->weight);\n"
    "  if (w < 1 << 13 && !first_at[w]) first_at[w] = n->weight_at, of[w] = x->device;\n"
    "  if (w < 1 << 13 && of[w] != x->device) n->weight_at = first_at[w];",
)
"""What is kept of the weight of a width is the first device's on every other one."""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory, c_folder, sim_path):
    jobs = [(sim_path, [RULE])]
    for change in (LAUNCHED_ON_THE_FIRST, SCRATCH_BY_WIDTH):
        folder = tmp_path_factory.mktemp("first")
        jobs.append((sim_library.changed(folder, c_folder, *change), [RULE]))
    return [found[RULE] for found in judge(jobs)]


def test_operators_that_keep_devices_apart_pass(verdicts):
    passed, failure = verdicts[0]
    assert failure is None and passed > 8, failure


@pytest.mark.parametrize("number", [1, 2])
def test_what_is_the_first_device_s_is_seen(verdicts, number):
    _, failure = verdicts[number]
    assert failure is not None and failure.startswith("rms_norm: ") and "two devices" in failure
