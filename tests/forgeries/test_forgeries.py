"""Each line of the table is done, and refused by whom it names. See README.md."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from table import TABLE
from tampering import GRADE, rewrite_record

from vllm_adapter_conformance.certificate import claims, mustpass, signing, statement
from vllm_adapter_conformance.certificate.document import canonical, digest

HERE = Path(__file__).parent
REPLACED = {"vendors_file_gone": "cuda.json"}
"""Words of the table that are wrong; README.md says why."""
WORD = {id: REPLACED.get(id, word) for id, _, word, _ in TABLE}
BY_WHOM = {id: who for id, who, _, _ in TABLE}


def of(who):
    return [id for id in BY_WHOM if BY_WHOM[id] == who]


@pytest.mark.static
def test_the_table_is_as_frozen():
    want = (HERE / "frozen.sha256").read_text("utf-8").split()[0]
    assert hashlib.sha256((HERE / "table.py").read_bytes()).hexdigest() == want


def recomputed(raw):
    """Whatever a certificate derives, derived anew."""
    raw["counts"] = claims.counts(raw["rules"])
    raw["coverage"] = claims.coverage(raw["rules"])
    raw["level_reached"] = claims.level_reached(
        raw["rules"], raw["level_asked"], mustpass.committed()
    )
    raw["emulated"] = claims.emulated(raw)
    raw["badge"] = claims.badge(raw)
    raw["headline"] = claims.headline(raw)
    return redigested(raw)


def redigested(raw):
    return raw | {"digest": digest(raw)}


def is_fail(case):
    return case["outcome"] == "fail"


def failed_rule(raw):
    return next(rule for rule in raw["rules"] if any(map(is_fail, rule["cases"])))


def without_failure(raw):
    rule = failed_rule(raw)
    (gone,) = [case for case in rule["cases"] if is_fail(case)]
    rule["cases"].remove(gone)
    return rule, gone


class Edits:
    """From a parsed certificate to the forged one; a string is written as it is."""

    def level(raw):
        raw["level_reached"] = "L3"
        return raw

    def level_recomputed(raw):
        return redigested(raw | {"level_reached": "L3", "badge": "L3"})

    def badge(raw):
        return redigested(raw | {"grade": "development", "badge": "L1", "changed": ["x differs"]})

    def grade(raw):
        raw["changed"] = ["x differs"]
        return recomputed(raw | {"grade": "release"})

    def future(raw):
        return recomputed(raw | {"created": "2036-12-01T00:00:00Z"})

    def key_twice(raw):
        return canonical(raw).replace("{", '{"level_reached":"L3",', 1)

    def no_files(raw):
        for one in raw["distributions"].values():
            one["loaded"] = {}
        return recomputed(raw)

    def no_distributions(raw):
        del raw["distributions"]
        return recomputed(raw)

    def rule_dropped(raw):
        raw["rules"].remove(failed_rule(raw))
        counted = recomputed(raw)
        return redigested(counted | {"level_reached": "L0", "badge": "L0"})

    def emulated(raw):
        raw["device"]["emulated_by"] = {
            "name": "sim",
            "dist": "vllm-adapter-sim",
            "version": "1",
            "library_sha256": "0" * 64,
        }
        honest = recomputed(raw)
        return redigested(honest | {"emulated": False, "badge": honest["level_reached"]})

    def signed_then_edited(raw):
        return redigested(raw | {"level_reached": "L0", "badge": "L0"})

    def signed_reason(raw):
        raw["rules"][0]["cases"][0]["message"] = "as expected"
        return recomputed(raw)

    def signed_seed(raw):
        return recomputed(raw | {"seed": raw["seed"] + 1})

    another_key = payload = signed_seed

    def version(raw):
        raw["adapter"]["version"] = raw["distributions"]["vllm-adapter-cpu"]["version"] = "9.9"
        return recomputed(raw)

    def library(raw):
        loaded = raw["distributions"]["vllm-adapter-acme"]["loaded"]
        loaded["vllm_adapter_acme/libextra.so"] = "0" * 64
        return recomputed(raw)

    def kernel(raw):
        loaded = raw["distributions"]["vllm-adapter-core"]["loaded"]
        loaded["vllm_adapter/engine/device.py"] = "0" * 64
        return recomputed(raw)

    def contract(raw):
        return recomputed(raw | {"contract": "2.0"})

    def failure_deleted(raw):
        without_failure(raw)
        return recomputed(raw)

    def failure_passed(raw):
        (case,) = [case for case in failed_rule(raw)["cases"] if is_fail(case)]
        case |= {"outcome": "pass", "message": None}
        return recomputed(raw)

    def case_added(raw):
        rule = raw["rules"][0]
        rule["cases"].append(rule["cases"][0] | {"case": "invented"})
        return recomputed(raw)

    def not_declared_moved(raw):
        rule, case = without_failure(raw)
        absent = {"case": case["case"], "pointer": "/plugin", "reason": "not declared"}
        rule["not_declared"].append(absent)
        return recomputed(raw)

    def h200(raw):
        raw["device"] |= {"name": "H200 SXM", "reported_name": "NVIDIA H200"}
        return recomputed(raw)

    def torch_type(raw):
        raw["device"]["torch"] = "cuda:0"
        return recomputed(raw)

    def memory(raw):
        raw["device"]["memory_bytes"] = 150 << 30
        return recomputed(raw)

    def driver(raw):
        raw["device"]["drivers"] = {"nvidia": "580.95.05"}
        return recomputed(raw)

    def torch_version(raw):
        raw["environment"]["torch"] = "2.11.0+cu130"
        return recomputed(raw)

    def old_format(raw):
        for key in ("contract", "distributions", "outside", "changed", "start_up"):
            del raw[key]
        return recomputed(raw | {"schema": "vllm-adapter/certificate/1.0"})


def place(source, tmp_path):
    """A copy of a certificate and its signature."""
    target = tmp_path / "certificate.json"
    shutil.copyfile(source, target)
    envelope = signing.signature_file(source)
    if envelope.exists():
        shutil.copyfile(envelope, signing.signature_file(target))
    return target


def forge(id, file):
    edited = getattr(Edits, id)(json.loads(file.read_text("utf-8")))
    file.write_text(edited if isinstance(edited, str) else canonical(edited) + "\n", "utf-8")


def refused(env, id, *words):
    done = env.run("verify", *words)
    assert done.returncode in (1, 2), done.stdout
    first = (done.stdout or done.stderr).splitlines()[0]
    assert done.returncode == 2 or "not sound" in first, done.stdout
    said = (done.stdout + done.stderr).lower()
    assert WORD[id].lower() in said and "traceback" not in said, said


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.parametrize("id", of("verify"))
def test_what_verify_refuses(env, signed, failing, tmp_path, id):
    file = place(failing if id == "rule_dropped" else signed, tmp_path)
    assert env.run("verify", str(file)).returncode == 0
    forge(id, file)
    refused(env, id, str(file))


class Envelopes:
    """What is done to the signature's file; `keys` are (private, public) files by owner."""

    def signature_gone(file, keys, other):
        signing.signature_file(file).unlink()

    def signature_of_another(file, keys, other):
        signing.sign(other, json.loads(other.read_text()), private(keys["vendor"]))
        shutil.copyfile(signing.signature_file(other), signing.signature_file(file))

    def another_key(file, keys, other):
        signing.sign(file, json.loads(file.read_text()), private(keys["forger"]))

    def payload(file, keys, other):
        made = statement.statement_of(file, json.loads(file.read_text()))
        altered(file, payload=base64.b64encode(statement.encoded(made)).decode())

    def payload_type(file, keys, other):
        made = statement.encoded(statement.statement_of(file, json.loads(file.read_text())))
        signature = private(keys["vendor"]).sign(signing.pre_encoded("text/plain", made))
        altered(
            file,
            payloadType="text/plain",
            signatures=[{"sig": base64.b64encode(signature).decode()}],
        )

    def empty_signatures(file, keys, other):
        altered(file, signatures=[])

    def predicate(file, keys, other):
        made = statement.statement_of(file, json.loads(file.read_text()))
        made["predicateType"] = "https://slsa.dev/provenance/v1"
        payload = statement.encoded(made)
        signature = private(keys["vendor"]).sign(signing.pre_encoded(statement.PAYLOAD, payload))
        altered(
            file,
            payload=base64.b64encode(payload).decode(),
            signatures=[{"sig": base64.b64encode(signature).decode()}],
        )


