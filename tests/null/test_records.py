"""Files by RECORD and by where they lie; compiled Python by its source; hooks at the start."""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
import sys
import tempfile
from pathlib import Path

import pytest
from fake_dist import install, write_adapter

from vllm_adapter_conformance.certificate import places
from vllm_adapter_conformance.certificate.compiled import faults_below, faults_of
from vllm_adapter_conformance.certificate.records import Distributions, Hashes, closure, place
from vllm_adapter_conformance.certificate.start_up import start_up_code
from vllm_adapter_conformance.device_side.loaded import loaded_files

pytestmark = pytest.mark.null


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package's folder of an adapter that is installed beside what is really there."""
    source = write_adapter(tmp_path / "src", "acme", plugin="class Plugin: pass\n")
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))
    return install(source, site, name="vllm-adapter-acme", entry_name="acme")


def faults(package):
    environment = Distributions.read()
    return [*environment.by_name["vllm-adapter-acme"].faults(Hashes(), environment.owners)]


def record(package):
    (found,) = package.parent.glob("*.dist-info")
    return found / "RECORD"


def test_what_is_as_installed_has_no_fault(package):
    assert faults(package) == []


def changed_source(package):
    (package / "plugin.py").write_text("class Plugin: x = 1\n")


def deleted_file(package):
    (package / "adapter.json").unlink()


def added_file(package):
    (package / "kernels").mkdir()
    (package / "kernels/extra.py").write_text("")


def sourceless(package):
    py_compile.compile(str(package / "plugin.py"), cfile=str(package / "extra.pyc"))


def linked_folder(package):
    elsewhere = package.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (package / "linked").symlink_to(elsewhere)


def edit_record(package, old, new):
    record(package).write_text(record(package).read_text().replace(old, new))


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (changed_source, "vllm_adapter_acme/plugin.py differs from the RECORD"),
        (deleted_file, "vllm_adapter_acme/adapter.json of vllm-adapter-acme is gone"),
        (added_file, "vllm_adapter_acme/kernels/extra.py is in no RECORD"),
        (sourceless, "vllm_adapter_acme/extra.pyc is in no RECORD"),
        (linked_folder, "vllm_adapter_acme/linked is in no RECORD"),
        (lambda package: edit_record(package, "plugin.py,sha256=", "plugin.py,md5="), "md5 hash"),
        (lambda package: record(package).unlink(), "has no RECORD"),
        (
            lambda package: (record(package).parent / "entry_points.txt").write_text(""),
            "entry_points.txt differs",
        ),
    ],
)
def test_what_is_not_as_installed_is_named(package, tamper, said):
    tamper(package)
    assert any(said in fault for fault in faults(package)), faults(package)


def test_a_script_that_was_moved_is_no_fault(package):
    with record(package).open("a") as file:
        file.write("../../bin/acme,sha256=AAAA,1\n")
    assert faults(package) == []


@pytest.fixture
def source(tmp_path):
    """A source file with its .pyc."""
    path = tmp_path / "kernels.py"
    path.write_text("FACTOR = 2.0\n\n\ndef f(x):\n    return x * FACTOR\n")
    py_compile.compile(str(path))
    return path


def swapped(source, text, header=None):
    cached = Path(importlib.util.cache_from_source(str(source)))
    code = marshal.dumps(compile(text, str(source), "exec", dont_inherit=True))
    cached.write_bytes((header or cached.read_bytes()[:16]) + code)


def test_the_code_of_the_source_is_no_fault(source):
    assert [*faults_of(str(source))] == []
    swapped(source, source.read_text())
    assert [*faults_below(str(source.parent))] == []


@pytest.mark.parametrize(
    "change", [("2.0", "1e9"), ("2.0", "2"), ("x *", "x +"), ("def f", "def g"), ("\n\n\n", "\n")]
)
def test_other_code_behind_the_header_of_the_source_is_found(source, change):
    swapped(source, source.read_text().replace(*change))
    (fault,) = faults_of(str(source))
    assert "is not the code of kernels.py" in fault


def test_an_unchecked_header_is_held_against_the_source_too(source):
    magic = importlib.util.MAGIC_NUMBER
    swapped(source, "FACTOR = 1e9\n", magic + b"\1\0\0\0" + b"whatever")
    assert [*faults_of(str(source))]


def test_what_python_would_not_load_is_passed_over(source):
    swapped(source, "FACTOR = 1e9\n", b"\0\0\0\0" + b"\0" * 12)
    assert [*faults_of(str(source))] == []
    py_compile.compile(str(source))
    os.utime(source, (1, 1))  # now stale: compiled anew before it is used
    swapped(source, "FACTOR = 1e9\n")
    assert [*faults_of(str(source))] == []


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 40])
def test_rubbish_behind_a_right_header_is_a_fault_and_no_error(source, content):
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.write_bytes(cached.read_bytes()[:16] + content)
    assert [*faults_of(str(source))]


def test_hooks_are_told_with_their_owner(package, monkeypatch):
    site = package.parent
    monkeypatch.setattr("site.getsitepackages", lambda: [str(site)])
    (site / "hook.pth").write_text("import os\n")
    (site / "path.pth").write_text("/nowhere\n")
    found = {one.said: one.fault for one in start_up_code(Distributions.read(), Hashes())}
    (said,) = [one for one in found if one.startswith("hook.pth")]
    assert "is in no RECORD" in found[said]
    assert not any("path.pth" in one for one in found)


def test_places():
    assert places.is_system(place(os.__file__))
    assert places.is_system("/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    assert not places.is_system("/opt/acme/lib/libacme.so")
    assert not places.is_system("/usr/lib/python3.12/site-packages/evil.py")
    assert not places.is_system("/usr/lib/evil.py")
    assert places.is_generated(place(f"{tempfile.gettempdir()}/torchinductor_me/ab/kernel.py"))
    assert places.existing(__file__) == __file__
    assert places.existing(f"{__file__}/inside.py") == __file__
    assert places.existing("/nowhere/at/all.py") is None


def test_where_compiled_files_lie_follows_the_variable_of_the_moment(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/opt/one")
    assert places.is_generated(place("/opt/one/ab/kernel.so"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/opt/two")
    assert places.is_generated(place("/opt/two/ab/kernel.so"))
    assert not places.is_generated(place("/opt/one/ab/kernel.so"))


def test_loaded_files_are_modules_and_mapped_libraries():
    found = loaded_files()
    assert str(Path(pytest.__file__)) in found
    assert all(os.path.isabs(path) for path in found)
    assert any(".so" in path for path in found if "/python" in path or "/lib" in path)


def test_a_module_that_answers_anything_is_no_error(monkeypatch):
    class Odd:
        @property
        def __file__(self):
            raise SystemExit

    monkeypatch.setitem(sys.modules, "odd", Odd())
    monkeypatch.setitem(sys.modules, "number", 7)
    assert loaded_files()


def test_the_closure_follows_what_is_required():
    found = closure(["vllm-adapter-conformance"], [])
    assert {"pytest", "torch", "vllm-adapter-core", "pluggy"} <= found
    assert "sigstore" not in found and "hypothesis" not in found
