"""What level L4 is made of, without vLLM: comparisons, evidence, the guard, refusals."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from fake_vllm import install_vllm
from zoo import descriptor, target_of

from vllm_adapter.discovery.records import Status
from vllm_adapter.errors import InputError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase
from vllm_adapter_conformance.plan.suite import SuiteItem
from vllm_adapter_conformance.plan.vllm_installed import need_platform
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run.execution import run_item
from vllm_adapter_conformance.serving import guard, jobs, models
from vllm_adapter_conformance.serving.compare import FAR, same_answers, same_tokens, same_vectors
from vllm_adapter_conformance.serving.shape import served

pytestmark = pytest.mark.null

WANT = {"tokens": [5, 6, 7], "gaps": [0.1, 5e-5, 0.2]}
OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding")
OPS += ("reshape_and_cache", "paged_attention", "linear")
KEEPS = "WARNING vLLM keeps its own mixture of experts: tiny is one\n"
CLI = ("-m", "vllm_adapter.cli", "certify")


def test_tokens_may_part_at_a_near_tie_only():
    assert same_tokens(WANT, [5, 6, 7], "row")
    assert not same_tokens(WANT, [5, 9, 9], "row")
    with pytest.raises(Failure, match=r"row to be \[5, 6, 7\]; saw .*0.2 apart"):
        same_tokens(WANT, [5, 6, 8], "row")
    for other in ([5, 6], [5, 6, 7, 8]):
        with pytest.raises(Failure, match="row to have 3 tokens"):
            same_tokens(WANT, other, "row")
    note = same_answers({"answers": [WANT, WANT]}, {"answers": [WANT, {"tokens": [5, 8, 8]}]})
    assert note == "2 rows of 6 tokens, 1 parted at a near tie"


@pytest.mark.parametrize("bad", [0.8 + 2 * FAR["float32"], float("nan"), float("inf")])
def test_vectors_may_part_by_little_and_are_numbers(bad):
    assert same_vectors([[0.6, 0.8]], [[0.6, 0.8 + FAR["float32"] / 4]]) == pytest.approx(0.25)
    with pytest.raises(Failure, match=r"vectors within 0\.0001 of plain vLLM's"):
        same_vectors([[0.6, 0.8]], [[0.6, bad]])
    with pytest.raises(Failure, match=r"vectors of \[2\] numbers; saw \[3\]"):
        same_vectors([[0.6, 0.8]], [[0.6, 0.8, 0.0]])


class Stub:
    """Answers for engines that nobody ran; `changes` replace keys of ours in one step."""

    def __init__(self, calls=OPS, error=None, log=KEEPS, **changes):
        self.calls, self.error, self.text, self.changes = calls, error, log, changes

    def engine(self, side, name):
        calls = [["MainProcess", op, "stub", 3] for op in self.calls]
        return {"counters": calls if side == "ours" else []}

    def step(self, side, engine, step):
        if step == "score":
            off = {"plain": {"qwen3": 0.0, "bfloat16": 0.01}, "ours": {"bfloat16": self.off}}
            return [[-1.0 + off[side][engine]] * 5]
        if step == "embed":
            return [[0.6, 0.8 + (self.off if side == "ours" else 0.0)]]
        given = {"tokens": [5, 6, 7], "gaps": [0.1] * 3, "cached": 64, "first_pass": 3}
        found = {"answers": [given], "preemptions": 1, "aborted": [[1, 5]]}
        found |= {"blocks_kept": 0, "most_blocks": 4}
        return found | (self.changes if side == "ours" else {})

    def log(self, side):
        return self.text

    @property
    def off(self):
        return self.changes.get("off", 0.0)

    dtype = "float32"

    def result(self, side):
        return {"platform": "NativeCpu", "engines": {"experts": {"error": self.error}}}


@pytest.fixture
def judge(tmp_path):
    """judge(rule, stub) -> the result of the rule's first case, or of one that is named."""
    target = target_of("stub", descriptor({}), tmp_path)

    def run(id, stub, name=None):
        bench = Bench(target, tmp_path)
        vars(bench)["serving"] = stub
        cases = registered()[id].cases(target)
        case = next(case for case in cases if name in (None, case.id))
        assert isinstance(case, Case)
        return run_item(bench, SuiteItem(registered()[id], case))

    return run


