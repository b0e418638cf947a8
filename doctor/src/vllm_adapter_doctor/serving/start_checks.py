"""What of a start of vLLM's server is cheap to check, and would else end it after a minute.

Nothing of vLLM is imported: the model's folder, the port, and on a CPU the memory and the binding
of threads, by vLLM's own rules.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vllm_adapter.broker.vllm_install import VllmInstall

_GIB: Final = 1 << 30
_REMOTE: Final = re.compile(r"[a-z0-9+.-]+://")
_HUB_NAME: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")
DEFAULT_PORT: Final = 8000
"""# upstream: vllm@0.32 entrypoints/launchers/cli_args.py"""


@dataclass(frozen=True, slots=True)
class StartProblem:
    """Why the server would not start, and what to do."""

    sentence: str
    hint: str


@dataclass(frozen=True, slots=True)
class StartInputs:
    """A start that is about to be made. `world` is how many ranks it has here, None: unknown."""

    model: str
    flags: Sequence[str]
    vllm: VllmInstall
    world: int | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    """Where `proc` and `sys` are."""

    def flag(self, *names: str) -> str | None:
        """The value of vLLM's flag by any of its names, as the last that was written; or None."""
        found = None
        for place, word in enumerate(self.flags):
            name, equals, value = word.partition("=")
            if (name.replace("_", "-") if name.startswith("--") else name) in names:
                found = value if equals else next(iter(self.flags[place + 1 : place + 2]), "")
        return found

    def has(self, *names: str) -> bool:
        """Whether a flag is there at all."""
        return self.flag(*names) is not None


def problems(start: StartInputs) -> Iterator[StartProblem]:
    """Everything that is wrong with a start, the cheapest first."""
    for check in _CHECKS:
        found = check(start)
        if found is not None:
            yield found


_GET: Final = (
    "give a folder with config.json and *.safetensors, such as transformers' save_pretrained "
    "writes, or a model's name on a hub; docs/vllm.md says how to make one of a .gguf"
)


def _model(start: StartInputs) -> StartProblem | None:
    name = start.model
    if name.startswith("package:"):
        return StartProblem(
            f"{name} is a model in a package, which `vllm-adapter run` reads and vLLM does not",
            _GET,
        )
    if _REMOTE.match(name):
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(path, start)
    if path.is_file():
        if path.suffix == ".gguf":
            return StartProblem(f"{name} is a GGUF file, which this start cannot serve", _GET)
        return StartProblem(f"{name} is a file, and no model's folder", _GET)
    if name.startswith((".", "/", "~")) or not _HUB_NAME.fullmatch(name):
        return StartProblem(f"there is no folder {name}", _GET)
    if _is_offline(start.environ) and not _in_hub_cache(name, start.environ):
        return StartProblem(
            f"there is no folder {name}, and as a model's name it is not in the hub's cache, "
            "while HF_HUB_OFFLINE keeps it from being fetched",
            _GET,
        )
    return None


def _folder(path: Path, start: StartInputs) -> StartProblem | None:
    if start.has("--config-format", "--load-format", "--tokenizer-mode"):
        return None  # another format than that of transformers was asked for
    if (path / "config.json").is_file() or (path / "params.json").is_file():
        return None
    if any(path.glob("*.gguf")):
        return StartProblem(
            f"{path} holds a GGUF file, which `vllm-adapter run` reads and vLLM does not", _GET
        )
    return StartProblem(f"{path} has no config.json", _GET)


def _is_offline(environ: Mapping[str, str]) -> bool:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in names)


