"""An adapter whose device is a C library: its probe, VA_LIBRARY, and what `list` shows of it."""

from __future__ import annotations

import json
import shutil

import pytest

pytestmark = pytest.mark.sim


@pytest.fixture
def acme(site):
    """acme(library, **manifest) installs an adapter with a copy of that library."""

    def install(library=None, **manifest):
        package = site.make("acme", device={"library": "lib/libacme.so"}, **manifest)
        (package / "capabilities").mkdir()
        for arch in ("f1", "sim48"):
            raw = {
                "schema": "vllm-adapter/capability/1.0",
                "identity": {"vendor": "Acme", "arch": arch, "torch_type": "acme"},
                "match": [{"arch": [arch]}],
                "operators": {
                    "rms_norm": {
                        "support": "full",
                        "dtypes": ["float32"],
                        "form": "kernel",
                        "run": "library:rms_norm",
                    }
                },
            }
            (package / "capabilities" / f"{arch}.json").write_text(json.dumps(raw))
        (package / "lib").mkdir()
        if library is not None:
            shutil.copy(library, package / "lib" / "libacme.so")
        return package

    return install


@pytest.fixture
def listed(site):
    """The adapter as `vllm-adapter list --probe` shows it."""

    def probe(**variables):
        done = site.run(
            *("-m", "vllm_adapter.cli", "list", "--probe", "--json"),
            variables={"VA_ADAPTERS": "acme", **variables},
        )
        assert done.returncode in (0, 1), done.stderr
        found = json.loads(done.stdout)["adapters"]
        return next(record for record in found if record["name"] == "acme")

    return probe


def test_a_library_s_devices_choose_their_descriptors(acme, listed, sim_path):
    acme(sim_path)
    record = listed()
    assert record["status"] == "ok", record
    assert [(d["torch"], d["name"], d["arch"]) for d in record["devices"]] == [
        ("acme:0", "Simulated accelerator", "sim48"),
        ("acme:1", "Simulated accelerator", "sim48"),
    ]
    assert all(d["capability_file"].endswith("sim48.json") for d in record["devices"])
    assert any("libacme.so" in line and "shows 2 devices" in line for line in record["evidence"])


def test_a_torch_type_beside_the_library_is_its_name_in_torch(acme, listed, faulty):
    package = acme(faulty())
    file = package / "adapter.json"
    raw = json.loads(file.read_text())
    raw["device"]["torch_type"] = "npu"
    file.write_text(json.dumps(raw))
    assert [d["torch"] for d in listed()["devices"]] == ["npu:0"]


def test_va_library_replaces_it_and_the_kept_answer(acme, listed, faulty, sim_path):
    acme(faulty())
    assert [d["arch"] for d in listed()["devices"]] == ["f1"]
    swapped = listed(VA_LIBRARY=str(sim_path))
    assert [d["arch"] for d in swapped["devices"]] == ["sim48", "sim48"]
    assert [d["arch"] for d in listed()["devices"]] == ["f1"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("OTHER_MAJOR", "offers ABI 2, and this release speaks ABI 1"),
        ("NO_FENCE", "leaves required functions NULL: event_query, fence"),
        (
            "COUNT_CRASHES",
            "a child process was killed by SIGSEGV (it printed 'assertion failed: power') when "
            "the library was asked for device_count",
        ),
        ("COUNT_FAILS", "device_count: the fan is off"),
    ],
)
def test_a_library_at_fault_breaks_its_adapter_alone(acme, listed, faulty, fault, reason):
    acme(faulty(fault))
    record = listed()
    assert record["status"] == "broken"
    assert reason in record["reason"]
    assert record["next_step"]


def test_a_library_that_is_not_there_is_told(acme, listed, tmp_path):
    package = acme()
    record = listed()
    assert record["status"] == "broken"
    assert record["reason"].startswith(f"there is no C library {package / 'lib' / 'libacme.so'}")
    other = tmp_path / "x.so"
    record = listed(VA_LIBRARY=str(other))
    assert record["reason"].startswith(f"there is no C library {other}; check VA_LIBRARY")
    assert record["next_step"] == f"ls -l {other}"


def test_a_library_without_a_device_is_absent(acme, listed, faulty):
    acme(faulty("NO_DEVICE"))
    record = listed()
    assert (record["status"], record["devices"]) == ("absent", [])
    assert "shows no device" in record["reason"]


