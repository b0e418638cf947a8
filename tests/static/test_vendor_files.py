"""A vendor is a file: each is held against its schema, and one more costs no line of code."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import vllm_adapter_schemas
import vllm_adapter_vendors
from vllm_adapter.cli.main import main
from vllm_adapter.engine.registries import reset
from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts import vendor_files
from vllm_adapter.hostfacts.known_vendors import (
    VENDORS,
    by_alias,
    how_to_serve,
    install_command,
    node_globs,
)
from vllm_adapter_doctor.findings.rule import ExaminedHost
from vllm_adapter_doctor.live.health import tools_of
from vllm_adapter_doctor.live.packages import read_environment
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2]
FILES = {name: json.loads(raw) for name, raw in vllm_adapter_vendors.vendor_files()}
SCHEMA = Draft202012Validator(
    vllm_adapter_schemas.load("vendor"), format_checker=Draft202012Validator.FORMAT_CHECKER
)
QUASAR = {
    "schema": "vllm-adapter/vendor/1.0",
    "name": "quasar",
    "vendor": "Quasar",
    "aliases": ["quasar"],
    "rank": 900,
    "adapter": False,
    "source": "invented",
    "label": "QPU",
    "vllm_plugin": {"package": "vllm-q", "install": "pip install vllm-q", "source": "invented"},
    "pci": {"vendor": "fff7", "classes": ["0x1200"], "products": {"0001": "Quasar Q1"}},
    "torch": {"type": "qpu", "packages": ["torch-qpu"], "faces": ["qpu"]},
    "words": {"device": r"\bQuasar\b|\bQ1-", "bus": r"\bQuasar\b"},
    "nodes": {"numbered": ["/dev/qpu{n}"], "control": ["/dev/qpuctl"]},
    "visible": {"variable": "QPU_VISIBLE_DEVICES"},
    "list_command": "q-smi -l",
    "tools": [
        {
            "program": "q-smi",
            "health": [""],
            "output": {
                "anchor": "Q-SMI",
                "head": r"\bQ-SMI v\d",
                "versions": [{"component": "qdrv", "pattern": r"driver (\d+(?:\.\d+)+)(?=\s|\|)"}],
                "rows": {
                    "first": r"^\|\s*(?P<index>\d+)\s+(?P<name>Q1\S*)\s*\|\s*(?P<bdf>[0-9a-f:.]+)",
                    "second": r"(?P<temperature>\d+) C\s+(?P<power>\d+) W\s*\|"
                    r"\s*(?P<used>\d+)/(?P<total>\d+) MiB\s*\|\s*(?P<status>\w+)",
                    "process": r"^\|\s*(?P<index>\d+)\s*\|\s*(?P<pid>\d+)\s*\|"
                    r"\s*(?P<name>\S+)\s*\|\s*(?P<mib>\d+) MiB",
                },
            },
        }
    ],
    "drivers": {"proof": ["qdrv"], "modules": {"qdrv": "qdrv"}},
    "links": {"fabrics": [{"pattern": r"QL(\d+)", "name": "QLink"}]},
    "container": {
        "items": [
            {
                "kind": "device",
                "value": "/dev/qpu{n}",
                "why": "one a device",
                "source": "invented",
            },
            {"kind": "device", "value": "/dev/qpuctl", "why": "control", "source": "invented"},
            {"kind": "shared"},
        ],
        "resources": [{"key": "quasar.example/qpu", "source": "invented"}],
    },
}
LSPCI = "".join(
    f"0000:{bus}:00.0 Processing accelerators [1200]: Quasar Device [fff7:0001] (rev 01)\n"
    for bus in ("1a", "3b")
)
TABLE = """\
+-------------------------------------------------------------+
| Q-SMI v1.4                        driver 2.7.1              |
+----------------------+--------------------+-----------------+
| 0  Q1-64             | 0000:1a:00.0       |                 |
|    41 C   120 W      | 10/65536 MiB       | Healthy         |
| 1  Q1-64             | 0000:3b:00.0       |                 |
|    90 C   300 W      | 60000/65536 MiB    | {status}        |
+----------------------+--------------------+-----------------+
| Processes                                                   |
| 1   | 4242     | python                     | 59000 MiB     |
+-------------------------------------------------------------+
"""


@pytest.fixture
def vendors(fresh, monkeypatch):
    """A function that puts other files in the place of the vendors' own."""

    def put(*files):
        monkeypatch.setattr(vllm_adapter_vendors, "vendor_files", lambda: iter(files))
        reset()

    return put


