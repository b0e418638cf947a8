"""`facts`, `--report`, `doctor --bundle`: what is printed, what is masked, what is read back."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import vllm_adapter_schemas
from vllm_adapter.cli import main as frame
from vllm_adapter.errors import InputError, NewerFormat
from vllm_adapter.hostfacts.device_facts import Accelerator, DeviceProcess
from vllm_adapter.hostfacts.facts import HostFacts, OsFacts
from vllm_adapter.hostfacts.software_facts import Line
from vllm_adapter_doctor.cli import facts as facts_command
from vllm_adapter_doctor.cli import report_option
from vllm_adapter_doctor.findings.bundle import make_bundle
from vllm_adapter_doctor.live.whole import collect_all
from vllm_adapter_doctor.report.document import SCHEMA, from_document, from_text, to_document
from vllm_adapter_doctor.report.private import masker, own_names, public
from vllm_adapter_doctor.report.read import parse_report, read_report

pytestmark = pytest.mark.static
BOX = HostFacts(
    os=OsFacts("Linux", "6.8.0", "x86_64"),
    accelerators=(
        Accelerator(
            "cuda",
            0,
            "nvidia-smi",
            bdf="0000:3b:00.0",
            processes=(DeviceProcess(7, "/home/jane/venv/bin/python"),),
        ),
    ),
    environment=(("LD_LIBRARY_PATH", "/home/jane/lib:/opt/lib"), ("VLLM_HOST_IP", "10.2.3.4")),
    report=(Line(1, "$ nvidia-smi"), Line(2, 'a "quoted" &quot;word&quot; <b>')),
)


@pytest.fixture
def box(monkeypatch):
    """This machine is BOX for the command line."""
    monkeypatch.setattr(report_option, "live_facts", lambda: BOX)


def test_a_document_says_its_format_and_reads_back():
    document = json.loads(json.dumps(to_document(BOX)))
    assert document["schema"] == "vllm-adapter/facts/1.0"
    assert from_document(document) == BOX


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])  # PowerShell's > is UTF-16
def test_every_report_may_be_such_a_document(encoding):
    text = json.dumps(to_document(BOX), indent=2)
    assert parse_report(text.encode(encoding)) == BOX


def test_a_newer_minor_version_is_read_with_a_warning():
    document = {
        **to_document(BOX),
        "schema": "vllm-adapter/facts/1.7",
        "new": 1,
        "os": {"name": "Linux", "release": "6.8.0", "machine": "x86_64", "newer": [2]},
    }
    with pytest.warns(NewerFormat, match=r"format 1\.7, newer than this release"):
        assert from_document(document) == BOX


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("vllm-adapter/facts/2.0", "format 2.0, and this release reads 1.x"),
        ("vllm-adapter/facts/0.9", "format 0.9, and this release reads 1.x"),
        ("vllm-adapter/facts/1", "not vllm-adapter/facts/1.0"),
        (3, "format 3, not"),
    ],
)
def test_another_format_is_refused_with_a_sentence(tag, said):
    with pytest.raises(InputError, match=said):
        from_document({**to_document(BOX), "schema": tag})


def test_an_unknown_key_of_our_own_version_is_a_mistake():
    with pytest.raises(InputError, match="/colour is an unknown key"):
        from_document({**to_document(BOX), "colour": "red"})


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"a": 1}', '{"a":' * 100_000, "{\0"])
def test_other_text_is_no_document(text):
    assert from_text(text) is None


@given(st.text(max_size=60))
def test_any_text_is_a_document_or_none(text):
    assert from_text(text) is None
    assert from_text("{" + text) is None


@pytest.mark.parametrize("facts", [HostFacts(), BOX], ids=["nothing", "box"])
def test_the_schema_admits_what_is_written(facts):
    Draft202012Validator(vllm_adapter_schemas.load("facts")).validate(to_document(facts))


def test_the_schema_admits_this_machine():
    facts = collect_all()
    document = json.loads(json.dumps(to_document(public(facts))))
    Draft202012Validator(vllm_adapter_schemas.load("facts")).validate(document)
    assert from_document(document) == public(facts)


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema", "vllm-adapter/facts/2.0"), ("os", []), ("packages", [["torch"]]), ("python", 3)],
)
def test_the_schema_and_the_reader_refuse_the_same(key, value):
    document = {**to_document(BOX), key: value}
    assert not Draft202012Validator(vllm_adapter_schemas.load("facts")).is_valid(document)
    with pytest.raises(InputError):
        from_document(document)


def test_facts_prints_json_whether_asked_or_not(box, monkeypatch, capsys):
    monkeypatch.setattr(facts_command, "host_facts", lambda args: BOX)
    outputs = []
    for words in (["facts"], ["facts", "--json"]):
        assert frame.main(words) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["schema"] == SCHEMA
    assert "jane" not in outputs[0]
    assert "10.2.3.4" not in outputs[0]


def test_facts_of_a_file_are_the_file(tmp_path, capsys):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(to_document(public(BOX))))
    assert frame.main(["facts", "--report", str(first)]) == 0
    second.write_text(capsys.readouterr().out)
    assert read_report(str(second)) == read_report(str(first))


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_facts_that_were_cut_are_no_healthy_machine(share, tmp_path, capsys):
    text = json.dumps(to_document(public(BOX)), indent=2)
    file = tmp_path / "box.json"
    for damaged in (text[: int(len(text) * share)], f"```\n{text[: int(len(text) * share)]}\n```"):
        file.write_text(damaged)
        assert frame.main(["doctor", "--report", str(file)]) == 2
        assert "facts is cut or damaged" in capsys.readouterr().err
    file.write_text(f"```\n{text}\n```")
    assert read_report(str(file)) == public(BOX)


def test_another_file_of_ours_is_no_report(tmp_path, capsys):
    file = tmp_path / "cpu-L2.json"
    file.write_text('{"schema": "vllm-adapter/certificate/1.0", "adapter": {}}')
    assert frame.main(["doctor", "--report", str(file)]) == 2
    assert "this is a certificate" in capsys.readouterr().err


def test_a_report_that_is_not_there_is_a_sentence(capsys):
    assert frame.main(["facts", "--report", "/nowhere/at/all"]) == 2
    assert "the report /nowhere/at/all cannot be read" in capsys.readouterr().err


def test_no_progress_where_stderr_is_no_terminal(capsys):
    report_option.live_facts()
    assert capsys.readouterr().err == ""


def test_a_terminal_sees_progress_and_its_end(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def collected(*, node_globs, on_progress):
        on_progress(1, 3)
        return BOX

    monkeypatch.setattr("vllm_adapter_doctor.live.whole.collect_all", collected)
    assert report_option.live_facts() == BOX
    said = capsys.readouterr().err
    assert "1 of 3 have answered" in said
    assert said.endswith("\r\x1b[K")


MASK = masker(("gpu-box-17", "jdoe"), "/data/people/jdoe")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/jane/x:/home/bob", "~/x:~"),
        ("/data/people/jdoe/models", "~/models"),
        ("on gpu-box-17 by jdoe", "on <hidden> by <hidden>"),
        ("gpu-box-170 and jdoes", "gpu-box-170 and jdoes"),
        ("Serial Number : 1654922012345", "Serial Number : <hidden>"),
        ('"serial_number": "ABC123456"', '"serial_number": "<hidden>"'),
        ("| Serial Number | PK0123456 |", "| Serial Number | <hidden> |"),
        ("Serial Number : N/A", "Serial Number : N/A"),
        ("10.0.0.7:29500", "<hidden>:29500"),
        ("http://192.168.1.20/x", "http://<hidden>/x"),
        ("127.0.0.1:8000", "127.0.0.1:8000"),
        ("fe80::1ff:fe23:4567:890a", "<hidden>"),
        ("aa:bb:cc:dd:ee:ff", "<hidden>"),
        # what only looks like an address
        ("Driver Version: 3.7.0.7", "Driver Version: 3.7.0.7"),
        (
            "[conda] nvidia-cublas-cu12  12.4.5.8  pypi_0",
            "[conda] nvidia-cublas-cu12  12.4.5.8  pypi_0",
        ),
        ("VBIOS Version 96.00.89.00.01", "VBIOS Version 96.00.89.00.01"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0 Off", "00000000:3B:00.0 Off"),
        ("GPU-01234567-89ab-cdef-0123-456789abcdef", "GPU-01234567-89ab-cdef-0123-456789abcdef"),
        ("2026-11-29 23:59:57.123", "2026-11-29 23:59:57.123"),
        ("0-31,64-95  0  N/A", "0-31,64-95  0  N/A"),
    ],
)
def test_what_is_masked_and_what_is_not(text, expected):
    assert MASK(text) == expected


@given(st.text(alphabet="ab01.:-/ \"'|=home", max_size=60))
def test_masking_twice_is_masking_once(text):
    assert MASK(MASK(text)) == MASK(text)


def test_common_words_are_nobody_s_name():
    environ = {"USER": "ubuntu", "HOSTNAME": "vllm", "LOGNAME": "annabel", "SUDO_USER": "x"}
    names = own_names(environ)
    assert "annabel" in names
    assert not {"ubuntu", "vllm", "x", ""} & set(names)


def test_public_facts_keep_what_a_diagnosis_needs():
    shown = public(BOX, MASK)
    assert shown.accelerators[0].bdf == "0000:3b:00.0"
    assert shown.accelerators[0].processes[0].name == "~/venv/bin/python"
    assert shown.variable("LD_LIBRARY_PATH") == "~/lib:/opt/lib"
    assert shown.report == BOX.report
    assert public(shown, MASK) == shown


def test_a_bundle_is_written_once_and_is_a_report(box, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VA_FALLBACK", "error")
    monkeypatch.setenv("VA_HUB_TOKEN", "abcdefgh")
    file = tmp_path / "bundle.json"
    assert frame.main(["doctor", "--bundle", str(file)]) == 0
    text = file.read_text()
    raw = json.loads(text)
    assert raw["schema"] == "vllm-adapter/bundle/1.0"
    assert raw["settings"] == {"VA_FALLBACK": "error"}
    assert raw["packages"]["vllm-adapter-core"]
    assert "cpu" in [record["name"] for record in raw["adapters"]]
    assert raw["command"]
    assert raw["python"]["version"] == sys.version
    assert raw["time"].endswith("+00:00")
    assert "abcdefgh" not in text
    assert "jane" not in text
    assert read_report(str(file)) == public(BOX)
    capsys.readouterr()

    assert frame.main(["doctor", "--bundle", str(file)]) == 2
    assert "is there already and was not touched" in capsys.readouterr().err
    assert file.read_text() == text
    assert frame.main(["doctor", "--bundle", str(file), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"bundle": str(file)}
    assert [path.name for path in tmp_path.iterdir()] == ["bundle.json"]


def test_a_bundle_in_no_folder_is_a_sentence(box, tmp_path, capsys):
    assert frame.main(["doctor", "--bundle", str(tmp_path / "no" / "b.json")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_token_on_the_command_line_is_no_part_of_a_bundle(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["vllm-adapter", "--hf-token", "hf_abcdefghijklmnopqrstuvwx"])
    assert "abcdefghijkl" not in json.dumps(make_bundle(BOX))