OPENED = """
import sys, torch
from vllm_adapter.engine.device import open_device
import vllm_adapter.engine.ops.bind
from vllm_adapter.errors import VllmAdapterError

try:
    opened = open_device(sys.argv[1], int(sys.argv[2]))
except VllmAdapterError as error:
    print(type(error).__name__, error)
    sys.exit()
runtime = opened.runtime
allocation = runtime.allocate_memory(16, opened.device.index)
allocation.tensor((4,), torch.float32).fill_(2.5)
into = bytearray(16)
runtime.copy_device_to_host(allocation, memoryview(into))
print(opened.device, type(runtime).__name__, torch.frombuffer(into, dtype=torch.float32).tolist())
stream = runtime.create_stream(opened.device.index)
print(isinstance(stream, torch.Stream), runtime.streams is torch.acme.Stream.streams)
print(torch.ones(2, device=opened.device) + 1)
x, weight = torch.ones(1, 4, device=opened.device), torch.ones(4, device=opened.device)
print(torch.ops.vllm_adapter.rms_norm.default(x, weight, 0.0).cpu().tolist())
"""


def test_an_open_device_is_torch_s_and_its_runtime_shares_the_streams(acme, site, sim_path):
    acme(sim_path)
    done = site.run("-c", OPENED, "acme", "1", variables={"VA_OPS": "rms_norm:acme"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "acme:1 CLibraryRuntime [2.5, 2.5, 2.5, 2.5]",
        "True True",
        "tensor([2., 2.], device='acme:1')",
        "[[1.0, 1.0, 1.0, 1.0]]",
    ]


def test_va_library_is_opened_in_its_place(acme, site, faulty, sim_path):
    acme(faulty())
    variables = {"VA_LIBRARY": str(sim_path), "VA_FALLBACK": "allow"}
    done = site.run("-c", OPENED, "acme", "0", variables=variables)
    assert done.stdout.startswith("acme:0 CLibraryRuntime"), done.stdout + done.stderr


def test_va_library_for_an_adapter_without_one_is_refused(site, sim_path):
    done = site.run("-c", OPENED, "cpu", "0", variables={"VA_LIBRARY": str(sim_path)})
    assert "the adapter cpu has no C library that it could replace" in done.stdout
    assert "hint: unset VA_LIBRARY" in done.stdout


def test_validate_asks_the_library_that_is_there(acme, site, faulty):
    package = acme()
    command = ("-m", "vllm_adapter.cli", "validate", str(package))
    assert site.run(*command).returncode == 0  # a source tree before its build
    shutil.copy(faulty("NO_FENCE"), package / "lib" / "libacme.so")
    done = site.run(*command)
    assert done.returncode == 1
    assert "leaves required functions NULL: event_query, fence" in done.stdout
    shutil.copy(faulty(), package / "lib" / "libacme.so")
    assert site.run(*command).returncode == 0


def test_an_adapter_with_a_digit_is_opened_as_a_torch_device(site, sim_path):
    package = site.make("acme2", device={"library": "libacme.so"})
    shutil.copy(sim_path, package / "libacme.so")
    code = (
        "import torch\n"
        "from vllm_adapter.discovery import registry\n"
        "from vllm_adapter.c_abi.library import Library\n"
        "from vllm_adapter.engine.runtime.device_from_clib import enable\n"
        "from vllm_adapter.settings import Settings\n"
        "record = registry.find('acme2', Settings())\n"
        "device = record.devices[1].torch\n"
        "enable(record.manifest.device.torch_type, Library(record.manifest.library_file()))\n"
        "x = torch.arange(3.0).to(device)\n"
        "assert x.is_acme_two and torch.acme_two.device_count() > 1\n"
        "print(device, (x + 1).tolist())\n"
    )
    done = site.run("-c", code)
    assert done.stdout == "acme_two:1 [1.0, 2.0, 3.0]\n", done.stderr


def test_explain_asks_the_library_what_it_has(acme, site, faulty, sim_path):
    package = acme(faulty())

    def explained(**variables):
        words = ("-m", "vllm_adapter.cli", "explain", "acme", "rms_norm", "--json")
        done = site.run(*words, variables={"VA_FALLBACK": "error", **variables})
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["descriptors"]
        return {d["operators"]["rms_norm"][0]["why"] for d in found}, done.stderr

    (why,), _ = explained()
    assert why.startswith("libacme.so leaves the function rms_norm NULL (/operators/rms_norm/run")
    (why,), _ = explained(VA_LIBRARY=str(sim_path))
    assert why == "/operators/rms_norm"
    (package / "lib" / "libacme.so").write_bytes(b"no library")
    (why,), err = explained()
    assert why.startswith("no C library is open (/operators/rms_norm/run")
    assert "the library of acme cannot be used" in err