@pytest.fixture
def quasar(vendors, monkeypatch):
    """A box whose vendor is one more file."""
    for name in ("VA_ADAPTERS", "VA_FALLBACK"):
        monkeypatch.delenv(name, raising=False)
    vendors(*vllm_adapter_vendors.vendor_files(), ("quasar", json.dumps(QUASAR).encode()))


def run(capsys, tmp_path, text, *words):
    """(exit code, JSON) of a command on a report."""
    file = tmp_path / "report.txt"
    file.write_text(text)
    code = main([*words, "--json", "--report", str(file)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_its_schema_says(name):
    assert [error.message for error in SCHEMA.iter_errors(FILES[name])] == []
    assert FILES[name]["name"] == name


def test_an_invented_vendors_file_is_good_too():
    assert [error.message for error in SCHEMA.iter_errors(QUASAR)] == []


def test_ranks_and_names_are_of_one_vendor_each():
    ranks = [raw["rank"] for raw in FILES.values()]
    assert len(set(ranks)) == len(ranks)
    names = [alias for raw in FILES.values() for alias in raw["aliases"]]
    assert len(set(names)) == len(names)
    ids = [raw["pci"]["vendor"] for raw in FILES.values() if "vendor" in raw["pci"]]
    assert len(set(ids)) == len(ids)


def test_only_adapters_that_exist_are_recommended():
    ours = {path.name for path in (ROOT / "adapters").iterdir() if path.is_dir()}
    assert {name for name, raw in FILES.items() if raw["adapter"]} == ours & set(FILES)
    for name, row in VENDORS.items():
        if row.has_adapter:
            assert (
                install_command(name) == f"pip install vllm-adapter-{name}" == how_to_serve(name)
            )
        else:
            assert install_command(name) is None
            assert "vllm-adapter-" not in how_to_serve(name)
    assert how_to_serve("rebellions").endswith("vllm-rbln: pip install vllm-rbln")
    assert "no plug-in" in how_to_serve("tenstorrent")


def test_readings_are_known_words():
    readings = {
        *("index", "name", "bdf", "uuid", "status", "load", "temperature", "power", "cap"),
        *(
            "used",
            "total",
            "size",
            "driver",
            "die",
            "memory",
            "partition",
            "uncorrectable",
            "node",
        ),
    }
    keyed = {"arch", "compute mode", "memory mode", "maker"} | readings
    for raw in FILES.values():
        for tool in raw.get("tools", ()):
            output = tool.get("output", {})
            rows = output.get("rows", {})
            own = [rows.get("first", ""), rows.get("second", ""), *output.get("lists", ())]
            for pattern in filter(None, own):
                assert set(re.compile(pattern).groupindex) <= readings, raw["name"]
            if "process" in rows:
                groups = set(re.compile(rows["process"]).groupindex) - {"die"}
                assert groups - {"mib", "size"} == {"index", "pid", "name"} < groups
            for reading in output.get("keyed", {}).get("readings", ()):
                assert reading.removesuffix(" bytes").removesuffix(" MiB") in keyed, raw["name"]
            for block in output.get("blocks", ()):
                assert {key.partition(" ")[0] for key in block["keys"].values()} <= readings
            for version in output.get("versions", ()):
                assert re.compile(version["pattern"]).groups == 1, raw["name"]


def test_a_new_vendor_is_seen_on_the_bus(quasar, capsys, tmp_path):
    code, found = run(capsys, tmp_path, LSPCI, "devices")
    assert code == 0
    assert [(one["adapter"], one["name"], one["bdf"]) for one in found["devices"]] == [
        ("quasar", "Quasar Q1", "0000:1a:00.0"),
        ("quasar", "Quasar Q1", "0000:3b:00.0"),
    ]
    assert all("vllm-q: pip install vllm-q" in json.dumps(one) for one in found["devices"])


def test_a_new_vendors_tool_is_read(quasar):
    facts = parse_report(TABLE.format(status="Healthy"))
    first, second = facts.accelerators
    assert (first.vendor, first.source, first.name) == ("quasar", "q-smi", "Q1-64")
    assert (second.bdf, second.memory_total_bytes) == ("0000:3b:00.0", 65536 << 20)
    assert (second.health.temperature_c, second.health.power_w) == (90, 300)
    assert (first.health.status, first.processes) == ("Healthy", ())
    assert [one.pid for one in second.processes] == [4242]
    assert [(one.component, one.version) for one in facts.drivers] == [("qdrv", "2.7.1")]
    cut = parse_report(TABLE.format(status="Healthy").split("driver 2.7")[0] + "driver 2.7")
    assert cut.drivers == ()


def test_a_new_vendors_boards_of_two_chips_are_read(vendors):
    rows = {
        "first": r"^\|\s*(?P<index>\d+)\s+(?P<name>Q2-\w+)\s*\|\s*(?P<status>\w+)\s*\|"
        r"\s*(?P<power>\d+)\s+(?P<temperature>\d+)",
        "second": r"^\|\s*(?P<die>\d+)\s*\|\s*(?P<bdf>[0-9a-f:.]+)\s*\|\s*(?P<load>\d+)"
        r"\s+(?P<memory>.*)$",
        "boards": {"columns": r"DDR\(MB\)(\s+HBM)?", "arch": r"(Q2)-.*"},
    }
    tool = {"program": "q-smi", "output": {"anchor": "Q-SMI", "head": "Q-SMI", "rows": rows}}
    raw = QUASAR | {"tools": [tool]}
    assert [error.message for error in SCHEMA.iter_errors(raw)] == []
    vendors(("quasar", json.dumps(raw).encode()))
    facts = parse_report(
        "Q-SMI v2\n| board | state | W C DDR(MB) HBM\n"
        "| 4  Q2-X | OK | 90 40 |\n| 0 | 0000:1a:00.0 | 7 1 / 2  30 / 64 |\n"
        "| 4  Q2-X | OK | 91 41 |\n| 1 | 0000:1b:00.0 | 8 1 / 2  31 / 64 |\n"
    )
    found = [(one.card, one.die, one.logical, one.arch) for one in facts.accelerators]
    assert found == [(4, 0, 0, "q2"), (4, 1, 1, "q2")]
    assert [one.memory_used_bytes for one in facts.accelerators] == [30 << 20, 31 << 20]


def test_a_new_vendors_devices_are_chosen_and_refused(quasar, capsys, tmp_path):
    code, found = run(capsys, tmp_path, TABLE.format(status="Failed"), "devices")
    assert code == 0
    assert [one["id"] for one in found["devices"]] == ["quasar:0", "quasar:1"]
    text = json.dumps(found)
    assert "its health is Failed" in text and "q-smi -l" in text
    assert "QPU_VISIBLE_DEVICES" in json.dumps(
        run(capsys, tmp_path, TABLE, "devices", "--role", "main=quasar:0")[1]
    )


def test_a_new_vendors_container_and_doctor(quasar, capsys, tmp_path):
    text = TABLE.format(status="Fault")
    code, found = run(capsys, tmp_path, text, "container")
    assert code == 0
    assert {"--device /dev/qpu0", "--device /dev/qpuctl"} <= {
        flag["flag"] for flag in found["flags"]
    }
    code, pod = run(capsys, tmp_path, text, "container", "--engine", "k8s")
    assert code == 0 and "quasar.example/qpu" in json.dumps(pod)
    code, said = run(capsys, tmp_path, text, "doctor")
    assert code == 1
    assert any("Fault" in json.dumps(one) for one in said["findings"])
    code, said = run(capsys, tmp_path, TABLE.format(status="Healthy"), "doctor")
    assert "Fault" not in json.dumps(said)


def test_a_new_vendors_software_variables_and_nodes_are_known(quasar, capsys, tmp_path):
    text = TABLE.format(status="Healthy") + (
        "\nQPU_VISIBLE_DEVICES=1\n[pip3] torch-qpu==2.1\n[pip3] vllm-q==0.2\n"
        "crw-rw---- 1 root render 240, 0 Jan  1 10:00 /dev/qpuctl\n"
        "crw-rw---- 1 root render 240, 1 Jan  1 10:00 /dev/qpu0\n"
    )
    facts = parse_report(text)
    assert facts.variable("QPU_VISIBLE_DEVICES") == "1"
    assert {"torch-qpu": "2.1", "vllm-q": "0.2"}.items() <= dict(facts.packages).items()
    assert [node.path for node in facts.nodes] == ["/dev/qpu0", "/dev/qpuctl"]
    assert ExaminedHost(facts).other_runtime == "quasar"
    _, found = run(capsys, tmp_path, text, "devices")
    assert "QPU_VISIBLE_DEVICES=1 hides it" in json.dumps(found["devices"][0])
    assert "hides it" not in json.dumps(found["devices"][1])


def test_a_new_vendors_nodes_and_tool_are_looked_for_on_a_machine(quasar):
    assert {"/dev/qpu[0-9]*", "/dev/qpuctl"} <= set(node_globs())
    assert [(tool.program, tool.health) for tool in tools_of("quasar")] == [("q-smi", ("",))]
    assert read_environment({"QPU_VISIBLE_DEVICES": "0"}) == (("QPU_VISIBLE_DEVICES", "0"),)


def test_the_vendors_word_is_in_the_topology(quasar, capsys, tmp_path):
    _, found = run(capsys, tmp_path, TABLE.format(status="Healthy"), "topology")
    assert [one["label"] for one in found["devices"]] == ["QPU0", "QPU1"]


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"name": "other", "rank": 1}', b'{"name": "bad"}'])
def test_a_broken_file_is_one_sentence(vendors, raw):
    vendors(("bad", raw))
    with pytest.raises(InputError, match=r"the vendor file bad\.json"):
        vendor_files.documents()


def test_the_files_are_read_at_the_first_question_and_once(fresh, monkeypatch):
    count = 0
    every = list(vllm_adapter_vendors.vendor_files())

    def counted():
        nonlocal count
        count += 1
        return iter(every)

    monkeypatch.setattr(vllm_adapter_vendors, "vendor_files", counted)
    reset()
    assert count == 0
    assert VENDORS["cuda"].name == "NVIDIA" and by_alias()["amd"] == "rocm"
    assert count == 1


_TORCH_TYPES = ("kind",)
"""Names of variables that hold torch's device type, which CUDA and ROCm share."""


def test_no_code_asks_which_vendor_it_is():
    """`vendor == "..."` is a field of the vendor's file; the doctor's rules are held elsewhere."""
    names = {*VENDORS, "nvidia", "amd", "intel", "huawei", "habana"}
    core = ROOT / "core/src/vllm_adapter"
    found = []
    for file in sorted(core.rglob("*.py")):
        part = file.relative_to(core).as_posix()
        if part.startswith(("engine/", "doctor/rules/")):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            words = {
                leaf.value
                for side in sides
                for leaf in ast.walk(side)
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
            }
            types = any(isinstance(side, ast.Name) and side.id in _TORCH_TYPES for side in sides)
            if words & names and not types:
                found.append(f"{part}:{node.lineno}: {ast.unparse(node)}")
    assert found == []