def private(pair):
    return load_pem_private_key(pair[0].read_bytes(), None)


def altered(file, **keys):
    envelope = signing.signature_file(file)
    envelope.write_text(json.dumps(json.loads(envelope.read_text()) | keys))


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.parametrize("id", of("key"))
def test_what_a_key_refuses(env, signed, with_library, keys, tmp_path, id):
    file, key = place(signed, tmp_path), str(keys["vendor"][1])
    right = env.run("verify", str(file), "--key", key)
    assert right.returncode == 0 and "signed by the key SHA256:" in right.stdout.splitlines()[0]
    if hasattr(Edits, id):
        forge(id, file)
    if hasattr(Envelopes, id):
        getattr(Envelopes, id)(file, keys, with_library)
    refused(env, id, str(file), "--key", key)


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.parametrize("id", [id for id in of("installed") if id != "record_rewritten"])
def test_what_the_installed_refuses(env, signed, with_library, tmp_path, id):
    file = place(with_library if id == "library" else signed, tmp_path)
    assert env.run("verify", str(file), "--against-installed").returncode == 0
    forge(id, file)
    assert env.run("verify", str(file)).returncode == 0
    refused(env, id, str(file), "--against-installed")


@pytest.mark.slow
@pytest.mark.device
def test_a_wheel_with_its_own_record_is_another_wheel(env, tmp_path):
    other = env.copy(tmp_path / "env")
    source = other.site / "vllm_adapter_cpu/plugin.py"
    source.write_text(source.read_text() + "\n# changed\n")
    rewrite_record(other.site, "vllm_adapter_cpu", source)
    file = tmp_path / "certificate.json"
    assert other.run("certify", "cpu", "--level", "L0", "--output", str(file)).returncode == 0
    assert json.loads(file.read_text())["grade"] == "release"
    refused(env, "record_rewritten", str(file), "--against-installed")


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.parametrize("id", of("replay"))
def test_what_a_replay_refuses(env, signed, failing, tmp_path, id):
    at_l0 = id in ("failure_deleted", "failure_passed", "case_added", "not_declared_moved")
    file = place(failing if at_l0 else signed, tmp_path)
    forge(id, file)
    assert env.run("verify", str(file), "--against-installed").returncode == 0
    refused(env, id, str(file), "--replay", "500" if id == "failure_passed" else "1")