def _in_hub_cache(name: str, environ: Mapping[str, str]) -> bool:
    # upstream: huggingface_hub constants.py
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    cache = Path(environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()
    return (cache / f"models--{name.replace('/', '--')}").is_dir()


def _port(start: StartInputs) -> StartProblem | None:
    if start.has("--headless", "--uds", "--config"):
        return None
    text = start.flag("--port") or str(DEFAULT_PORT)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        return StartProblem(f"--port {text} is no port", "give a number from 1 to 65535")
    host = start.flag("--host") or ""
    try:
        found = socket.getaddrinfo(
            host or None, int(text), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as tried:
            # upstream: vllm@0.32 entrypoints/launchers/launcher.py (create_server_socket)
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except socket.gaierror:
        return StartProblem(f"--host {host} is no address of this machine", "see `ip address`")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = f"`ss -ltnp 'sport = :{text}'` names it; --port takes another"
            return StartProblem(f"the port {text} is in use by another process", hint)
        why = f"the server cannot listen on {host or 'any address'}:{text}: {error.strerror}"
        return StartProblem(why, "take another --host or --port")
    return None


def _memory(start: StartInputs) -> StartProblem | None:
    if start.vllm.build != "cpu" or start.has("--kv-cache-memory-bytes", "--config"):
        return None
    space = start.environ.get("VLLM_CPU_KVCACHE_SPACE", "")
    memory = _node_memory(start.root)
    if memory is None:
        return None
    total, available = memory
    if space not in ("", "0"):
        if not space.isdecimal():
            return StartProblem(
                f"VLLM_CPU_KVCACHE_SPACE is {space!r}, which is no number of GiB",
                "write such as 4",
            )
        if int(space) * _GIB > available:
            return StartProblem(
                f"VLLM_CPU_KVCACHE_SPACE asks for {space} GiB, and {_gib(available)} are "
                "available",
                "ask for less, or end what uses the memory",
            )
        return None
    text = start.flag("--gpu-memory-utilization") or _default_share(start.vllm)
    try:
        share = float(text or "nan")
    except ValueError:
        return None  # vLLM says so at once
    # upstream: vllm@0.32 v1/worker/cpu_worker.py:73
    if share * total > available:
        least = max(1, int(available / _GIB / 2))
        return StartProblem(
            f"vLLM takes {share:g} of this machine's {_gib(total)} of memory (the flag is "
            f"--gpu-memory-utilization, on a CPU too), and {_gib(available)} are available",
            f"set VLLM_CPU_KVCACHE_SPACE={least} (GiB for the KV cache alone), or a smaller share",
        )
    return None


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


def _default_share(vllm: VllmInstall) -> str | None:
    try:
        text = (vllm.folder / "config/cache.py").read_text("utf-8")
    except OSError:
        return None
    found = re.search(r"gpu_memory_utilization: float = Field\(default=([\d.]+)", text)
    return found[1] if found else None


def _node_memory(root: Path) -> tuple[int, int] | None:
    """Total and available bytes of the node where vLLM's first thread runs, within the cgroup."""
    node = _first_node(root)
    lines = _read(root / f"sys/devices/system/node/node{node}/meminfo")
    pairs = dict(re.findall(r"(\S+):\s+(\d+) kB", lines))
    try:
        # upstream: vllm@0.32 utils/cpu_resource_utils.py:185
        total = 1024 * int(pairs["MemTotal"])
        words = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
        available = 1024 * sum(int(pairs[word]) for word in words)
    except KeyError:
        return None
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, used = (_read(root / "sys/fs/cgroup" / name).strip() for name in (limit, usage))
        if most.isdecimal() and int(most) < total:
            total = int(most)
            available = max(0, min(available, total - int(used or 0)))
    return total, available


def _first_node(root: Path) -> int:
    first = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    found = sorted((root / f"sys/devices/system/cpu/cpu{first}").glob("node[0-9]*"))
    return int(found[0].name.removeprefix("node")) if found else 0


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _binding(start: StartInputs) -> StartProblem | None:
    text = start.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")
    if start.vllm.build != "cpu" or text == "nobind" or start.world is None:
        return None
    # upstream: vllm@0.32 utils/ompmultiprocessing.py:122
    nobind = "VLLM_CPU_OMP_THREADS_BIND=nobind binds nothing"
    if text == "auto":
        nodes = len(list((start.root / "sys/devices/system/node").glob("node[0-9]*"))) or 1
        many = start.environ.get("VLLM_CPU_SIM_MULTI_NUMA", "0") != "0"
        if start.world > nodes and not many:
            return StartProblem(
                f"vLLM binds each of {start.world} ranks to a NUMA node of its own, and this "
                f"machine has {nodes}",
                nobind,
            )
        return None
    groups = text.split("|")
    if len(groups) != start.world:
        return StartProblem(
            f"VLLM_CPU_OMP_THREADS_BIND names {len(groups)} groups of CPUs, and there are "
            f"{start.world} ranks",
            f"separate one group a rank by |; {nobind}",
        )
    ids = [_ids(group) for group in groups]
    if None in ids:
        return StartProblem(
            f"VLLM_CPU_OMP_THREADS_BIND is {text!r}, which is no list of CPUs",
            f"write such as 0-3 or 0,2|1,3; {nobind}",
        )
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    missing = sorted(set().union(*(one or () for one in ids)) - allowed) if allowed else []
    if missing:
        return StartProblem(
            f"VLLM_CPU_OMP_THREADS_BIND names CPU {missing[0]}, which this process may not use",
            f"it may use {', '.join(map(str, sorted(allowed or ())))}; {nobind}",
        )
    return None


def _ids(text: str) -> set[int] | None:
    """CPU numbers of such as `0-2,4`; None where it is no such list."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match is None:
            return None
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


_CHECKS: Final[tuple[Callable[[StartInputs], StartProblem | None], ...]] = (
    _model,
    _port,
    _binding,
    _memory,
)
