"""Builds this package with the C compiler alone (PEP 517 and 660): no cmake, ninja, setuptools.

The header is core's. In the tree it is read from there; the sdist carries a copy.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "vllm_adapter_sim"
LIBRARY: Final = "lib/libvllm_adapter_sim.so"
HEADER: Final = "vllm_adapter.h"
INCLUDES: Final = (
    ROOT / "include",
    ROOT.parents[1] / "core/src/vllm_adapter/engine/runtime/include",
)
"""Where the header is: in an sdist, or in the tree."""
COMPILERS: Final = ("gcc", "g++", "cc", "clang")
FLAGS: Final = "-std=gnu11 -O2 -fPIC -fvisibility=hidden -shared".split()
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """PEP 517: a wheel with the library in it."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library.so"
        compile_library(library)
        files = {name: file.read_bytes() for name, file in _package_files()}
        files[f"{PACKAGE}/{LIBRARY}"] = library.read_bytes()
    return _write_wheel(Path(wheel_directory), files)


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """PEP 660: the library is built into the source folder, to which the wheel points."""
    compile_library(ROOT / "src" / PACKAGE / LIBRARY)
    pointer = f"{ROOT / 'src'}\n".encode()
    return _write_wheel(Path(wheel_directory), {f"{PACKAGE}.pth": pointer})


def build_sdist(sdist_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    """PEP 517: everything that a build needs, the header included."""
    base = f"{_dist()}-{_project()['version']}"
    files = {f"src/{name}": file.read_bytes() for name, file in _package_files()}
    for pattern in ("pyproject.toml", "README.md", "LICENSE", "build_backend/*.py", "csrc/*.[ch]"):
        for file in sorted(ROOT.glob(pattern)):
            files[file.relative_to(ROOT).as_posix()] = file.read_bytes()
    files[f"include/{HEADER}"] = (_include() / HEADER).read_bytes()
    files["PKG-INFO"] = _metadata()
    target = Path(sdist_directory) / f"{base}.tar.gz"
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{base}/{name}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return target.name


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Mapping[str, Any] | None = None
) -> str:
    """PEP 517: the metadata, without compiling."""
    folder = f"{_dist()}-{_project()['version']}.dist-info"
    for name, data in _dist_info().items():
        file = Path(metadata_directory) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def compile_library(target: Path) -> None:
    """Compiles csrc/*.c to a shared library; an unfinished one is never left at `target`."""
    command = _compiler()
    sources = [str(file) for file in sorted((ROOT / "csrc").glob("*.c"))]
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    # -x c before each file: g++ takes those behind the first for C++ otherwise.
    words = [word for source in sources for word in ("-x", "c", source)]
    line = [*command, *FLAGS, f"-I{_include()}", *words, "-x", "none"]
    line += ["-o", str(draft), "-lm", "-lpthread"]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        draft.unlink(missing_ok=True)
        sys.stderr.write(done.stderr)
        _stop(
            f"{shlex.join(command)} could not compile the simulated accelerator; what it says is "
            "above. Set CC to another C compiler, such as gcc."
        )
    draft.replace(target)


def _compiler() -> list[str]:
    named = os.environ.get("CC", "").strip()
    if named:
        command = shlex.split(named)
        if shutil.which(command[0]):
            return command
        _stop(f"CC is {named!r}, and there is no such program. Set CC to a C compiler.")
    found = next((name for name in COMPILERS if shutil.which(name)), None)
    if found is None:
        _stop(
            f"The simulated accelerator is built with a C compiler, and there is none of "
            f"{', '.join(COMPILERS)}. Install gcc, or set CC."
        )
    return [found]


def _include() -> Path:
    found = next((folder for folder in INCLUDES if (folder / HEADER).is_file()), None)
    if found is None:
        _stop(f"{HEADER} is in neither of {', '.join(map(str, INCLUDES))}. Build from the sdist.")
    return found


def _stop(sentence: str) -> NoReturn:
    raise SystemExit(f"vllm-adapter-sim: {sentence}")


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _dist() -> str:
    return str(_project()["name"]).replace("-", "_")


def _package_files() -> Iterator[tuple[str, Path]]:
    folder = ROOT / "src" / PACKAGE
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(ROOT / "src")
        if file.is_file() and "__pycache__" not in name.parts and name.parts[1] != "lib":
            yield name.as_posix(), file


def _metadata() -> bytes:
    project = _project()
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        *(f"License-File: {name}" for name in project["license-files"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join([*lines, "", (ROOT / project["readme"]).read_text()]).encode()


def _tag() -> str:
    return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _dist_info() -> dict[str, bytes]:
    project = _project()
    folder = f"{_dist()}-{project['version']}.dist-info"
    entries = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), "")
    ]
    wheel = ["Wheel-Version: 1.0", "Generator: sim_build", "Root-Is-Purelib: false"]
    files = {
        "METADATA": _metadata(),
        "WHEEL": "\n".join([*wheel, f"Tag: {_tag()}", ""]).encode(),
        "entry_points.txt": "\n".join(entries).encode(),
    }
    files |= {f"licenses/{name}": (ROOT / name).read_bytes() for name in project["license-files"]}
    return {f"{folder}/{name}": data for name, data in files.items()}


def _write_wheel(folder: Path, files: dict[str, bytes]) -> str:
    files = {**files, **_dist_info()}
    record = f"{_dist()}-{_project()['version']}.dist-info/RECORD"
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    target = folder / f"{_dist()}-{_project()['version']}-{_tag()}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data)
    return target.name
