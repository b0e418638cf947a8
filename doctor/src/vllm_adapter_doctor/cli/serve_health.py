"""The part of `serve` that looks at the devices: before the start, and while the server runs."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vllm_adapter.cli.output import clean
from vllm_adapter.errors import InputError

if TYPE_CHECKING:
    from vllm_adapter.broker.server import Launch
    from vllm_adapter_doctor.live.health import HealthReading
    from vllm_adapter_doctor.serving.before_start import PreparedDevices

GRACE_S: Final = 20.0
"""Less than the 30 s after which Kubernetes kills a pod."""
POLICIES: Final = ("warn", "wait", "other", "fail")
_SIZES: Final = {
    "--tensor-parallel-size": "tensor",
    "-tp": "tensor",
    "--pipeline-parallel-size": "pipeline",
    "-pp": "pipeline",
    "--data-parallel-size": "data",
    "-dp": "data",
    "--data-parallel-size-local": "local",
    "-dpl": "local",
    "--prefill-context-parallel-size": "context",
    "-pcp": "context",
}
"""Flags whose product is the number of devices.

# upstream: vllm@0.32 vllm/engine/arg_utils.py (ParallelConfig)
"""
_AFTER_DRAIN_S: Final = 10.0
_UNTOLD: Final = ("--config", "--nnodes", "-n", "--distributed-executor-backend")
"""With one of these the flags alone do not say how many devices of this box are used."""


def add_health(parser: argparse.ArgumentParser) -> None:
    """The options about the devices' health."""
    parser.add_argument(
        "--on-unhealthy",
        choices=POLICIES,
        default="warn",
        help="a device that is lost, held, throttled or has memory errors before the start: say "
        "so (default; a lost one is refused), wait for it, take another, or fail",
    )
    parser.add_argument(
        "--wait-limit",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long --on-unhealthy wait waits (default: 300)",
    )
    parser.add_argument(
        "--watch",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="look at the devices this often while the server runs; 0 is off (default: 30)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=GRACE_S,
        metavar="SECONDS",
        help="after SIGTERM or Ctrl-C kill a server that has not ended this much later, as one "
        "that waits for a client may; 0 never does (default: %(default)g)",
    )


def grace_of(seconds: float, flags: Sequence[str]) -> float:
    """Seconds from a signal to the kill: as long at least as vLLM is told to drain requests."""
    words = list(flags)
    drains = [0.0]
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == "--shutdown-timeout":
            text = value if equals else next(iter(words[place + 1 : place + 2]), "")
            drains += [float(text)] if text.isdecimal() else []
    return max(seconds, max(drains) + _AFTER_DRAIN_S) if max(drains) else seconds


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and (value == 0 or value >= 1)):
        raise ValueError(text)
    return value


@dataclass(frozen=True, slots=True)
class HealthPlan:
    """What is watched, and the launch with what must be set or unset for other devices."""

    launch: Launch
    unset: tuple[str, ...] = ()
    adapter: str = ""
    ready: PreparedDevices | None = None

    @property
    def environ(self) -> dict[str, str]:
        """The server's whole environment."""
        kept = {k: v for k, v in os.environ.items() if k not in self.unset}
        return {**kept, **self.launch.environment}


def devices_used(flags: Sequence[str]) -> int | None:
    """How many devices of this box the server's flags ask for; None where they do not say.

    Flags may be written with `_`, and with their value after `=`.
    """
    sizes: dict[str, int] = {}
    for place, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        if name in _UNTOLD:
            return None
        if name in _SIZES:
            text = value if equals else next(iter(flags[place + 1 : place + 2]), "")
            if not re.fullmatch(r"[1-9]\d*", text):
                return None
            sizes[_SIZES[name]] = int(text)
    sizes["data"] = sizes.pop("local", sizes.get("data", 1))
    return math.prod(sizes.values())


def prepare(args: argparse.Namespace, launch: Launch, adapter: str | None) -> HealthPlan:
    """Looks at the devices that the server will open, under the policy.

    Raises:
        DeviceUnhealthy: one cannot be used, or the policy refuses it.
        InputError: a policy is asked for and there is no way to look.
    """
    from vllm_adapter_doctor.live.health import can_read

    if adapter is None or not can_read(adapter):
        if args.on_unhealthy != "warn" and adapter != "cpu":
            raise InputError(
                f"--on-unhealthy {args.on_unhealthy} needs devices whose health can be read, and "
                f"{f'those of {adapter} cannot' if adapter else 'no adapter is used'}",
                hint="leave --on-unhealthy out",
            )
        return HealthPlan(launch)
    from vllm_adapter_doctor.serving.before_start import Policy, start_here

    start = start_here(adapter, devices_used(args.flags), say)
    ready = start.prepare(Policy(args.on_unhealthy), args.wait_limit)
    if ready.environment is None:
        return HealthPlan(launch, adapter=adapter, ready=ready)
    for note in ready.environment.notes:
        say(note)
    more: Mapping[str, str] = dict(ready.environment.variables)
    changed = replace(launch, environment={**launch.environment, **more})
    return HealthPlan(changed, ready.environment.unset, adapter, ready)


def start(plan: HealthPlan, watch_s: float, grace_s: float) -> int:
    """Runs the server and watches its devices; becomes it where neither that nor a grace is asked.

    Raises:
        OSError: the server cannot be started.
    """
    argv, environ = list(plan.launch.argv), plan.environ
    sys.stdout.flush()
    is_watched = plan.ready is not None and bool(plan.ready.used.devices) and bool(watch_s)
    if not is_watched and not grace_s:
        os.execvpe(argv[0], argv, environ)
    from vllm_adapter_doctor.serving.supervised import SupervisedServer

    server = SupervisedServer(argv, environ, after_signal_s=grace_s or None, say=say)
    if not is_watched:
        server.start()
        return server.wait()
    assert plan.ready is not None, "watched"
    from vllm_adapter_doctor.live.health import read_health
    from vllm_adapter_doctor.serving.health import family
    from vllm_adapter_doctor.serving.monitor import HealthMonitor, Watcher

    def ends(sentence: str) -> None:
        say(f"{sentence}: the server is ended")
        server.end(sentence)

    def read() -> HealthReading:
        return read_health(plan.adapter)

    server.start()
    used, unread = plan.ready.used, plan.ready.unread
    watch = HealthMonitor(used, own=lambda: family(server.pid), unread=unread)
    watcher = Watcher(watch, read, say=say, lost=ends, interval_s=watch_s)
    watcher.start()
    code = server.wait()
    watcher.stop()
    if code == 0 or server.signalled or server.ended:
        return code
    # it may have fallen before the watch looked, which takes two readings to be sure of
    why = next((lost for _ in range(2) if (lost := watch.observe(read())[1])), None)
    if why is not None:
        say(f"{why}: the server ended with exit code {code}")
        return 1
    return code


def say(sentence: str) -> None:
    """One line on stderr, beside the server's own."""
    print(f"vllm-adapter: {clean(sentence)}", file=sys.stderr, flush=True)
