"""Runs the suite in a child: pytest in a process group of its own, followed by its journal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vllm_adapter.errors import VllmAdapterError
from vllm_adapter_conformance.base.target import BUDGET_S
from vllm_adapter_conformance.certificate.document import make_room, write
from vllm_adapter_conformance.judge.journal import Event, JournalReader, of
from vllm_adapter_conformance.judge.outcome import FAIL, Result, ended

POLL_S: Final = 0.1
STOP_S: Final = 5.0
GOOD_CODES: Final = (0, 1)
"""pytest's own: all passed, some failed. Any other is no verdict on the adapter."""
_TAIL: Final = 20
_INI: Final = "[pytest]\n"


class SuiteError(VllmAdapterError):
    """The run ended without a verdict: a defect of the suite, or of the environment."""


@dataclass(frozen=True)
class RunRequest:
    """What to run."""

    adapter: str
    level: str
    device: int = 0
    seed: int = 0
    certificate: Path | None = None
    cases: Sequence[str] = ()
    emulate: str | None = None
    budget: float = BUDGET_S
    minutes: float | None = None
    baseline: Path | None = None
    fail_fast: bool = False

    def words(self, certificate: Path) -> list[str]:
        """As pytest's arguments; the certificate, if one is asked for, is written there."""
        words = ["--adapter", self.adapter, "--level", self.level]
        words += ["--device", str(self.device), "--seed", str(self.seed)]
        words += ["--budget", repr(self.budget)]
        if self.emulate is not None:
            words += ["--emulate", self.emulate]
        if self.minutes is not None:
            words += ["--minutes", repr(self.minutes)]
        if self.baseline is not None:
            words += ["--baseline", str(self.baseline.absolute())]
        if self.certificate is not None:
            words += ["--certificate", str(certificate)]
        if self.fail_fast:
            words.append("-x")
        return words + [f"--case={case}" for case in self.cases]


@dataclass
class Run:
    """A run that has ended with a verdict."""

    events: list[Event] = field(default_factory=list)
    stopped: bool = False
    """It ended at its first failure: there is no certificate."""

    @property
    def results(self) -> dict[str, Result]:
        """By item, as the journal has them last."""
        return ended(self.events)


def run_suite(order: RunRequest, follow: Callable[[Event], None]) -> Run:
    """Runs the suite and gives each event to `follow` as it comes.

    The child reads no configuration, conftest or plug-in of the folder or environment it is
    started in: whoever is certified must not be able to change the run by accident.

    Raises:
        SuiteError: no verdict; the message has pytest's last words.
    """
    if order.certificate is not None:
        make_room(order.certificate)
    with tempfile.TemporaryDirectory(prefix="vllm-adapter-") as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text(_INI, encoding="utf-8")
        log, reader = folder / "log.txt", JournalReader(folder / "journal")
        certificate = folder / "certificate.json"
        with log.open("wb") as out:
            child = subprocess.Popen(
                [*_command(folder), *order.words(certificate), "--journal", str(reader.path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
            try:
                while child.poll() is None:
                    _pass_on(reader, follow)
                    time.sleep(POLL_S)
            finally:
                _stop(child)
        _pass_on(reader, follow)
        sentences = [str(event["sentence"]) for event in of(reader.events, "error")]
        # A defect that ends pytest early also has exit code 1: only a plan and, where one is asked
        # for, a certificate show that there was a run.
        ran = any(of(reader.events, "plan"))
        failed = any(result.outcome == FAIL for result in ended(reader.events).values())
        stopped = order.fail_fast and failed
        written = stopped or order.certificate is None or certificate.is_file()
        if child.returncode not in GOOD_CODES or sentences or not (ran and written):
            raise _no_verdict(order.adapter, child.returncode, sentences, log)
        if order.certificate is not None and not stopped:
            write(order.certificate, json.loads(certificate.read_text(encoding="utf-8")))
        return Run(reader.events, stopped)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ends the run and its workers; asked first, so that it takes its temporary files along."""
    for number, seconds in ((signal.SIGINT, STOP_S), (signal.SIGKILL, None)):
        if child.poll() is None or number is signal.SIGKILL:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)


def _command(folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "--pyargs", "vllm_adapter_conformance"),
        *("-c", str(folder / "pytest.ini"), "--rootdir", str(folder), "--noconftest"),
        *("-p", "no:cacheprovider", "-p", "xdist.plugin"),
        *("-p", "vllm_adapter_conformance.run.plugin", "-q"),
        # Rewritten asserts would be read from compiled files of pytest's own.
        "--assert=plain",
    ]


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    # On a busy host, threads that spin until all have had their turn cost ten times the time.
    kept.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONSAFEPATH": "1"}


def _pass_on(reader: JournalReader, follow: Callable[[Event], None]) -> None:
    for event in reader.new():
        follow(event)


def _no_verdict(adapter: str, code: int, sentences: Sequence[str], log: Path) -> SuiteError:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    tail = " / ".join(line for line in lines[-_TAIL:] if line.strip())
    return SuiteError(
        f"the suite ended without a verdict (pytest code {code}): "
        f"{'; '.join(sentences) or tail or 'no output'}",
        hint=f"run `pytest --pyargs vllm_adapter_conformance --adapter {adapter}` to see all of "
        "it, and report it: this is no fault of the adapter",
    )
