"""`vllm-adapter validate`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import vllm_adapter
import vllm_adapter_cpu
import vllm_adapter_doctor
from vllm_adapter.cli.checks import check_document
from vllm_adapter.cli.convert import convert
from vllm_adapter.cli.main import main
from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.contract.hooks import NOT_CALLED
from vllm_adapter.contract.hookspecs import HOOKS
from vllm_adapter.errors import InputError

pytestmark = pytest.mark.static

DATA = Path(__file__).parents[1] / "data"
OLD = sorted(DATA.glob("*.capability.json"))
CORE = Path(vllm_adapter.__file__).parent
DOCTOR = Path(vllm_adapter_doctor.__file__).parent
CPU = Path(vllm_adapter_cpu.__file__).parent
MANIFEST = {
    "schema": "vllm-adapter/manifest/1.0",
    "name": "acme",
    "vendor": "Acme",
    "api": ">=1.0,<2",
}
DESCRIPTOR = {
    "schema": "vllm-adapter/capability/1.0",
    "identity": {"vendor": "Acme", "arch": "a1"},
    "memory": {"bandwidth_gb_s": 3, "source": {"kind": "measured"}},
}
CERTIFICATE = {
    "schema": "vllm-adapter/certificate/1.0",
    "adapter": {
        "name": "acme",
        "dist": "vllm-adapter-acme",
        "version": "1.0",
        "files": {"kernels.py": "0" * 64},
        "editable": False,
        "emulated": False,
    },
    "level_asked": "L2",
    "level_reached": None,
    "grade": "release",
    "emulated": False,
    "badge": None,
    "created": "2026-01-31T12:00:00Z",
    "suite": {"version": "0.1.0", "files_sha256": "0" * 64, "mustpass_sha256": "0" * 64},
    "descriptor": {"path": "capabilities/a1.json", "sha256": "0" * 64},
    "host": {"machine": "x86_64", "os": "Linux 6.1", "cpu": None, "pci": []},
    "device": {"name": "Acme 1", "torch": "acme:0", "arch": "a1"},
    "environment": {"python": "3.12.1", "core": "0.1.0", "torch": "2.12.0"},
    "settings": {"VA_FALLBACK": "error"},
    "seed": 7,
    "headline": "L1 on Acme 1",
    "coverage": {"rms_norm": {"float16": "pass", "float32": "not_declared"}},
    "counts": {"pass": 1, "fail": 0, "not_declared": 1, "waived": 1, "blocked": 0},
    "rules": [
        {
            "rule": "L2.rms_norm.correct",
            "level": "L2",
            "preview": False,
            "cases": [
                {
                    "case": "float16-64",
                    "outcome": "pass",
                    "seconds": 0.1,
                    "share": 0.25,
                    "pointer": "/operators/rms_norm",
                    "message": None,
                    "waiver": None,
                    "blocked_by": None,
                },
                {
                    "case": "float16-65",
                    "outcome": "waived",
                    "seconds": 0.1,
                    "share": None,
                    "pointer": "/operators/rms_norm",
                    "message": "expected 1, saw nan",
                    "waiver": {"issue": "acme#1", "expires": "2026-12-31"},
                    "blocked_by": None,
                },
            ],
            "not_declared": [
                {"case": "float32-64", "pointer": "/operators/rms_norm/dtypes", "reason": "dtype"}
            ],
        }
    ],
    "digest": "0" * 64,
}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return str(path)


def faults(capsys):
    return [f for file in json.loads(capsys.readouterr().out)["files"] for f in file["faults"]]


def test_an_installed_adapter_and_its_folder_are_good(capsys):
    assert main(["validate", "cpu"]) == 0
    by_name = capsys.readouterr().out
    assert main(["validate", str(CPU)]) == 0
    assert capsys.readouterr().out == by_name
    assert by_name.count(": capability, ok") == len(list(CPU.glob("capabilities/*.json")))
    assert ": manifest, ok" in by_name


@pytest.mark.parametrize("document", [MANIFEST, DESCRIPTOR, CERTIFICATE])
def test_each_kind_is_detected(tmp_path, capsys, document):
    assert main(["validate", write(tmp_path / "x.json", document), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert f"vllm-adapter/{found['files'][0]['kind']}/1.0" == document["schema"]


def test_every_fault_has_pointer_expectation_and_description(tmp_path, capsys):
    bad = DESCRIPTOR | {
        "memory": {"bandwidth_gb": 3, "capacity_bytes": "x"},
        "operators": {"linear": [{"support": "versioned"}], "rms_norm": {"support": "yes"}},
        "match": [{"bus": "x"}],
    }
    path = write(tmp_path / "x.json", bad)
    assert main(["validate", path, "--json"]) == 1
    found = faults(capsys)
    assert [f["pointer"] for f in found] == [
        "/match/0/bus",
        "/memory/bandwidth_gb",
        "/memory/capacity_bytes",
        "/operators/linear/0/dtypes",
        "/operators/linear/0/first_version",
        "/operators/linear/0/run",
        "/operators/rms_norm/support",
    ]
    assert all(f["expected"] and f["description"] for f in found)
    assert found[1]["expected"] == "the key bandwidth_gb_s"
    assert found[1]["description"].startswith("Peak memory bandwidth")
    assert found[2]["expected"] == "an integer or null"
    assert found[5]["description"].startswith("module:function that runs the operator;")
    assert main(["validate", path]) == 1
    text = capsys.readouterr().out
    assert ": capability, 7 faults" in text
    assert "/memory/capacity_bytes: got 'x', expected an integer or null\n    Memory of" in text


def test_a_package_s_descriptors_are_checked_with_it(tmp_path, capsys):
    write(tmp_path / "adapter.json", MANIFEST | {"name": "if"})
    run = {"support": "full", "dtypes": ["float16"], "run": "kernels.rms_norm"}
    write(tmp_path / "capabilities/a.json", DESCRIPTOR | {"operators": {"rms_norm": run}})
    write(tmp_path / "capabilities/b.json", DESCRIPTOR)
    assert main(["validate", str(tmp_path), "--json"]) == 1
    assert [f["pointer"] for f in faults(capsys)] == ["/name", "/operators/rms_norm/run"]


def test_rules_that_the_schema_cannot_say(tmp_path, capsys):
    entry = {"support": "full", "dtypes": ["float16"], "run": "k:a"}
    twins = [entry, entry | {"run": "k:b"}, entry | {"run": "k:c", "variant": "c"}, entry]
    bad = DESCRIPTOR | {
        "operators": {"rms_norm": twins},
        "sources": {"/memory/bandwith": {"kind": "assumed"}, "/memory": {"kind": "assumed"}},
    }
    assert main(["validate", write(tmp_path / "x.json", bad), "--json"]) == 1
    assert [f["pointer"] for f in faults(capsys)] == [
        "/sources/~1memory~1bandwith",
        "/operators/rms_norm/1/variant",
    ]


@pytest.mark.filterwarnings("default::vllm_adapter.errors.NewerFormat")
def test_unknown_keys_of_a_newer_minor_are_warned_of(tmp_path, capsys):
    newer = DESCRIPTOR | {"schema": "vllm-adapter/capability/1.3", "colour": 1}
    path = write(tmp_path / "x.json", newer)
    assert main(["validate", path]) == 0
    newer, key = capsys.readouterr().err.splitlines()
    assert newer.startswith("warning: ") and "newer than 1.0" in newer
    assert "/colour is of a newer" in key


@pytest.mark.parametrize(
    ("edit", "pointer"),
    [
        ({"emulated": True, "badge": "L2"}, "/badge"),
        ({"grade": "development", "badge": "L2"}, "/badge"),
        ({"level_reached": "L6"}, "/level_reached"),
        ({"digest": "xyz"}, "/digest"),
        ({"created": "yesterday"}, "/created"),
        ({"settings": {"PATH": "x"}}, "/settings/PATH"),
        ({"coverage": {"rms_norm": {"float16": "skipped"}}}, "/coverage/rms_norm/float16"),
        ({"extra": 1}, "/extra"),
    ],
)
def test_certificates_are_closed_where_it_matters(edit, pointer):
    assert [f.pointer for f in check_document(CERTIFICATE | edit, "x").faults] == [pointer]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x7fELF\x02\x01\x01\xff\xfe", "not UTF-8"),
        (b"", "is not JSON"),
        (b"{'a': 1}", "is not JSON"),
        (b"[" * 100_000, "nested|is not JSON"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "nested more than 64"),
        (b"[]", "no file of vllm-adapter"),
        (b'{"schema": 3}', 'its "schema" is 3'),
        (b'{"schema": "vllm-adapter/plan/1.0"}', "no file of vllm-adapter"),
        (b'{"schema": "vllm-adapter/manifest/2.0"}', "this release reads"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, content, says):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert main(["validate", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 2
    assert any(part in err for part in says.split("|"))


def test_missing_paths_and_names(tmp_path, capsys):
    empty = tmp_path / "empty"
    (empty / "src" / "pkg").mkdir(parents=True)
    for text, says in (
        (str(tmp_path / "no.json"), "there is no file or folder"),
        ("cpuu", "did you mean cpu?"),
        ("x" * 5000, "is no path|there is no file|no adapter"),
        ("a\0b", "is no path|there is no file"),
        (str(empty), "has no adapter.json"),
    ):
        assert main(["validate", text]) == 2
        err = capsys.readouterr().err
        assert any(part in err for part in says.split("|")), err
    write(empty / "src" / "pkg" / "adapter.json", MANIFEST)
    assert main(["validate", str(empty)]) == 2
    assert f"did you mean {empty / 'src' / 'pkg'}?" in capsys.readouterr().err


@pytest.mark.parametrize("path", OLD, ids=lambda p: p.name)
def test_the_older_files_convert_with_every_figure_assumed(path, capsys):
    assert main(["validate", "--convert", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    raw, old = json.loads(out), json.loads(path.read_text())
    assert check_document(raw, "x").faults == ()
    cap = parse_capability(raw, "x")
    assert cap.identity.arch == path.name.partition(".")[0]
    assert (
        cap.compute_units["float16"].throughput_gflops
        == (old["compute_units"]["fp16"]["throughput_gflops"])
    )
    assert cap.memory.bandwidth_gb_s == old["memory"]["bandwidth_gb_s"]
    for section in ("compute_units", "memory", "dma"):
        for name, value in raw[section].items():
            for pointer in [f"/{section}/{name}"] + (
                [f"/{section}/{name}/{k}" for k in value] if isinstance(value, dict) else []
            ):
                source = cap.source(pointer)
                assert source.kind == "assumed" and path.name in source.reference


def test_there_are_two_older_files():
    assert len(OLD) == 2


def test_what_is_not_converted_is_reported(tmp_path, capsys):
    old = {
        "device_type": "acme",
        "colour": "red",
        "compute_units": {"fp16": {"warps": 4}, "fp8": {"max_threads": 1}},
        "memory": {"kind": "hbm", "alignment_bytes": 64},
    }
    path = write(tmp_path / "acme.json", old)
    assert main(["validate", "--convert", path, "--json"]) == 0
    out, err = capsys.readouterr()
    lost = ["/colour", "/compute_units/fp16/warps", "/compute_units/fp8", "/memory/kind"]
    assert json.loads(out)["not_converted"] == lost
    assert all(pointer in err for pointer in lost)


def test_the_output_is_whole_or_absent(tmp_path, capsys):
    target = tmp_path / "new.json"
    good = str(OLD[0])
    assert main(["validate", "--convert", good, "--output", str(target)]) == 0
    assert check_document(json.loads(target.read_text()), "x").faults == ()
    before = target.read_text()
    bad = write(tmp_path / "bad.json", {"device_type": "x", "memory": {"bandwidth_gb_s": "fast"}})
    assert main(["validate", "--convert", bad, "--output", str(target)]) == 1
    assert "/memory/bandwidth_gb_s" in capsys.readouterr().out
    assert target.read_text() == before
    for place in (tmp_path / "no" / "x.json", tmp_path, "/dev/null"):
        assert main(["validate", "--convert", good, "--output", str(place)]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.json", "new.json"]


@pytest.mark.parametrize("words", [["--output", "x"], ["--convert", "second.json"]])
def test_options_that_do_not_go_together(words, capsys):
    assert main(["validate", str(OLD[0]), *words]) == 2
    assert "hint:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "raw", [[], 3, {}, {"device_type": 3}, DESCRIPTOR, {"device_type": "x", "memory": []}]
)
def test_what_is_no_older_file_is_refused(raw):
    with pytest.raises(InputError):
        convert(raw, "x.json")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["validate", str(pipe)]) == 2
    assert "it is not a regular file" in capsys.readouterr().err


ENTRY = {"support": "full", "dtypes": ["float16"]}


def package_with(tmp_path, operators, kernels, plugin=None):
    """A package folder that is not installed."""
    package = tmp_path / "vllm_adapter_acme"
    (package / "capabilities").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text(kernels)
    write(package / "adapter.json", MANIFEST | ({"plugin": plugin} if plugin else {}))
    write(package / "capabilities" / "a1.json", DESCRIPTOR | {"operators": operators})
    return package


def test_paths_of_a_package_are_looked_for_without_importing_it(tmp_path, capsys):
    good = ENTRY | {"run": "vllm_adapter_acme.kernels:rms_norm"}
    wrong = [
        ENTRY | {"run": "vllm_adapter_acme.kernels:linaer"},
        ENTRY | {"run": "vllm_adapter_acme.kernel:linear", "variant": "b"},
    ]
    kernels = "raise SystemExit('imported')\ndef rms_norm(): ...\n"
    package = package_with(tmp_path, {"rms_norm": good}, kernels)
    assert main(["validate", str(package)]) == 0
    descriptor = package / "capabilities" / "a1.json"
    write(descriptor, DESCRIPTOR | {"operators": {"rms_norm": good, "linear": wrong}})
    capsys.readouterr()
    assert main(["validate", str(descriptor), "--json"]) == 1
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert [fault["pointer"] for fault in file["faults"]] == [
        "/operators/linear/0/run",
        "/operators/linear/1/run",
    ]
    assert "no top-level name linaer" in file["faults"][0]["got"]
    assert "no module vllm_adapter_acme.kernel" in file["faults"][1]["got"]


def test_a_plugin_path_and_a_module_that_is_not_python_are_faults(tmp_path, capsys):
    entry = ENTRY | {"run": "vllm_adapter_acme.kernels:rms_norm"}
    package = package_with(
        tmp_path, {"rms_norm": entry}, "def rms_norm(:\n", "vllm_adapter_acme.plugin:Plugin"
    )
    assert main(["validate", str(package)]) == 1
    out = capsys.readouterr().out
    assert "/plugin: got 'vllm_adapter_acme.plugin:Plugin'" in out
    assert "kernels.py:1 is not Python: " in out


PLUGIN = """
from vllm_adapter.contract import hookspecs

