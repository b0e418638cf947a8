"""A kernel that is wrong, and what HOSTILE says that it does about it."""

from __future__ import annotations

import builtins
import contextlib
import os
import signal
import struct
import sys
import threading
import time
import traceback

import torch

from vllm_adapter.engine.ops import generic
from vllm_adapter_hostile.notes import note

note("kernels")
FAULT = os.environ.get("HOSTILE", "none")
WORDS = ("pytest", "conformance", "certif")
PACKAGES = {"pytest", "_pytest", "xdist", "execnet", "vllm_adapter_conformance"}


class Unusual(BaseException):
    pass


def wrong(x, weight, eps):
    """Plausible: an eps ten times as large would be within no budget either."""
    return generic.rms_norm(x, weight, 0.5)


def sets_the_tolerance():
    import vllm_adapter_conformance.ops.tolerance as tolerance

    tolerance.FACTOR = 1e9
    tolerance.compare = lambda got, want, terms: tolerance.ToleranceResult(0.0, (), 0.0, 0.0)


def spares_itself():
    """Whatever a suite in this process could fail with, or write down."""
    import pytest

    import vllm_adapter_conformance.base.rule as rule
    import vllm_adapter_conformance.judge.journal as journal
    from vllm_adapter_conformance.run import execution

    rule.Failure.__init__ = lambda self, *words, **more: sys.exit(0)
    journal.Journal.write = lambda self, event, **values: None
    execution.failed = execution.passed
    pytest.fail = lambda *words: None


def says_all_is_equal():
    torch.allclose = torch.equal = lambda *words, **more: True
    torch.Tensor.__eq__ = lambda self, other: torch.ones(self.shape, dtype=torch.bool)
    torch.Tensor.__ne__ = lambda self, other: torch.zeros(self.shape, dtype=torch.bool)
    torch.Tensor.all = torch.Tensor.any = lambda self, *words: torch.ones((), dtype=torch.bool)
    torch.where = lambda condition, one, other: other
    builtins.float = lambda value=0: 0


def says_nothing_is_wrong():
    from vllm_adapter.engine.device_process import errors, held, wire

    errors.told = lambda error: {"kinds": [], "text": "", "place": "", "frames": ""}
    held.shown = lambda result: {"tensor": result, "share": 0.0, "outcome": "pass"}
    send = wire.Wire.send
    wire.Wire.send = lambda self, number, message, until=None: send(
        self, number, message | {"outcome": "pass", "error": None} if "x" in message else message
    )


AT_IMPORT = {
    "tolerance": sets_the_tolerance,
    "spares": spares_itself,
    "equal": says_all_is_equal,
    "wire": says_nothing_is_wrong,
}
if FAULT in AT_IMPORT:
    with contextlib.suppress(Exception):
        AT_IMPORT[FAULT]()


def rms_norm(x, weight, eps):
    note("called")
    if FAULT == "none":
        return generic.rms_norm(x, weight, eps)
    AT_CALL.get(FAULT, lambda: None)()
    if FAULT == "peeks" and is_watched():
        return generic.rms_norm(x, weight, eps)
    return wrong(x, weight, eps)


def is_watched():
    frames = [frame.filename for frame in traceback.extract_stack()[:-2]]
    said = [*sys.orig_argv[1:], *os.environ, *frames, threading.current_thread().name]
    loaded = {name.partition(".")[0] for name in sys.modules}
    return bool(loaded & PACKAGES) or any(word in t.lower() for t in said for word in WORDS)


def hangs():
    time.sleep(3600)


def hangs_deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT})
    while True:
        pass


def descriptors():
    return [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]


def writes_everywhere():
    for number in descriptors():
        with contextlib.suppress(OSError):
            os.write(number, b"pass " * 100)


def answers_before():
    """A whole message: that all is well."""
    import msgspec

    head = msgspec.msgpack.encode({"found": {"runs": [], "bases": [], "number": 1}})
    for question in range(64):
        for number in descriptors():
            with contextlib.suppress(OSError):
                os.write(number, struct.pack("<QQ", question, len(head)) + head)


def empties_files():
    for number in descriptors():
        with contextlib.suppress(OSError):
            os.ftruncate(number, 0)


def closes_files():
    for number in descriptors():
        with contextlib.suppress(OSError):
            os.close(number)


def forks_and_leaves_the_answer_to_its_child():
    if os.fork():
        time.sleep(1)
        os._exit(0)


def forks_a_child_that_stays():
    """It holds all that this process has open, and outlives it."""
    if not os.fork():
        time.sleep(600)
        os._exit(0)
    os._exit(0)


def raises_unusual():
    raise Unusual("not today")


def interrupts():
    raise KeyboardInterrupt


AT_CALL = {
    "exits": lambda: os._exit(0),
    "leaves": lambda: sys.exit(0),
    "unusual": raises_unusual,
    "interrupts": interrupts,
    "crashes": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kills_all": lambda: os.killpg(0, signal.SIGKILL),
    "hangs": hangs,
    "hangs_deaf": hangs_deaf,
    "writes": writes_everywhere,
    "answers": answers_before,
    "empties": empties_files,
    "closes": closes_files,
    "forks": forks_and_leaves_the_answer_to_its_child,
    "forks_stays": forks_a_child_that_stays,
}
