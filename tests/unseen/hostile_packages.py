"""Installed packages that are broken or hostile, each in one way: manifests and metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIMIT = float(os.environ.get("UNSEEN_LIMIT", "45"))
"""Seconds that any one command may take, on an idle machine: a busy one needs UNSEEN_LIMIT."""
MANIFEST = {
    "schema": "vllm-adapter/manifest/1.0",
    "name": "villain",
    "vendor": "Test",
    "api": ">=1.0,<2",
    "match": [{"machine": ["x86_64", "aarch64"]}],
}


@dataclass(frozen=True)
class Hostile:
    """One package, or several.

    `make` puts it into a site folder. `named`: `list --probe` names it by one of these words, with
    a reason. `status`: those it may have there; none: it need not be a row. `doctor`: the exit
    codes of doctor. `unsaid` must not stand in any output.
    """

    name: str
    make: Callable[[Path], None]
    named: tuple[str, ...] = ("villain",)
    status: tuple[str, ...] = ("broken", "incompatible", "shadowed", "absent")
    doctor: tuple[int, ...] = (1,)
    reason: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ("OWNED", "Traceback", "\x1b[")
    helped: tuple[str, ...] = ()


def dist(site, name="villain", *, entries=None, metadata=None, version="1.0"):
    """Writes a dist-info; gives its folder."""
    info = site / f"vllm_adapter_{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm-adapter-{name}\nVersion: {version}\n\n"
    (info / "METADATA").write_bytes(text.encode() if metadata is None else metadata)
    if entries is None:
        entries = f"[vllm_adapter.adapters]\n{name} = vllm_adapter_{name}\n".encode()
    (info / "entry_points.txt").write_bytes(entries)
    (info / "RECORD").write_text("")
    return info


def package(site, name="villain", /, *, raw=None, plugin=None, **manifest):
    """Writes an adapter's package; `raw` is the manifest's bytes. Gives its folder."""
    folder = site / f"vllm_adapter_{name}"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    content = MANIFEST | {"name": name} | manifest
    if plugin is not None:
        (folder / "plugin.py").write_text(plugin, encoding="utf-8")
        content["plugin"] = f"vllm_adapter_{name}.plugin:Plugin"
    (folder / "adapter.json").write_bytes(json.dumps(content).encode() if raw is None else raw)
    return folder


def manifest(title, why=(), /, *, raw=None, case=None, **changes):
    """A package whose manifest alone is bad."""

    def make(site):
        package(site, raw=raw() if callable(raw) else raw, **changes)
        dist(site)

    return Hostile(f"manifest: {title}", make, reason=why, **(case or {}))


def special(name, to_device, why=()):
    """A package whose adapter.json is no regular file."""

    def make(site):
        file = package(site) / "adapter.json"
        file.unlink()
        to_device(file)
        dist(site)

    return Hostile(f"manifest: {name}", make, reason=why)


def sparse(file):
    with file.open("wb") as out:
        out.truncate(100 << 20)


def entries(name, content, case=None):
    """A healthy package behind a bad entry_points.txt."""

    def make(site):
        package(site)
        dist(site, entries=content)

    return Hostile(f"entry points: {name}", make, **(case or {}))


def special_entries(name, to_device, case=None):
    def make(site):
        package(site)
        file = dist(site) / "entry_points.txt"
        file.unlink()
        to_device(file)

    return Hostile(f"entry points: {name}", make, **(case or {}))


def metadata(name, content, case=None):
    def make(site):
        package(site)
        dist(site, metadata=content)

    return Hostile(f"metadata: {name}", make, **(case or {}))


def reserved(word):
    """An adapter whose name is another's word."""

    def make(site):
        package(site, word)
        dist(site, word)

    return Hostile(f"name: {word}", make, named=(word,), reason=("name", word))


def device_name(word):
    """An adapter that would be opened under a torch type that torch keeps for itself."""

    def make(site):
        folder = package(site, device={"torch_type": word, "library": "libx.so"})
        (folder / "libx.so").write_bytes(b"")
        dist(site)

    return Hostile(f"device: torch_type {word}", make)


def two_of_one_name(site):
    for one in ("first", "second"):
        folder = package(site, one, name="villain")
        dist(site, one, entries=f"[vllm_adapter.adapters]\nvillain = {folder.name}\n".encode())


def twin_of_cpu(site):
    package(site, "twin", name="cpu")
    dist(site, "twin", entries=b"[vllm_adapter.adapters]\ncpu = vllm_adapter_twin\n")


def thief_of_package(site):
    dist(site, entries=b"[vllm_adapter.adapters]\nvillain = vllm_adapter_cpu\n")


def standard_module(site):
    dist(site, entries=b"[vllm_adapter.adapters]\nvillain = json\n")


def no_package(site):
    dist(site)


def bare_folder(site):
    package(site).joinpath("__init__.py").unlink()
    dist(site)