ANSWER = {"tokens": [5, 6, 7], "gaps": [0.1] * 3, "cached": 64, "first_pass": 3}
WRONG = {"answers": [ANSWER | {"tokens": [5, 6, 9]}]}
FAULTS = {
    "L4.tokens": [WRONG],
    "L4.unequal_batch": [WRONG],
    "L4.chunked_prefill": [WRONG, {"answers": [ANSWER | {"first_pass": 1}]}],
    "L4.prefix_caching": [WRONG, {"answers": [ANSWER | {"cached": 0}]}],
    "L4.preemption": [WRONG, {"preemptions": 0}],
    "L4.abort": [WRONG, {"blocks_kept": 1}, {"aborted": []}, {"most_blocks": 0}],
    "L4.bf16": [{"off": 0.05}, {"off": float("nan")}, {"calls": ()}],
    "L4.embeddings": [{"off": 2e-4}, {"off": float("nan")}, {"calls": OPS[:-1]}],
    "L4.counters": [{"calls": ()}, *({"calls": [o for o in OPS if o != op]} for op in OPS)],
}


@pytest.mark.parametrize("id", FAULTS)
def test_each_rule_passes_right_answers_and_fails_each_lack(judge, id):
    assert judge(id, Stub()).outcome == "pass"
    for fault in FAULTS[id]:
        assert judge(id, Stub(**fault)).outcome == "fail", fault


class Embedder:
    """A server that nobody started; `wrong` says what it does to its vectors."""

    def __init__(self, folder, wrong=lambda rows: rows, status=400, calls=OPS):
        self.wrong, self.status, self.counters = wrong, status, folder
        lines = [f"000000000000003 {op} stub\n" for op in calls]
        (folder / "EngineCore-1.counts").write_text("".join(lines), encoding="ascii")

    def tail(self):
        return "its log"

    def post(self, path, body):
        assert path == "/v1/embeddings"
        if len(body["input"]) > models.LONG:
            return self.status, "too long"
        texts = (one if isinstance(one, list) else models.tokens_of(one) for one in body["input"])
        rows = self.wrong(list(map(vector, texts)))
        data = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
        return 200, {"data": data[::-1]}


def vector(prompt):
    """Another one for each prompt."""
    angle = sum(prompt) / 1000
    return [math.cos(angle), math.sin(angle)]


EMBEDDING_FAULTS = {
    "tokens": [{"wrong": lambda rows: rows[1:] + rows[:1]}],
    "text": [{"wrong": lambda rows: [[x + 2e-4 for x in row] for row in rows]}],
    "concurrent": [{"wrong": lambda rows: [[0.6, 0.8]] * len(rows)}],
    "too_long": [{"status": 200}, {"status": 500}],
    "counters": [{"calls": OPS[1:]}],
}


@pytest.mark.parametrize("name", EMBEDDING_FAULTS)
def test_a_server_that_embeds_wrong_fails_the_case_that_asks(judge, tmp_path, name):
    class Served(Stub):
        def step(self, side, engine, step):
            assert (side, engine, step) == ("plain", "embed", "server")
            return [vector(prompt) for prompt in jobs.server_prompts(0)]

    for fault in ({}, *EMBEDDING_FAULTS[name]):
        stub = Served()
        stub.embedder = Embedder(tmp_path, **fault)
        result = judge("L4.embeddings_server", stub, name)
        assert result.outcome == ("fail" if fault else "pass"), (fault, result)
        assert not fault or result.detail == "its log"


def test_experts_must_be_refused_for_what_they_are(judge):
    refusal = "UnsupportedCase: tiny is a mixture of experts, and there is no operator"
    assert judge("L4.experts", Stub(error=refusal), "refused").outcome == "pass"
    assert judge("L4.experts", Stub(error="OSError: no weights"), "refused").outcome == "fail"


def test_experts_that_are_left_to_vllm_are_said_once_and_all_else_is_ours(judge):
    without = [op for op in OPS if op != "silu_and_mul"]
    assert judge("L4.experts", Stub(calls=without), "left").outcome == "pass"
    faults = [WRONG, {"log": ""}, {"log": 2 * KEEPS}, {"calls": without[1:]}]
    for fault in faults:
        assert judge("L4.experts", Stub(**fault), "left").outcome == "fail", fault


def test_calls_of_another_provider_do_not_count(judge):
    class Other(Stub):
        def engine(self, side, name):
            return {"counters": [["MainProcess", op, "other", 3] for op in OPS]}

    assert judge("L4.counters", Other()).outcome == "fail"
    counted = judge("L4.counters", Stub()).counters
    assert counted["MainProcess"]["linear"] == {"stub": 3}


def test_a_model_that_is_not_declared_is_not_served(tmp_path):
    changes = {"paged_attention": {"limits": {"block_size": [8]}}}
    target = target_of("small", descriptor(changes), tmp_path)
    for id in [id for id in registered() if id.startswith("L4.")]:
        found = list(registered()[id].cases(target))
        assert found and all(isinstance(case, NotDeclaredCase) for case in found), id
    bare = dataclasses.replace(target, capability=None)
    assert list(registered()["L4.bf16"].cases(bare)) == []


