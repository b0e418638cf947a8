"""The engines of one run, plain and ours: started once, kept for every rule that asks."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from vllm_adapter.files import write_atomic
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import ModelShape
from vllm_adapter_conformance.serving import jobs, models
from vllm_adapter_conformance.serving.process import GuardedProcess, environment, outcome_of
from vllm_adapter_conformance.serving.server import Server
from vllm_adapter_conformance.serving.shape import served

PLAIN: Final = "plain"
OURS: Final = "ours"
EXPERTS: Final = "experts"
LIMIT_S: Final = 400.0
"""For all engines of one side; each takes seconds on a quiet machine."""
_CHILD: Final = "vllm_adapter_conformance.serving.child"
NAMES: Final = {PLAIN: "plain vLLM", OURS: "vLLM with the adapter", EXPERTS: "vLLM"}


class Runs:
    """Results by side. A worker that replaces another reads from `folder` what that one ran."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self.folder = folder
        self._servers: dict[str, Server] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def engine(self, side: str, name: str) -> dict[str, Any]:
        """What an engine gave.

        Raises:
            Failure: it did not start, or ended early.
        """
        found: dict[str, Any] = self.result(side)["engines"].get(name, self.result(side))
        if "error" in found:
            raise Failure(
                f"{NAMES[side]} to run the engine {name}", found["error"], detail=found["log"]
            )
        return found

    def step(self, side: str, engine: str, step: str) -> Any:
        """What one step of an engine gave.

        Raises:
            Failure: as `engine`.
        """
        return self.engine(side, engine)["steps"][step]

    def result(self, side: str) -> dict[str, Any]:
        """All that one side gave: `engines`, and `error` with `log` if the process ended early."""
        found: dict[str, Any] = (self._experts if side == EXPERTS else self._both)[side]
        return found

    def log(self, side: str) -> str:
        """All that the process of one side's engines printed."""
        self.result(side)
        return (self.folder / f"{side}.log").read_text("utf-8", errors="replace")

    @property
    def dtype(self) -> str:
        """What ours runs in; plain vLLM runs in float32."""
        shape = served(self._target, "qwen3")
        assert isinstance(shape, ModelShape), "asked for only where qwen3 is declared"
        return shape.dtype

    @property
    def server(self) -> Server:
        """A server with the adapter that generates, and is up; a new one after the last has ended.

        Raises:
            Failure: it does not start.
        """
        return self._up("server", "--max-model-len", str(models.LONG))

    @property
    def embedder(self) -> Server:
        """As `server`; one that embeds.

        Raises:
            Failure: it does not start.
        """
        return self._up("embed", "--runner", "pooling")

    def _up(self, form: str, *flags: str) -> Server:
        """One at a time: a server takes most of a device's memory."""
        found = self._servers.get(form)
        if found is None or not found.is_up:
            while self._servers:
                self._servers.popitem()[1].end()
            shape = served(self._target, "qwen3")
            assert isinstance(shape, ModelShape), "asked for only where qwen3 is declared"
            folder = Path(tempfile.mkdtemp(prefix=f"{form}-", dir=self.folder))
            model = models.save(shape, self._target.seed, folder / "model", form=form)
            found = Server(self._target, model, shape, folder, *flags)
            self._servers[form] = found
        return found

    @cached_property
    def _both(self) -> dict[str, Any]:
        return self._kept("engines", lambda: self._run(jobs.engines, (PLAIN, OURS)))

    @cached_property
    def _experts(self) -> dict[str, Any]:
        return self._kept("experts", lambda: self._run(jobs.experts, (EXPERTS,)))

    def _kept(self, name: str, make: Any) -> dict[str, Any]:
        file = self.folder / f"{name}.json"
        if not file.exists():
            write_atomic(file, json.dumps(make()))
        found: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return found

    def _run(self, make_job: Any, sides: tuple[str, ...]) -> dict[str, Any]:
        """One child a side, all at the same time: each uses one core."""
        engines = make_job(self._target, self.folder / "models")
        children = {side: self._start(side, self._job(side, engines)) for side in sides}
        try:
            codes = {side: child.wait() for side, child in children.items()}
        finally:
            for child in children.values():
                child.end()
        return {side: self._read(side, codes[side], children[side].tail()) for side in sides}

    def _job(self, side: str, engines: list[dict[str, Any]]) -> Path:
        file = self.folder / f"{side}-job.json"
        write_atomic(file, json.dumps(jobs.reference(engines) if side == PLAIN else engines))
        return file

    def _start(self, side: str, job: Path) -> GuardedProcess:
        target = None if side == PLAIN else self._target
        more = {}
        if target is not None:
            more["VA_COUNTERS"] = str(self.folder / f"{side}-counters")
            more["VA_SELECTION"] = str(self.folder / f"{side}-selection.json")
        if side == EXPERTS:
            more["VA_FALLBACK"] = "error"
        return GuardedProcess(
            [sys.executable, "-m", _CHILD, str(job), str(self.folder / f"{side}-result.json")],
            environment(target, **more),
            self.folder / f"{side}.log",
            LIMIT_S,
        )

    def _read(self, side: str, code: int, log: str) -> dict[str, Any]:
        file = self.folder / f"{side}-result.json"
        found: dict[str, Any] = {"engines": {}}
        if file.exists():
            found = json.loads(file.read_text("utf-8"))
        return found | ({} if code == 0 else outcome_of(log, code))