def folder_loop(site):
    os.symlink("vllm_adapter_villain", site / "vllm_adapter_villain")
    dist(site)


def descriptor(name, to_device, why=()):
    def make(site):
        folder = package(site, device={"torch_type": "cpu"})
        (folder / "capabilities").mkdir()
        to_device(folder / "capabilities" / "any.json")
        dist(site)

    case = {"status": ("broken", "incompatible", "ok"), "doctor": (0, 1)}
    return Hostile(f"descriptor: {name}", make, reason=why, **case)


def named_dist(case_status, doctor=(1,)):
    return {"status": case_status, "doctor": doctor}


HEALTHY = named_dist(("ok",), (0, 1))
EITHER = named_dist(("ok", "broken", "incompatible"), (0, 1))
NO_ROW = {"status": (), "named": ("villain",)}
UNIGNORED = {"status": (), "named": ("villain",), "doctor": (0, 1)}

MANIFESTS = [
    manifest("empty", ("json",), raw=b""),
    manifest("no JSON", ("json",), raw=b"name = villain"),
    manifest("a list", ("object", "list"), raw=b"[]"),
    manifest("UTF-16", ("utf", "json"), raw=json.dumps(MANIFEST).encode("utf-16")),
    manifest(
        "UTF-8 with a mark", raw=b"\xef\xbb\xbf" + json.dumps(MANIFEST).encode(), case=EITHER
    ),
    manifest("Latin-1", ("utf", "json"), raw='{"vendor": "Müller"}'.encode("latin-1")),
    manifest("zero bytes", ("json", "utf"), raw=bytes(500)),
    manifest("nested without end", ("json", "deep", "nest"), raw=b"[" * 200_000),
    manifest("a number of 6000 digits", raw=b'{"schema": ' + b"9" * 6000 + b"}"),
    manifest(
        "a key twice",
        raw=json.dumps(MANIFEST).encode()[:-1] + b', "name": "cpu"}',
        case=named_dist(("broken", "ok"), (0, 1)),
    ),
    manifest("NaN for a version", raw=b'{"schema": NaN, "name": "villain"}'),
    special("missing", lambda file: None, ("adapter.json",)),
    special("100 MB", sparse, ("large", "mb", "mib", "bytes", "size", "big")),
    special("a FIFO", os.mkfifo, ("regular", "fifo", "file")),
    special("a link to /dev/zero", lambda f: f.symlink_to("/dev/zero"), ("regular", "file")),
    special("a link to a terminal", lambda f: f.symlink_to("/dev/tty"), ("adapter.json",)),
    special("a link to itself", lambda f: f.symlink_to(f.name), ("adapter.json",)),
    special("a folder", Path.mkdir, ("adapter.json",)),
    special("unreadable", lambda f: f.symlink_to("/proc/self/mem"), ("adapter.json",)),
    manifest("schema of a later major", ("schema", "version"), schema="vllm-adapter/manifest/9.0"),
    manifest(
        "schema of a later minor", schema="vllm-adapter/manifest/1.9", colour="red", case=HEALTHY
    ),
    manifest("schema of another kind", ("schema",), schema="vllm-adapter/capability/1.0"),
    manifest("schema is a list", ("schema",), schema=["vllm-adapter/manifest/1.0"]),
    manifest("another name than its entry", ("other", "name"), name="other"),
    manifest("name in capitals", ("name",), name="Villain"),
    manifest("name is a path", ("name",), name="../villain"),
    manifest("api of later interfaces", (">=99", "api"), api=">=99"),
    manifest("api is garbage", ("api",), api="whatever works"),
    manifest("api is a number", ("api",), api=1.0),
    manifest("match of an unknown key", ("match", "moon"), match=[{"moon": "full"}]),
    manifest("match is an object", ("match",), match={"machine": ["x86_64"]}),
    manifest(
        "match of a bad glob",
        match=[{"device_node": "/dev/[z-a"}],
        case=named_dist(("broken", "absent"), (0, 1)),
    ),
    manifest(
        "match looks through the whole disk",
        match=[{"device_node": "/**/**/**/x"}],
        case=named_dist(("broken", "absent"), (0, 1)),
    ),
    manifest(
        "capabilities out of the package",
        ("capabilities",),
        capabilities="../../*.json",
        device={"torch_type": "cpu"},
    ),
    manifest(
        "capabilities absolute",
        ("capabilities",),
        capabilities="/etc/*.json",
        device={"torch_type": "cpu"},
    ),
    manifest("plugin of another package", ("plugin", "plug-in"), plugin="os:system"),
    manifest("plugin without class", ("plugin", "plug-in"), plugin="vllm_adapter_villain"),
    manifest(
        "plugin is missing", ("plugin", "plug-in"), plugin="vllm_adapter_villain.gone:Plugin"
    ),
    manifest("library absolute", ("library",), device={"library": "/lib/libc.so.6"}),
    manifest("library through a parent", ("library",), device={"library": "../libx.so"}),
    manifest(
        "torch_module is missing",
        ("torch_nowhere",),
        device={"torch_type": "villain", "torch_module": "torch_nowhere"},
    ),
    manifest("vendor moves the cursor", vendor="\x1b[2J\x1b[1;31mcpu\x07\n\rok", case=EITHER),
    manifest("vendor is half a character", vendor="\ud83d", case=EITHER),
    manifest(
        "vendor is 900 kB long", vendor="x" * 900_000, case=EITHER | {"unsaid": ("x" * 5000,)}
    ),
    manifest("vendor is empty", vendor="", case=EITHER),
    device_name("maia"),
    device_name("cuda"),
    device_name("meta"),
    descriptor("no JSON", lambda f: f.write_text("{"), ()),
    descriptor("a FIFO", os.mkfifo, ()),
    descriptor(
        "of a later major", lambda f: f.write_text('{"schema": "vllm-adapter/capability/7.0"}')
    ),
]
METADATA = [
    entries("not UTF-8", b"[vllm_adapter.adapters]\nvillain = vllm_adapter_\xff\xfe\n", NO_ROW),
    entries("UTF-16", "[vllm_adapter.adapters]\nvillain = x\n".encode("utf-16"), NO_ROW),
    entries("no section", b"villain = vllm_adapter_villain\n", UNIGNORED | {"named": ()}),
    entries(
        "an unclosed section", b"[vllm_adapter.adapters\nvillain = vllm_adapter_villain\n", NO_ROW
    ),
    entries("no value", b"[vllm_adapter.adapters]\nvillain =\n"),
    entries("no equals sign", b"[vllm_adapter.adapters]\nvillain\n", NO_ROW),
    entries("a value with a colon", b"[vllm_adapter.adapters]\nvillain = os:system\n"),
    entries("a value with a space", b"[vllm_adapter.adapters]\nvillain = vllm adapter\n"),
    entries("a value that is a path", b"[vllm_adapter.adapters]\nvillain = ../../etc\n"),
    entries(
        "the same line twice",
        b"[vllm_adapter.adapters]\n" + 2 * b"villain = vllm_adapter_villain\n",
        EITHER | {"status": ("ok", "shadowed", "broken")},
    ),
    entries("a name with escapes", b"[vllm_adapter.adapters]\n\x1b[31mvillain = x\n"),
    entries(
        "a name with a space", b"[vllm_adapter.adapters]\nthe villain = vllm_adapter_villain\n"
    ),
    entries(
        "ten thousand lines",
        b"[vllm_adapter.adapters]\n"
        + b"".join(b"villain%d = vllm_adapter_villain\n" % i for i in range(10_000)),
        {"status": ()},
    ),
    special_entries("a FIFO", os.mkfifo, NO_ROW),
    special_entries("a folder", Path.mkdir, NO_ROW),
    special_entries("a link to itself", lambda f: f.symlink_to(f.name), NO_ROW),
    special_entries("a link to /dev/zero", lambda f: f.symlink_to("/dev/zero"), NO_ROW),
    special_entries("unreadable", lambda f: f.symlink_to("/proc/self/mem"), NO_ROW),
    metadata("empty", b"", EITHER),
    metadata("bytes", bytes(range(256)) * 4, EITHER),
    metadata("no version", b"Metadata-Version: 2.1\nName: vllm-adapter-villain\n\n", EITHER),
    metadata(
        "Requires-Python is garbage",
        b"Metadata-Version: 2.1\nName: vllm-adapter-villain\n"
        b"Version: 1\nRequires-Python: snake\n\n",
        EITHER,
    ),
    metadata(
        "Requires-Dist is garbage",
        b"Metadata-Version: 2.1\nName: vllm-adapter-villain\n"
        b"Version: 1\nRequires-Dist: torch >>> 2 ;;; x\n\n",
        EITHER,
    ),
    metadata(
        "a later torch is needed",
        b"Metadata-Version: 2.1\nName: vllm-adapter-villain\n"
        b"Version: 1\nRequires-Dist: torch>=99\n\n",
        {"status": ("incompatible",)},
    ),
    Hostile(
        "two packages of one name",
        two_of_one_name,
        status=("ok", "shadowed"),
        named=("first", "second"),
        doctor=(0, 1),
    ),
    Hostile(
        "a second adapter called cpu",
        twin_of_cpu,
        status=("shadowed",),
        named=("twin",),
        doctor=(0, 1),
    ),
    Hostile("an entry that names cpu's package", thief_of_package),
    Hostile("an entry that names a standard module", standard_module),
    Hostile("the package is not there", no_package),
    Hostile("the package has no __init__", bare_folder, **EITHER),
    Hostile("the package is a link to itself", folder_loop),
    *(reserved(w) for w in ("torch", "default", "op", "selected", "class", "out", "overloads")),
]
