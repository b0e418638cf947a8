"""The simulated accelerator in C: programs against its table alone, plain and under sanitizers."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
import sim_library

pytestmark = [pytest.mark.sim, pytest.mark.slow]

HERE = Path(__file__).parent / "csrc"
WARNINGS = (
    "-Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wwrite-strings -Werror".split()
)
MODES = {
    "plain": [],
    "address": [
        "-fsanitize=address,undefined,float-cast-overflow",
        "-fno-sanitize-recover=all",
    ],
    "thread": ["-fsanitize=thread"],
}
LIMIT_S = 120
"""A program that hangs ends here; each needs a few seconds."""


def compiled(folder, flags, *sources, link=None):
    """Objects of C files, or with `link` a program of them and of those objects; kept."""
    command = [sim_library.COMPILER, "-std=gnu11", "-g", "-O1", *flags]
    command += [f"-I{sim_library.INCLUDE}", f"-I{sim_library.SIM}"]
    command += [w for source in sources for w in ("-x", "c", str(source))] + ["-x", "none"]
    digest = hashlib.sha256(" ".join(map(str, (command, link))).encode())
    for file in sorted(
        {*sources, *HERE.glob("*.h"), *sim_library.SIM.glob("*.h"), *sim_library.INCLUDE.iterdir()}
    ):
        digest.update(file.read_bytes())
    target = folder / f"c-{digest.hexdigest()[:16]}"
    if not target.exists():
        draft = target.with_suffix(f".{os.getpid()}")
        draft.mkdir()
        end = ["-c"] if link is None else [*map(str, link), "-o", "program", "-lm", "-lpthread"]
        done = subprocess.run([*command, *end], cwd=draft, capture_output=True, text=True)
        assert not done.returncode, done.stderr
        try:
            draft.rename(target)
        except OSError:
            assert target.exists()  # another process was first
    return target


@pytest.fixture(scope="session")
def program(c_folder):
    """program(NAME, MODE) builds tests/sim/csrc/NAME.c with the library; gives its path."""
    works = {"plain": True}

    def build(name, mode):
        flags = MODES[mode]
        if mode not in works:
            trial = c_folder / "trial.c"
            trial.write_text("int main(void) { return 0; }\n")
            out = c_folder / f"trial-{mode}"
            make = [sim_library.COMPILER, *flags, str(trial), "-o", str(out)]
            works[mode] = all(not subprocess.run(c).returncode for c in (make, [str(out)]))
        if not works[mode]:
            pytest.skip(f"{sim_library.COMPILER} has no sanitizer `{mode}` that works here")
        parts = compiled(c_folder, [*WARNINGS, *flags], *sorted(sim_library.SIM.glob("*.c")))
        objects = sorted(parts.glob("*.o"))
        return compiled(c_folder, flags, HERE / f"{name}.c", link=objects) / "program"

    return build


def run(path, *arguments, **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SIM_")}
    return subprocess.run(
        [str(path), *map(str, arguments)],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def succeeds(done):
    assert not done.returncode, f"exit status {done.returncode}: {done.stderr[-4000:]}"
    assert done.stdout.startswith("ok")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["runtime", "operators", "plain", "threads"])
def test_programs(program, name, mode):
    succeeds(run(program(name, mode)))


@pytest.mark.parametrize("seed", range(4))
def test_any_arguments_give_a_status(program, seed):
    succeeds(run(program("fuzz", "address"), seed, 100_000))


def test_any_arguments_from_a_thread_of_its_own(program):
    succeeds(run(program("fuzz", "thread"), 99, 20_000))


def test_the_host_cannot_follow_a_device_address(program):
    done = run(program("host_access", "plain"))
    assert done.returncode == -signal.SIGSEGV
    assert not done.stdout


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("oom@1", "oom"),
        ("launch@1", "launch"),
        ("corrupt@1", "mended"),
        ("corrupt@2", "mended"),
        ("corrupt@1+", "always"),
        ("slow:20", "mended"),
        ("lost@1", "lost"),
        ("lost@2", "lost"),
        ("lost@3", "lost"),
        ("oom@99,slow:1", "mended"),
        ("oom", "amiss"),
        ("oom@", "amiss"),
        ("oom@0", "amiss"),
        ("oom@1/", "amiss"),
        ("oom@1/x", "amiss"),
        ("corrupt@1/3", "mended"),
        ("oom@1x", "amiss"),
        ("fire@1", "amiss"),
        ("slow@1", "amiss"),
        ("oom@1,oops", "amiss"),
    ],
)
def test_a_fault_ends_in_one_status_or_is_mended(program, fault, what):
    succeeds(run(program("faults", "address"), what, SIM_FAULT=fault))


def test_chances_are_counted_from_the_moment_that_a_file_is_there(program, tmp_path):
    faults, later = program("faults", "address"), str(tmp_path / "later")
    succeeds(run(faults, "mended", SIM_FAULT="oom@1,lost@1,launch@1", SIM_FAULT_FROM=later))
    succeeds(run(faults, "oom", SIM_FAULT="oom@1", SIM_FAULT_FROM=str(tmp_path)))


def test_a_latency_that_is_no_number_is_told(program):
    succeeds(run(program("faults", "address"), "amiss", SIM_LATENCY_US="soon"))
