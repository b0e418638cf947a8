"""The suite against C libraries with one fault each: a named rule sees it.

The faults are changes of the simulated accelerator's source; each library is judged in a process
of its own.
"""

from __future__ import annotations

import pytest
import sim_library
from clib_judge import judge

pytestmark = pytest.mark.sim

MUTANTS = {
    # name: the file, what is replaced in it, by what, the rule that fails, a word of the failure
    "copies ignore the stream's order": (
        "copy.c",
        "transfer t = {to, sim_chip(device, from, size), size};\n"
        "  if (!t.from) return not_here(from, size, device);",
        "transfer t = {to, sim_chip(device, from, size), size};\n"
        "  if (!t.from) return not_here(from, size, device);\n"
        "  return over_link(&t);",
        "L1.stream.order",
        "turn",
    ),
    "a wait that does not wait": (
        "queue.c",
        "uint64_t until = s ? s->queued : 0;",
        "uint64_t until = 0;",
        "L1.stream.wait",
        "after the wait",
    ),
    "events that mark nothing": (
        "queue.c",
        "return push_event(device, id, name, WAIT);",
        "return sim_event_query(device, name) == VA_ERROR_INVALID ? VA_ERROR_INVALID : VA_OK;",
        "L1.stream.event",
        "other stream copied in",
    ),
    "everything at once": (
        "queue.c",
        "  task *t = calloc(1, sizeof *t);\n  if (t) {\n    t->work",
        "  char now[SIM_WORK_BYTES];\n"
        "  memcpy(now, arguments, size);\n"
        "  if (size) return function(now);\n  task *t = calloc(1, sizeof *t);\n  if (t) {\n"
        "    t->work",
        "L1.emulated.late",
        "the new ones",
    ),
    "use after release": (
        "heap.c",
        "if (b->state == USED && at + size <= b->offset + b->asked)",
        "if (at + size <= b->offset + b->size)",
        "L1.library.freed",
        "no error",
    ),
    "another device's addresses": (
        "heap.c",
        "  uint64_t at = (uint64_t)(uintptr_t)address - (uint64_t)(uintptr_t)heaps[device].outer;",
        "  if (heaps[1 - device].outer &&\n"
        "      (uint64_t)((char *)(uintptr_t)address - heaps[1 - device].outer) < SIM_HEAP)\n"
        "    device = 1 - device;\n"
        "  uint64_t at = (uint64_t)(uintptr_t)address - (uint64_t)(uintptr_t)heaps[device].outer;",
        "L1.library.foreign",
        "no error",
    ),
    "fresh memory is zero": (
        "sim.h",
        "#define SIM_POISON 0xA5",
        "#define SIM_POISON 0",
        "L1.emulated.fresh",
        "are zero",
    ),
    "fork is allowed": (
        "heap.c",
        "return first && first != getpid();",
        "return first && first != getpid() && 0;",
        "L1.library.fork",
        "in_bad_fork",
    ),
    "twice the memory": (
        "heap.c",
        "*total_bytes = SIM_HEAP;",
        "*total_bytes = 2 * SIM_HEAP;",
        "L1.library.capacity",
        "totals",
    ),
    "free that never falls": (
        "heap.c",
        "*free_bytes = SIM_HEAP - heaps[device].used;",
        "*free_bytes = SIM_HEAP;",
        "L1.library.capacity",
        "less free",
    ),
    "a dtype without a kernel": (
        "sim.h",
        "(VA_DTYPE_BIT(VA_FLOAT32) | VA_DTYPE_BIT(VA_FLOAT16))",
        "(VA_DTYPE_BIT(VA_FLOAT32) | VA_DTYPE_BIT(VA_FLOAT16) | VA_DTYPE_BIT(VA_BFLOAT16))",
        "L2.library.dtypes",
        "bfloat16",
    ),
    "a function that is NULL": (
        "api.c",
        "    .rms_norm = sim_rms_norm,\n",
        "",
        "L2.library.offers",
        "a function rms_norm",
    ),
    "a reduction that is refused": (
        "rows.c",
        "  if (args->kind < VA_SUM || args->kind > VA_SOFTMAX)",
        "  if (args->kind < VA_SUM || args->kind > VA_SOFTMAX || args->kind == VA_ARGMAX)",
        "L3.coverage.step",
        "reduce",
    ),
    "another epsilon": (
        "norm.c",
        "n.eps = (float)args->eps;",
        "n.eps = 10 * (float)args->eps;",
        "L2.rms_norm.correct",
        "budget",
    ),
    "a window of one more": (
        "attention.c",
        "if (position - a->window + 1 > first) first = position - a->window + 1;",
        "if (position - a->window > first) first = position - a->window;",
        "L2.paged_attention.correct",
        "window",
    ),
    "padding is written": (
        "cache.c",
        "if (slot < 0) return;",
        "if (slot < 0) slot = 0;",
        "L2.reshape_and_cache.correct",
        "budget",
    ),
    "strides are ignored": (
        "activation.c",
        "const char *from = sim_row(a->x_at, &a->x, row);",
        "const char *from = a->x_at + row * a->x.shape[last] * size;",
        "L2.silu_and_mul.correct",
        "strided rows",
    ),
}
NO_REDUCTIONS = "api.c", "    .reduce = sim_reduce,\n", ""
"""What a library may lack: then the counter must say so, and the rule passes."""
RULES = sorted({rule for *_, rule, _ in MUTANTS.values()})


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory, c_folder, sim_path):
    """What the rules say of each mutant, by name; and of the healthy library, under None."""
    jobs = {None: (sim_path, RULES)}
    for name, (file, old, new, rule, _) in MUTANTS.items():
        folder = tmp_path_factory.mktemp("csrc")
        jobs[name] = mutant(folder, c_folder, file, old, new), [rule]
    without = mutant(tmp_path_factory.mktemp("csrc"), c_folder, *NO_REDUCTIONS)
    jobs[NO_REDUCTIONS] = without, ["L3.coverage.step"]
    return dict(zip(jobs, judge(list(jobs.values())), strict=True))


def mutant(folder, c_folder, file, old, new):
    """The simulated accelerator's library with one change of its source."""
    for source in [*sim_library.SIM.glob("*.c"), *sim_library.SIM.glob("*.h")]:
        text = source.read_text("utf-8")
        if source.name == file:
            assert old in text, f"{file} has changed: {old!r} is no longer in it"
            text = text.replace(old, new)
        (folder / source.name).write_text(text, "utf-8")
    return sim_library.build(c_folder, sorted(folder.glob("*.c")), f"-I{folder}", name="mutant")


@pytest.mark.parametrize("name", MUTANTS)
def test_each_fault_of_a_library_is_seen_by_its_rule(verdicts, name):
    *_, rule, word = MUTANTS[name]
    _, failure = verdicts[name][rule]
    assert failure is not None, f"{rule} does not see it"
    assert word in failure, failure


def test_a_library_without_faults_passes_these_rules(verdicts):
    wrong = {rule: failure for rule, (_, failure) in verdicts[None].items() if failure}
    assert not wrong
    assert all(passed for passed, _ in verdicts[None].values())


def test_what_a_library_lacks_runs_on_the_host_and_is_counted(verdicts):
    passed, failure = verdicts[NO_REDUCTIONS]["L3.coverage.step"]
    assert (passed, failure) == (1, None)
