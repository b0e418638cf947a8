"""The real server through `vllm-adapter serve`, on 127.0.0.1, and what clients ask of it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import ModelShape
from vllm_adapter_conformance.serving.process import GuardedProcess, environment

HOST: Final = "127.0.0.1"
NAME: Final = "tiny"
START_S: Final = 300.0
LIFE_S: Final = 1200.0
"""The guard ends a server that nobody has ended."""
ANSWER_S: Final = 120.0
_POLL_S: Final = 0.2
_TOKENS: Final = 5120
"""Tokens of the KV cache."""
_OWN: Final = ("--grace", "0", "--plan", "off")
"""The server takes the command's place, as the guard is the grace, and gets our flags alone."""

Json = Mapping[str, Any]


class Server:
    """A server that is up. `end` at the latest with the process that started it."""

    def __init__(
        self, target: Target, model: Path, shape: ModelShape, folder: Path, *more: str
    ) -> None:
        """Starts it and waits until it is healthy; `more`: flags of vLLM's for this model.

        Raises:
            Failure: it ends before, or is not healthy in time.
        """
        self.counters = folder / "counters"
        self.port = _free_port()
        flags = ["--host", HOST, "--port", str(self.port), "--served-model-name", NAME]
        block = shape.block_size
        flags += ["--dtype", shape.dtype, "--enforce-eager", "--block-size", str(block)]
        flags += ["--num-gpu-blocks-override", str(_TOKENS // block), *more]
        self._guarded = GuardedProcess(
            [sys.executable, "-m", "vllm_adapter.cli", "serve", *_OWN, str(model), *flags],
            environment(
                target,
                VA_COUNTERS=str(self.counters),
                VA_SELECTION=str(folder / "selection.json"),
            ),
            folder / "server.log",
            LIFE_S,
        )
        end = time.monotonic() + START_S
        while not self._healthy():
            ended = self._guarded.process.poll() is not None
            if ended or time.monotonic() > end:
                how = "it ended" if ended else f"it is not after {START_S:g} s"
                self.end()
                raise Failure("the server to be healthy", how, detail=self.tail())
            time.sleep(_POLL_S)

    def post(self, path: str, body: Json) -> tuple[int, Any]:
        """Status and parsed body of an answer."""
        connection, answer = self._ask(path, body)
        with connection:
            return answer.status, json.loads(answer.read())

    def stream(self, path: str, body: Json) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer; to stop reading is to close the connection."""
        connection, answer = self._ask(path, {**body, "stream": True})
        with connection:
            if answer.status != 200:
                raise Failure("a streamed answer", f"status {answer.status}: {answer.read()!r}")
            for line in answer:
                data = line.decode().removeprefix("data: ").strip()
                if data and data != "[DONE]":
                    yield json.loads(data)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric of vLLM's over its series that have these labels."""
        connection = _Connection(HOST, self.port, timeout=ANSWER_S)
        with connection:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        kept = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(s.rpartition(" ")[2]) for s in kept if all(w in s for w in wanted))

    def until(self, what: str, holds: Callable[[], bool], seconds: float = ANSWER_S) -> None:
        """Waits until something holds.

        Raises:
            Failure: it does not in time.
        """
        if not self.wait(holds, seconds):
            raise Failure(f"{what} within {seconds:g} s", "that it did not happen")

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Whether something holds in time."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True

    def terminate(self) -> None:
        """Sends SIGTERM to its first process."""
        self._guarded.process.send_signal(signal.SIGTERM)

    def exit_code(self, seconds: float) -> int:
        """The exit code.

        Raises:
            Failure: it does not end in time.
        """
        self.until("the end of the server", lambda: not self.is_up, seconds)
        return int(self._guarded.process.returncode)

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self._guarded.process.poll() is None

    def tail(self) -> str:
        """The last lines of its log."""
        return self._guarded.tail()

    def end(self) -> None:
        """Ends it and all that it started."""
        self._guarded.end()

    def _healthy(self) -> bool:
        try:
            with _Connection(HOST, self.port, timeout=5) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        except OSError:
            return False

    def _ask(self, path: str, body: Json) -> tuple[_Connection, http.client.HTTPResponse]:
        connection = _Connection(HOST, self.port, timeout=ANSWER_S)
        text = json.dumps({"model": NAME, **body})
        try:
            connection.request("POST", path, text, {"Content-Type": "application/json"})
            return connection, connection.getresponse()
        except OSError as error:
            connection.close()
            raise Failure(f"an answer to {path}", f"{type(error).__name__}: {error}") from None


class _Connection(http.client.HTTPConnection):
    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])