ASKED = {
    "what vLLM takes": ({}, {}, ("float32", 32)),
    "a block of its own": (
        {"reshape_and_cache": {"limits": {"block_size": [24]}}},
        {"kv": {"block_multiple": 8, "preferred_block": 24}},
        ("float32", 24),
    ),
    "a multiple that 32 and 16 are not": ({}, {"kv": {"block_multiple": 64}}, ("float32", 64)),
    "no float32": ({op: {"dtypes": ["bfloat16"]} for op in OPS}, {}, ("bfloat16", 32)),
    "float16 alone": ({op: {"dtypes": ["float16"]} for op in OPS}, {}, ("float16", 32)),
}


@pytest.mark.parametrize(("operators", "sections", "asked"), ASKED.values(), ids=ASKED)
def test_dtype_and_block_size_are_asked_of_the_descriptor(tmp_path, operators, sections, asked):
    raw = descriptor(operators) | sections
    target = target_of("asked", raw, tmp_path)
    ours = served(target, "qwen3")
    assert (ours.dtype, ours.block_size) == asked
    engine = {"name": "qwen3", "model": "m", "options": jobs._options(ours), "steps": []}
    low = engine | {"name": "bfloat16"}
    plain, plain_low = jobs.reference([engine, low])
    options = plain["options"]
    assert (options["dtype"], options["block_size"]) == ("float32", jobs.REFERENCE_BLOCK)
    assert plain_low["options"]["dtype"] == "bfloat16"
    kept = engine["options"]["num_gpu_blocks_override"] * ours.block_size
    assert options["num_gpu_blocks_override"] * options["block_size"] >= kept


def test_a_low_dtype_excuses_near_ties_but_not_in_every_row():
    near = {"tokens": [5, 6, 7], "gaps": [0.1, 0.1, 0.01]}
    parted = {"tokens": [5, 6, 9]}
    equal = {"tokens": [5, 6, 7]}
    with pytest.raises(Failure, match=r"best two logits are 0\.01 apart"):
        same_answers({"answers": [near]}, {"answers": [parted]})
    half = ({"answers": [near] * 2}, {"answers": [parted, equal]})
    assert "1 parted at a near tie" in same_answers(*half, dtype="bfloat16")
    with pytest.raises(Failure, match="half of 2 rows to be plain vLLM's throughout"):
        same_answers({"answers": [near] * 2}, {"answers": [parted] * 2}, dtype="bfloat16")
    far = near | {"gaps": [0.1, 0.1, 0.2]}
    with pytest.raises(Failure, match=r"0\.2 apart"):
        same_answers({"answers": [far]}, {"answers": [parted]}, dtype="bfloat16")


GUARD = (sys.executable, guard.__file__)
SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


def guarded(seconds, code):
    command = [*GUARD, str(seconds), sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def is_gone(pid):
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)],
)
def test_the_guard_leaves_with_the_command_s_code(code, exit_code):
    child = guarded(60, code)
    assert child.wait(timeout=30) == exit_code
    child.communicate()


def test_the_guard_ends_the_command_with_its_owner_or_after_its_time():
    left = guarded(60, SLEEP)
    pid = int(left.stdout.readline())
    left.stdin.close()
    assert left.wait(timeout=30) == guard.LEFT
    assert is_gone(pid)
    left.stdout.close()
    late = guarded(0.5, SLEEP)
    assert late.wait(timeout=30) == guard.OVER
    assert is_gone(int(late.stdout.readline()))
    late.communicate()


def test_the_guard_passes_sigterm_on_and_leaves_nobody_behind():
    code = f"""
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.pause()
"""
    child = guarded(60, code)
    grandchild = int(child.stdout.readline())
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=30) == 7
    assert is_gone(grandchild)
    child.communicate()


def refusal(site, *words):
    done = site.run(*CLI, *words, "--level", "L4")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_without_vllm_or_with_another_release_certify_says_one_sentence(site):
    install_vllm(site.path, version="0.31.1+cpu")
    said = refusal(site, "cpu")
    assert "L4 is tested with vLLM 0.32, and 0.31.1+cpu is installed" in said
    assert "pip install 'vllm==0.32.*'" in said


def test_an_adapter_of_a_device_that_vllm_does_not_know_is_certified_and_a_broken_one_is_not(
    tmp_path,
):
    record = target_of("acme", descriptor({}), tmp_path).record
    need_platform(record, "L4")
    section = msgspec.structs.replace(record.manifest.device, torch_type="acme")
    manifest = msgspec.structs.replace(record.manifest, device=section)
    need_platform(dataclasses.replace(record, manifest=manifest), "L4")  # the generic shape
    denied = dataclasses.replace(record, status=Status.BROKEN, reason="its import failed")
    with pytest.raises(InputError, match="would not run on adapter acme: its import failed"):
        need_platform(denied, "L4")
