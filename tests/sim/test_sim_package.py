"""The package vllm-adapter-sim: its build, and a descriptor that says what the library does."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import sim_library

from vllm_adapter.c_abi import abi
from vllm_adapter.contract.capability import load_capability
from vllm_adapter.contract.manifest import read_manifest

pytestmark = pytest.mark.sim

PACKAGE = sim_library.ROOT / "adapters/sim"
SOURCE = PACKAGE / "src/vllm_adapter_sim"
LIBRARY = "vllm_adapter_sim/lib/libvllm_adapter_sim.so"


def build(hook, folder, root=PACKAGE, **variables):
    """Calls a hook of the build backend as a front end does."""
    code = f"import sys, sim_build; print(sim_build.{hook}(sys.argv[1]))"
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "build_backend"), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def built(hook, folder, root=PACKAGE):
    done = build(hook, folder, root)
    assert not done.returncode, done.stderr
    return folder / done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built("build_wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_package_and_a_library_that_loads(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path)
    info = "vllm_adapter_sim-0.1.0.dist-info"
    assert names == {
        LIBRARY,
        *(f"vllm_adapter_sim/{name}" for name in ("__init__.py", "adapter.json", "py.typed")),
        "vllm_adapter_sim/capabilities/sim48.json",
        *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")),
        f"{info}/licenses/LICENSE",
    }
    assert re.fullmatch(r"vllm_adapter_sim-0\.1\.0-py3-none-linux_\w+\.whl", wheel.name)
    for line in (tmp_path / info / "RECORD").read_text().splitlines():
        name, digest, size = line.split(",")
        if not name.endswith("RECORD"):
            data = (tmp_path / name).read_bytes()
            mine = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={mine}", len(data))
    code = f"import ctypes; ctypes.CDLL({str(tmp_path / LIBRARY)!r}).va_get_api"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pip_installs_the_wheel(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*pip, str(wheel)], check=True)
    assert (tmp_path / LIBRARY).is_file()
    entries = tmp_path / "vllm_adapter_sim-0.1.0.dist-info/entry_points.txt"
    assert entries.read_text() == "[vllm_adapter.adapters]\nsim = vllm_adapter_sim\n"


def test_two_builds_are_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = (built("build_sdist", tmp_path / name) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_the_sdist_builds_outside_of_the_tree(tmp_path):
    with tarfile.open(built("build_sdist", tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "vllm_adapter_sim-0.1.0"
    assert (root / "include/vllm_adapter.h").is_file()
    assert not list(root.rglob("*.so"))
    (tmp_path / "out").mkdir()
    with zipfile.ZipFile(built("build_wheel", tmp_path / "out", root)) as archive:
        assert LIBRARY in archive.namelist()
    (root / "include/vllm_adapter.h").unlink()
    refused = build("build_wheel", tmp_path / "out", root)
    assert refused.returncode == 1
    assert refused.stderr.startswith("vllm-adapter-sim: vllm_adapter.h is in neither of ")


def test_an_editable_wheel_points_to_the_sources(tmp_path):
    root = tmp_path / "tree/adapters/sim"
    shutil.copytree(PACKAGE, root, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    header = tmp_path / "tree/core/src/vllm_adapter/engine/runtime/include"
    shutil.copytree(sim_library.INCLUDE, header)
    with zipfile.ZipFile(built("build_editable", tmp_path, root)) as archive:
        pointer = archive.read("vllm_adapter_sim.pth").decode()
    assert Path(pointer.strip()) == root / "src"
    assert (root / "src" / LIBRARY).is_file()


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"PATH": "/nowhere", "CC": ""}, "there is none of gcc, g\\+\\+, cc, clang. Install gcc"),
        ({"CC": "no-such-cc"}, "CC is 'no-such-cc', and there is no such program"),
        ({"CC": "false"}, "false could not compile the simulated accelerator"),
    ],
)
def test_a_compiler_that_is_missing_is_told_in_one_sentence(tmp_path, variables, sentence):
    done = build("build_wheel", tmp_path, **variables)
    assert done.returncode == 1
    assert re.search(f"^vllm-adapter-sim: .*{sentence}", done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("compiler", ["gcc", "g++", "cc"])
def test_each_compiler_alone_will_do(tmp_path, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here")
    assert not build("build_wheel", tmp_path, CC=compiler).returncode


def test_the_manifest_says_that_the_device_is_emulated():
    manifest = read_manifest(SOURCE / "adapter.json")
    assert manifest.emulated
    assert manifest.device is not None
    assert manifest.device.torch_type == "sim"
    assert manifest.plugin is None
    assert {file.suffix for file in SOURCE.rglob("*.py")} == {".py"}
    assert [file.name for file in SOURCE.rglob("*.py")] == ["__init__.py"]


def test_the_descriptor_has_the_library_s_own_constants(sim):
    capability = load_capability(SOURCE / "capabilities/sim48.json")
    info = sim.device_info(0)
    assert info.arch == capability.identity.arch == "sim48"
    assert info.name == capability.identity.name
    assert info.subgroup_size == capability.execution.subgroup_size
    assert info.alignment_bytes == capability.memory.alignment_bytes
    assert info.total_bytes == capability.memory.capacity_bytes
    assert info.unified == capability.memory.unified
    header = (PACKAGE / "csrc/sim.h").read_text()
    constant = {n: int(v) for n, v in re.findall(r"#define SIM_(\w+) (\d+)u?\b", header)}
    assert constant["MAX_GRID"] == capability.execution.max_grid
    assert constant["KV_BLOCK"] == capability.kv.block_multiple == capability.kv.block_size
    assert constant["UNITS"] == info.units
    assert tuple(capability.operators) == abi.OPERATORS
    for op, entries in capability.operators.items():
        assert entries[0].run == f"library:{op}"
        assert set(entries[0].dtypes) == {"float32", "float16"}
    raw = json.loads((SOURCE / "capabilities/sim48.json").read_text())
    assert "assumed" not in json.dumps(raw)