class Plugin:
{methods}
    def helper(self):
        pass
"""


def plugin_of(*hooks):
    methods = "".join(f"    @hookspecs.hookimpl\n    def {h}(self): ...\n" for h in hooks)
    return PLUGIN.format(methods=methods)


def test_hooks_that_nothing_calls_are_named_and_a_plugin_of_them_alone_is_refused(
    tmp_path, capsys
):
    package = package_with(tmp_path, {}, "", "vllm_adapter_acme.plugin:Plugin")
    (package / "plugin.py").write_text(plugin_of("describe", "communicator"))
    assert main(["validate", str(package)]) == 0
    assert "not called by this release: communicator (waits for collective operations)" in (
        capsys.readouterr().err
    )
    (package / "plugin.py").write_text(plugin_of("communicator", "vllm_platform"))
    assert main(["validate", str(package), "--json"]) == 1
    files = json.loads(capsys.readouterr().out)["files"]
    (fault,) = next(f for f in files if f["kind"] == "manifest")["faults"]
    assert (fault["pointer"], fault["expected"]) == ("/plugin", "a hook that this release calls")
    (package / "plugin.py").write_text(plugin_of("describe"))
    assert main(["validate", str(package)]) == 0
    assert "not called" not in capsys.readouterr().err


def test_the_hooks_that_are_not_called_are_those_that_nothing_calls():
    files = [file for folder in (CORE, DOCTOR) for file in folder.rglob("*.py")]
    source = "\n".join(file.read_text("utf-8") for file in files)
    called = {hook for hook in HOOKS if re.search(rf'\.call\(\s*"{hook}"', source)}
    assert called == set(HOOKS) - set(NOT_CALLED) and set(NOT_CALLED) < set(HOOKS)


def test_every_file_is_reported_and_one_document_printed(tmp_path, capsys):
    good = write(tmp_path / "good.json", DESCRIPTOR)
    bad = write(tmp_path / "bad.json", DESCRIPTOR | {"colour": 1})
    (tmp_path / "none.json").write_text("{")
    words = ["validate", good, str(tmp_path / "none.json"), str(tmp_path / "absent"), bad]
    assert main([*words, "--json"]) == 2
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [Path(file["path"]).name for file in document["files"]] == ["good.json", "bad.json"]
    assert len(document["not_checked"]) == 2 and not document["ok"]
    assert err.count("error: ") == 2
    assert main(words) == 2
    assert "bad.json: capability, 1 fault" in capsys.readouterr().out


def test_a_certificate_is_checked_by_its_schema_only_and_says_so(tmp_path, capsys):
    assert main(["validate", write(tmp_path / "c.json", CERTIFICATE)]) == 0
    assert "ok; schema only: `vllm-adapter verify` judges its claims" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["my notes", "{}", '{"schema": "vllm-adapter/manifest/1.0"}'])
def test_convert_replaces_no_file_but_a_descriptor(tmp_path, text, capsys):
    output = tmp_path / "out.json"
    output.write_text(text)
    words = ["validate", "--convert", str(OLD[0]), "--output", str(output)]
    assert main(words) == 2
    assert "is there already" in capsys.readouterr().err and output.read_text() == text
    output.unlink()
    assert main(words) == 0
    assert main(words) == 0