@pytest.mark.slow
@pytest.mark.device
def test_right_certificates_are_replayed(env, signed, with_library, failing):
    for file in (signed, with_library, failing):
        done = env.run("verify", str(file), "--replay", "12")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("replayed L") == 12


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.parametrize("id", of("grade"))
def test_what_a_grade_refuses(env, tmp_path, id):
    other = env.copy(tmp_path / "env")
    tampering = GRADE[id]
    variables = tampering.done(other) or {}
    file = tmp_path / "certificate.json"
    words = ("certify", tampering.adapter, "--level", tampering.level, "--output", str(file))
    done = tampering.run(other, *words, **variables)
    assert file.exists(), done.stdout + done.stderr
    found = json.loads(file.read_text("utf-8"))
    assert (found["grade"], found["badge"]) == ("development", None)
    assert WORD[id] in " ".join(found["changed"]), found["changed"]
    assert "development grade" in found["headline"]


@pytest.mark.slow
@pytest.mark.device
def test_what_nobody_touched_is_a_release(env, signed, with_library):
    for file in (signed, with_library):
        found = json.loads(file.read_text("utf-8"))
        assert (found["grade"], found["changed"]) == ("release", [])
        assert found["badge"] == found["level_reached"]
    acme = found["distributions"]["vllm-adapter-acme"]["loaded"]
    library = env.site / "vllm_adapter_acme/libextra.so"
    content = hashlib.sha256(library.read_bytes()).hexdigest()
    assert acme["vllm_adapter_acme/libextra.so"] == content
