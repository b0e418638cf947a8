"""The mixed load on the device: workers that prefill and decode, each in a thread and stream.

It runs in slices, between which it stands still with no sequence left, so that what is held then
can be compared.
"""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_adapter.engine.kv_cache import BlockTable
from vllm_adapter.errors import OutOfMemory, VllmAdapterError

from .bins import bin_of
from .load_decoder import CALLS_A_LAYER, LAYERS, TinyDecoder, run_script
from .memory import held_at_rest
from .speed import multiplying

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

MOST_SEQUENCES: Final = 8
LONGEST_PROMPT: Final = 64
PREFILLED: Final = (3, 8, 17, 33, 48, 64, 96, 130)
MIXED: Final = (11, 24, 65)
"""Tokens of a step that prefills, and of one that decodes too. Libraries keep what they made for a
shape, up to a limit that minutes do not reach: these few are all met in the first windows, and
what grows later is no such cache."""
LONGEST: Final = 256
"""Tokens of a sequence at its end."""
POOL: Final = 512
"""Rows of random hidden states, of which each step takes as many as it has tokens."""
PROBE_EVERY: Final = 25
CONTROL_EVERY: Final = 10
CONTROL_SIDE: Final = 64
CONTROL_S: Final = 0.002
MOST_CALLS: Final = 2000
MOST_ERRORS: Final = 5
KEPT_RESULTS: Final = 2
"""Of those that are not as the first, a slice gives back so many whole."""
STALL_S: Final = 60.0


@dataclass
class _Seen:
    """What one worker saw in one slice."""

    rounds: int = 0
    calls: int = 0
    tokens: int = 0
    preempted: int = 0
    probes: int = 0
    bins: dict[str, Counter[int]] = field(default_factory=dict)
    clocked: float = 0.0
    """Seconds of the slice, by the clock of this process."""
    parts: float = 0.0
    """Those of them that steps, checks and calls took."""
    control: list[float] = field(default_factory=list)
    different: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)

    def error(self, error: BaseException) -> None:
        typed = isinstance(error, (VllmAdapterError, torch.OutOfMemoryError))
        self.errors.append(
            {"kind": type(error).__name__, "words": str(error)[:500], "typed": typed}
        )


class _Side:
    """An operator that the decoder has not, called with one and the same arguments."""

    def __init__(self, device: HeldDevice, raw: Mapping[str, Any], owner: object) -> None:
        self.op = raw["op"]
        binding = device.bind(raw["op"], dict(raw["facts"]), owner)
        self._args = [
            device.to_device(a) if isinstance(a, torch.Tensor) else a for a in raw["args"]
        ]
        self._run = binding.run
        self.first = self.call()

    def call(self) -> torch.Tensor:
        """The result, on the host."""
        result: torch.Tensor = self._run(*self._args)
        return result.cpu()


