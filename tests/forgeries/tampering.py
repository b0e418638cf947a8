"""What is done to an environment's wheels before `certify`, by id of the table."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import marshal
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import wheels

TOLERANCE = "vllm_adapter_conformance/ops/tolerance.py"
PLUGIN = "vllm_adapter_cpu/plugin.py"


@dataclass(frozen=True)
class Tampering:
    """`done` changes the environment and may give variables; then that adapter is certified."""

    done: Callable[[wheels.Env], dict[str, str] | None]
    adapter: str = "cpu"
    level: str = "L0"
    run: Callable[..., subprocess.CompletedProcess[str]] = wheels.Env.run


def appended(path: Path, text: str = "\n# changed\n") -> None:
    path.write_text(path.read_text("utf-8") + text, "utf-8")


def record(site: Path, package: str) -> Path:
    (found,) = site.glob(f"{package}-*.dist-info")
    return found / "RECORD"


def rewrite_record(site: Path, package: str, changed: Path) -> None:
    """RECORD says what the file is now."""
    at, content = record(site, package), changed.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    name = changed.relative_to(site).as_posix()
    lines = at.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{name},")]
    at.write_text("\n".join([*kept, f"{name},sha256={digest},{len(content)}", ""]))


def hash_removed(env: wheels.Env) -> None:
    appended(env.site / PLUGIN)
    at = record(env.site, "vllm_adapter_cpu")
    lines = at.read_text().splitlines()
    at.write_text(
        "\n".join([*(f"{PLUGIN},," if x.startswith(f"{PLUGIN},") else x for x in lines), ""])
    )


def made_lax(text: str) -> str:
    lines = text.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("FACTOR")]
    return "\n".join([*lines[: at + 1], "FACTOR = 1e9", *lines[at + 1 :], ""])


def suite_source(env: wheels.Env) -> None:
    path = env.site / TOLERANCE
    path.write_text(made_lax(path.read_text()))


def swapped(env: wheels.Env, flags: bytes | None = None) -> None:
    """The .pyc of a laxer tolerance; by its header it is that of the source, or unchecked."""
    source = env.site / TOLERANCE
    cached = Path(importlib.util.cache_from_source(str(source)))
    header = cached.read_bytes()[:16]
    if flags is not None:
        header = header[:4] + flags + b"whatever"
    cached.write_bytes(
        header
        + marshal.dumps(compile(made_lax(source.read_text()), "x", "exec", dont_inherit=True))
    )


def sourceless(env: wheels.Env) -> None:
    code = marshal.dumps(compile("SECRET = 1", "x", "exec", dont_inherit=True))
    path = env.site / "vllm_adapter_conformance/ops/extra.pyc"
    path.write_bytes(importlib.util.MAGIC_NUMBER + b"\0" * 12 + code)


def sitecustomize(env: wheels.Env) -> None:
    (env.site / "sitecustomize.py").write_text(
        "import importlib.abc, sys\n"
        "class Patch(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        tolerance = sys.modules.get('vllm_adapter_conformance.ops.tolerance')\n"
        "        if tolerance: tolerance.FACTOR = 1e9\n"
        "sys.meta_path.insert(0, Patch())\n"
    )


def shadowed(env: wheels.Env) -> dict[str, str]:
    import shutil

    shutil.copytree(
        env.site / "vllm_adapter_conformance", env.path / "shadow/vllm_adapter_conformance"
    )
    return {"PYTHONPATH": str(env.path / "shadow")}


def not_editable(env: wheels.Env) -> None:
    words = [*wheels.PIP, "--python", str(env.python), "install", "--no-deps", "--no-index"]
    more = ["--force-reinstall", "--no-build-isolation", "-e", str(wheels.ROOT / "vendors")]
    subprocess.run([*words, *more], check=True)
    at = record(env.site, "vllm_adapter_vendors")
    (at.parent / "direct_url.json").unlink()
    lines = at.read_text().splitlines()
    at.write_text("\n".join([*(x for x in lines if "direct_url.json" not in x), ""]))


def while_it_changes(
    env: wheels.Env, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs with a file that is another again and again; at the end all is as it was, times too."""
    path, ended = env.site / PLUGIN, threading.Event()
    content, times = path.read_bytes(), path.stat()

    def change() -> None:
        while not ended.wait(0.2):
            path.write_bytes(content + b"# another\n")
            path.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        return env.run(*words, **variables)
    finally:
        ended.set()
        thread.join()


def removed(*parts: str) -> Callable[[wheels.Env], None]:
    return lambda env: env.site.joinpath(*parts).unlink()


def changed(*parts: str) -> Callable[[wheels.Env], None]:
    return lambda env: appended(env.site.joinpath(*parts), "\n")


def schemas_data(env: wheels.Env) -> None:
    (path,) = env.site.glob("vllm_adapter_schemas/certificate-*.json")
    appended(path, "\n")


def library_swapped(env: wheels.Env) -> None:
    path = env.site / "vllm_adapter_acme/libextra.so"
    path.write_bytes(path.read_bytes() + b"\0")


GRADE = {
    "adapter_source": Tampering(lambda env: appended(env.site / PLUGIN)),
    "suite_source": Tampering(suite_source),
    "schemas_data": Tampering(schemas_data),
    "vendors_file_gone": Tampering(removed("vllm_adapter_vendors", "vendors", "cuda.json")),
    "pyc_swapped": Tampering(swapped),
    "pyc_unchecked": Tampering(lambda env: swapped(env, b"\1\0\0\0")),
    "pyc_sourceless": Tampering(sourceless),
    "extra_module": Tampering(
        lambda env: (env.site / "vllm_adapter/extra.py").write_text("") and None
    ),
    "hash_removed": Tampering(hash_removed),
    "library_swapped": Tampering(library_swapped, "acme"),
    "kernel_elsewhere": Tampering(changed("other_kernels", "norms.py"), "acme", "L1"),
    "sitecustomize": Tampering(sitecustomize),
    "pth_hook": Tampering(lambda env: (env.site / "hook.pth").write_text("import os\n") and None),
    "shadowed_suite": Tampering(shadowed),
    "not_editable": Tampering(not_editable),
    "changed_and_back": Tampering(lambda env: None, run=while_it_changes),
}
