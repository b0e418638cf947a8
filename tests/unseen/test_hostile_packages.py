"""One bad package takes nobody down: commands end, cpu is there, and the culprit is named."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys

import pytest
from fake_dist import environment
from unseen.hostile_packages import LIMIT, MANIFESTS, METADATA
from unseen.hostile_plugins import COMMANDS, PLUGINS
from unseen.table import table_of

pytestmark = [pytest.mark.device, pytest.mark.slow]

CASES = [*MANIFESTS, *METADATA, *PLUGINS, *COMMANDS]
OWN = ("certify", "doctor", "list", "new", "run", "serve", "validate", "verify")
table = table_of("hostile packages")


def limited():
    """A package that eats memory must not eat the machine's."""
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))


def command(site, *words):
    """(code, stdout, stderr) of one command; a command that passes LIMIT is ended, code None."""
    site.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_adapter.cli", *words],
        env=environment(site, OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=limited,
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
        code = process.returncode
    except subprocess.TimeoutExpired:
        end_group(process.pid)
        out, err = b"", b""
        code = None
    finally:
        end_group(process.pid)
        process.wait()
        process.stdout.close()
        process.stderr.close()
    return code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def end_group(group):
    """What a hostile plug-in left behind in the command's own session."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def faults(case, site):
    """Everything that is wrong with how the product takes this package."""
    texts = []

    def ran(label, words, codes):
        code, out, err = command(site, *words)
        texts.append(out + err)
        if code is None:
            yield f"{label} takes more than {LIMIT:g} s"
        elif code not in codes:
            yield f"{label} ends with {code} and not {codes}: {(err or out)[-120:]!r}"

    yield from ran("list", ["list"], (0,))
    if not any(line.startswith("cpu ") for line in texts[-1].splitlines()):
        yield "list does not show cpu"
    code, out, err = command(site, "list", "--probe", "--json")
    texts.append(out + err)
    if code != 0:
        yield f"list --probe ends with {code}: {(err or out)[-120:]!r}"
    else:
        yield from rows(case, out, err)
    yield from ran("--help", ["--help"], (0,))
    for word in OWN:
        if f"  {word} " not in texts[-1]:
            yield f"--help does not show {word}"
            break
    if case.helped and not any(word in texts[-1] for word in case.helped):
        yield f"--help names none of {case.helped}"
    yield from ran("doctor", ["doctor"], case.doctor)
    if 0 not in case.doctor and not any(word in texts[-1] for word in case.named):
        yield f"doctor names none of {case.named}"
    for word in case.unsaid:
        if any(word in text for text in texts):
            yield f"{word[:12]!r} is printed"


def rows(case, out, err):
    """What is wrong with the rows of `list --probe --json`."""
    try:
        found = json.loads(out)["adapters"]
    except (ValueError, KeyError) as error:
        yield f"list --probe --json is no JSON: {error}"
        return
    cpu = [row for row in found if row["distribution"] == "vllm-adapter-cpu"]
    if [row["status"] for row in cpu if row["name"] == "cpu"] != ["ok"]:
        yield f"cpu is {[(row['status'], row['reason'][:80]) for row in cpu]}"
    for word in case.named:
        mine = [row for row in found if word in row["name"] or word in row["distribution"]]
        if not case.status:
            if word not in out + err:
                yield f"list --probe does not name {word}"
        elif not mine:
            yield f"list --probe has no row for {word}"
        for row in mine if case.status else ():
            if row["status"] not in case.status:
                yield f"{row['name']} is {row['status']} and not {case.status}"
            if row["status"] != "ok" and not row["reason"].strip():
                yield f"{row['name']} is {row['status']} without a reason"
            wrong = row["status"] == "broken" and case.reason
            if wrong and not any(word in row["reason"].lower() for word in case.reason):
                yield f"the reason names none of {case.reason}: {row['reason'][:100]}"


def test_the_names_are_distinct():
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_healthy_box_passes(tmp_path):
    assert command(tmp_path / "site", "doctor")[0] in (0, 1)
    code, out, _ = command(tmp_path / "site", "list", "--probe")
    assert code == 0
    assert "\ncpu " in out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nobody_else_is_harmed_and_the_culprit_is_named(case, tmp_path, table):
    site = tmp_path / "site"
    site.mkdir()
    case.make(site)
    found = list(faults(case, site))
    table.append((case.name, "WRONG" if found else "held", "; ".join(found)))
    assert not found


@pytest.mark.parametrize("late", [False, True], ids=["first on the path", "last on the path"])
@pytest.mark.parametrize("name", ["verify", "certify", "list", "doctor"])
def test_the_projects_commands_stay_its_own(name, late, tmp_path, table):
    site, path = tmp_path / "site", tmp_path / "path"
    site.mkdir()
    path.mkdir()
    next(case for case in COMMANDS if case.name.endswith(f"replaces {name}")).make(site)
    (path / "sitecustomize.py").write_text(f"import sys\nsys.path.append({str(site)!r})\n")
    words = [name] if name in ("list", "doctor") else [name, "nothing-of-that-name"]
    code, out, err = command(path if late else site, *words)
    wrong = "OWNED" in out + err or "Traceback" in err
    where = "last" if late else "first"
    row = (f"a call of {name}, replaced {where} on the path", "WRONG" if wrong else "held", code)
    table.append(row)
    assert not wrong