class _Worker:
    """One thread's decoder, sequences and stream."""

    def __init__(self, device: HeldDevice, number: int, raw: Mapping[str, Any], seed: int) -> None:
        self._device, self._index = device, device.index
        self.shape = raw["shape"]
        block = self.shape["block_size"]
        # Two long sequences fill it, so that now and then one has to make room.
        blocks = 2 * -(-LONGEST // block) + 4
        self.stream: Any = device.runtime.create_stream(self._index)
        self.decoder = TinyDecoder(device, self.shape, raw["weights"], blocks=blocks)
        self._random = random.Random(f"{seed}/{number}")
        self._active: list[tuple[BlockTable, int]] = []
        generator = torch.Generator().manual_seed(seed + number)
        rows = torch.randn(POOL, self.decoder.hidden, generator=generator)
        self._pool = device.to_device(rows.to(getattr(torch, self.shape["dtype"])))
        script = raw["script"]
        self._script = (
            list(script["lengths"]),
            device.to_device(script["prompt"]),
            [device.to_device(step) for step in script["steps"]],
        )
        self._sides = [_Side(device, side, self.decoder.cache) for side in raw["sides"]]
        self._control = multiplying(
            device, CONTROL_SIDE, self.shape["dtype"], own_linear=raw["own_linear"]
        )
        # As long as a step, at least: what interrupts one then interrupts the other.
        self._control_calls = self._calls_of_a_step()
        self._wait_all()
        with torch.no_grad(), self._on_stream():
            self.first = self._probe()
        self.seen = _Seen()
        self._rounds = 0

    @property
    def side_results(self) -> list[torch.Tensor]:
        """The first result of each of the other operators, on the host."""
        return [side.first for side in self._sides]

    def run(self, until: float) -> None:
        """Rounds until a moment of the monotonic clock; then no sequence is left."""
        begin = time.perf_counter()
        with torch.no_grad(), self._on_stream():
            while time.monotonic() < until and len(self.seen.errors) < MOST_ERRORS:
                try:
                    self._round()
                except Exception as error:
                    self.seen.error(error)
                    self._drop_all()
            self._drop_all()
            if not self.seen.errors:
                try:
                    self._check()
                except Exception as error:
                    self.seen.error(error)
            with contextlib.suppress(VllmAdapterError):
                self._wait()
        self.seen.clocked += time.perf_counter() - begin

    def close(self) -> None:
        """Gives the memory back."""
        self.decoder.close()

    def _round(self) -> None:
        seen = self.seen
        self._step()
        seen.rounds += 1
        self._rounds += 1
        if self._sides:
            begin = time.perf_counter()
            self._side(self._sides[self._rounds % len(self._sides)])
            seen.parts += time.perf_counter() - begin
        if self._rounds % CONTROL_EVERY == 0:
            self._wait()
            begin = time.perf_counter()
            for _ in range(self._control_calls):
                self._control()
            self._wait()
            taken = time.perf_counter() - begin
            seen.control.append(taken / self._control_calls)
            seen.parts += taken
        if self._rounds % PROBE_EVERY == 0:
            self._check()

    def _step(self) -> None:
        """A prefill, a decode step of all sequences, or both in one batch."""
        chance = self._random.random()
        room = MOST_SEQUENCES - len(self._active)
        new = 0
        if not self._active or (room and chance < 0.3):
            new = self._random.randint(1, min(3, max(1, room)))
        mixed = bool(new and self._active and chance < 0.1)
        old = list(self._active) if mixed or not new else []
        prompts = self._prompts(new, len(old)) if new else []
        ends = [self._random.randint(n + 1, LONGEST) for n in prompts]
        fresh = [self.decoder.cache.new_sequence() for _ in prompts]
        sequences = [sequence for sequence, _ in old] + fresh
        tokens = [1] * len(old) + prompts
        begin = time.perf_counter()
        try:
            _, step = self.decoder.step(self._pool[: sum(tokens)], sequences, tokens)
        except OutOfMemory:
            if not self._active:
                raise
            self._preempt()
            return
        finally:
            self._active += [
                (sequence, end)
                for sequence, end in zip(fresh, ends, strict=True)
                if sequence.length
            ]
        self._wait()
        taken = time.perf_counter() - begin
        self.seen.parts += taken
        self.seen.bins.setdefault(step.phase, Counter())[bin_of(taken)] += 1
        self.seen.calls += CALLS_A_LAYER * LAYERS
        self.seen.tokens += sum(tokens)
        ended = [pair for pair in self._active if pair[0].length >= pair[1]]
        self._drop(ended)

    def _prompts(self, count: int, decoded: int) -> list[int]:
        """Lengths of so many prompts, which with the decoded tokens are one of the totals."""
        totals = [total - decoded for total in (MIXED if decoded else PREFILLED)]
        fitting = [total for total in totals if count <= total <= count * LONGEST_PROMPT]
        rest = self._random.choice(fitting)
        parts: list[int] = []
        for left in range(count - 1, -1, -1):  # so many come after this one
            least = max(1, rest - left * LONGEST_PROMPT)
            parts.append(self._random.randint(least, min(LONGEST_PROMPT, rest - left)))
            rest -= parts[-1]
        return parts

    def _preempt(self) -> None:
        """The longest sequence makes room, as a server does where the cache is full."""
        self._drop([max(self._active, key=lambda pair: pair[0].length)])
        self.seen.preempted += 1

    def _side(self, side: _Side) -> None:
        found = side.call()
        self.seen.calls += 1
        if not _same(found, side.first):
            self._different(side.op, found)

    def _check(self) -> None:
        """The script again, between the sequences that are there."""
        needed = sum(
            -(-(n + len(self._script[2])) // self.shape["block_size"]) for n in self._script[0]
        )
        begin = time.perf_counter()
        while self.decoder.cache.pool.free < needed:
            self._preempt()
        found = self._probe()
        self.seen.parts += time.perf_counter() - begin
        self.seen.probes += 1
        if not _same(found, self.first):
            self._different("decoder", found)

    def _different(self, what: str, found: torch.Tensor) -> None:
        kept = found if len(self.seen.different) < KEPT_RESULTS else None
        self.seen.different.append({"what": what, "round": self._rounds, "found": kept})

    def _probe(self) -> torch.Tensor:
        """[rows, hidden] on the host."""
        return torch.cat([part.cpu() for part in run_script(self.decoder, *self._script)])

    def _drop(self, pairs: Sequence[tuple[BlockTable, int]]) -> None:
        self.decoder.cache.release([sequence for sequence, _ in pairs])
        self._active = [pair for pair in self._active if pair not in pairs]

    def _drop_all(self) -> None:
        self._drop(list(self._active))

    def _calls_of_a_step(self) -> int:
        """How many products take about `CONTROL_S`."""
        times, taken = 1, 0.0
        while taken < CONTROL_S and times < MOST_CALLS:
            times *= 2
            begin = time.perf_counter()
            for _ in range(times):
                self._control()
            self._wait_all()
            taken = time.perf_counter() - begin
        return times

    def _wait(self) -> None:
        self._device.runtime.synchronize_stream(self._index, self.stream)

    def _wait_all(self) -> None:
        self._device.runtime.synchronize_stream(self._index)

    def _on_stream(self) -> Any:
        return contextlib.nullcontext() if self.stream is None else self.stream


@dataclass
class _Load:
    workers: list[_Worker]
    steps: int = 0


_LOADS: Final[weakref.WeakKeyDictionary[HeldDevice, _Load]] = weakref.WeakKeyDictionary()


def start_load(
    device: HeldDevice, *, models: Sequence[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    """Makes a worker for each model: `shape, weights, script, sides, own_linear`.

    Gives `first` (a host tensor a worker), `sides` (host tensors, a list a worker), and how many
    `streams` there are.
    """
    gc.freeze()  # what is there now is not looked at again in each window
    workers = [_Worker(device, number, raw, seed) for number, raw in enumerate(models)]
    _LOADS[device] = _Load(workers)
    return {
        "first": [worker.first for worker in workers],
        "sides": [worker.side_results for worker in workers],
        "streams": sum(worker.stream is not None for worker in workers),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def run_load(device: HeldDevice, *, seconds: float) -> dict[str, Any]:
    """One slice. Gives what all workers saw together.

    `bins` are rows (bin, times) by phase; `stalled`: a worker has not come to an end. `clocked`
    and `parts` have a number of seconds a worker, by the clock of this process.
    """
    load = _LOADS[device]
    until = time.monotonic() + seconds
    for worker in load.workers:
        worker.seen = _Seen()
    _in_threads([partial(worker.run, until) for worker in load.workers], until)
    seen = [worker.seen for worker in load.workers]
    bins: dict[str, Counter[int]] = {}
    for one in seen:
        for phase, counts in one.bins.items():
            bins.setdefault(phase, Counter()).update(counts)
    load.steps += sum(one.rounds for one in seen)
    result = {
        "stalled": any(thread.is_alive() for thread in _threads()),
        "rounds": sum(one.rounds for one in seen),
        "operator_calls": sum(one.calls for one in seen),
        "tokens": sum(one.tokens for one in seen),
        "preempted": sum(one.preempted for one in seen),
        "probes": sum(one.probes for one in seen),
        "bins": {phase: sorted(counts.items()) for phase, counts in bins.items()},
        "clocked": [one.clocked for one in seen],
        "parts": [one.parts for one in seen],
        "control": sorted(second for one in seen for second in one.control),
        "different": [
            {"worker": number, **row} for number, one in enumerate(seen) for row in one.different
        ],
        "errors": [row for one in seen for row in one.errors],
    }
    for worker in load.workers:
        worker.seen = _Seen()
    del seen, bins
    return result


def held_load(device: HeldDevice) -> dict[str, Any]:
    """What is held between slices, and the `steps` made until then."""
    return {"steps": _LOADS[device].steps, **held_at_rest(device)}


def end_load(device: HeldDevice) -> None:
    """Gives back all that the load has taken."""
    load = _LOADS.pop(device, None)
    for worker in load.workers if load else ():
        worker.close()
    gc.unfreeze()


_NAME: Final = "load"


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == _NAME]


def _in_threads(works: Sequence[Callable[[], None]], until: float) -> None:
    """Runs each in a thread of its own, and waits for all, though not for ever."""
    threads = [threading.Thread(target=work, name=_NAME, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()) + STALL_S)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two host tensors hold the same bytes; NaN is itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    same = torch.contiguous_format
    pair = (t.flatten().clone(memory_format=same).view(torch.uint8) for t in (one, other))
    return torch.equal(*pair)
