"""Measured choices: who asks for them (`tuned`), and how they are made (`measure`)."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.tuning import (
    Choice,
    Sizes,
    TunedChoice,
    TuningEntry,
    TuningTable,
    bucket_of,
    choose,
)
from vllm_adapter.engine.ops.providers import device_key, load
from vllm_adapter.engine.ops.spec import dtype_name
from vllm_adapter.engine.registries import on_reset

WORTH: Final = 0.97
"""A choice is taken where its median is below so much of the default's: less may be noise."""
WON: Final = 2 / 3
"""And where it is faster in so many of the rounds."""
ROUNDS: Final = 9
LEAST_S: Final = 2e-3
"""Calls are repeated until a measurement takes so long, by a first call's time."""
MOST_CALLS: Final = 200
TORCH_VERSION: Final = str(torch.__version__)


@dataclass(frozen=True, slots=True)
class TuneCase:
    """What an adapter's `tune` function gives for one bucket: choices, and a call to measure.

    `run` launches the kernel once, asking `tuned` for the choice as it does when it serves.
    """

    operator: str
    dtype: torch.dtype
    sizes: Sizes
    choices: Sequence[Choice]
    run: Callable[[], Any]


@dataclass(slots=True)
class Tuning:
    """The tables of the devices in use, and the choice that is being tried."""

    tables: dict[str, tuple[str, int | None, tuple[TuningTable, ...]]] = field(
        default_factory=dict
    )
    _found: dict[tuple[Any, ...], TunedChoice] = field(default_factory=dict)
    _trying: Choice | None = None

    def use(
        self,
        device: torch.device | str,
        arch: str,
        units: int | None,
        tables: Sequence[TuningTable],
    ) -> None:
        """Lets tables speak for a device of an arch with so many units."""
        self.tables[device_key(device)] = arch, units, tuple(tables)
        self._found.clear()

    def choice(
        self, operator: str, device: torch.device | str, dtype: torch.dtype, sizes: Sizes
    ) -> TunedChoice:
        """What was measured for a case on a device, and how near to it."""
        if self._trying is not None:
            return TunedChoice(self._trying, "trying")
        key = (operator, device, dtype, *sizes.items())
        found = self._found.get(key)
        if found is None:
            arch, units, tables = self.tables.get(device_key(device), ("", None, ()))
            name = dtype_name(torch.empty(0, dtype=dtype))
            found = self._found[key] = choose(tables, arch, units, operator, name, sizes)
        return found

    @contextlib.contextmanager
    def trying(self, choice: Choice) -> Iterator[None]:
        """Has every kernel take this choice."""
        before, self._trying = self._trying, choice
        try:
            yield
        finally:
            self._trying = before

    def clear(self) -> None:
        """Forgets every table."""
        self.tables.clear()
        self._found.clear()


TUNING: Final = Tuning()
"""The process's own."""
on_reset(TUNING.clear)


def tuned(operator: str, device: torch.device | str, dtype: torch.dtype, sizes: Sizes) -> Choice:
    """What `vllm-adapter tune` measured to run best, by the kernel's own names; empty: nothing.

    A look-up and nothing else: nothing is measured while serving. `sizes` are whole numbers by
    name, and go by powers of two.
    """
    return TUNING.choice(operator, device, dtype, sizes).choice


def cases_of(
    capability: Capability, device: torch.device, who: str, ops: Sequence[str]
) -> list[TuneCase]:
    """What the entries of a descriptor give to measure, each function asked once a dtype.

    Raises:
        AdapterError: a function cannot be imported.
    """
    asked = dict.fromkeys(
        (entry.tune, dtype)
        for op in ops
        for entry in capability.operators.get(op, ())
        if entry.declares and entry.tune
        for dtype in entry.dtypes
    )
    found: list[TuneCase] = []
    for function, dtype in asked:
        found += load(str(function), who)(device, getattr(torch, dtype), capability)
    return found


def measure(
    case: TuneCase,
    synchronize: Callable[[], None],
    *,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> TuningEntry:
    """Times the default and every choice in alternation, and gives the best.

    A choice that cannot run (too much shared memory, say) is left out. In each round all are
    timed one after the other, so that a busy moment of the machine hits all of them.
    """
    times: dict[int, list[float]] = {}
    tried: Mapping[int, Choice] = dict(enumerate(({}, *case.choices)))
    calls: dict[int, int] = {}
    for number, choice in tried.items():
        try:
            with TUNING.trying(choice):
                case.run()  # compiles
                first = _timed(case.run, 1, synchronize, clock)
        except Exception:
            if not number:
                raise
            continue
        calls[number] = max(1, min(MOST_CALLS, int(LEAST_S / max(first, 1e-9))))
        times[number] = []
    for turn in range(rounds):
        order = list(times)
        for number in order if turn % 2 else reversed(order):
            with TUNING.trying(tried[number]):
                count = calls[number]
                times[number].append(_timed(case.run, count, synchronize, clock) / count)
    default = times[0]
    medians = {number: statistics.median(found) for number, found in times.items()}
    best = min(medians, key=lambda number: medians[number])
    won = sum(mine < theirs for mine, theirs in zip(times[best], default, strict=True)) / rounds
    if medians[best] >= WORTH * medians[0] or won < WON:
        best = 0
    return TuningEntry(
        operator=case.operator,
        dtype=dtype_name(torch.empty(0, dtype=case.dtype)),
        bucket=bucket_of(case.sizes),
        choice=dict(tried[best]),
        median_us=round(medians[best] * 1e6, 3),
        default_us=round(medians[0] * 1e6, 3),
        tried=len(times) - 1,
    )


def _timed(
    run: Callable[[], Any],
    count: int,
    synchronize: Callable[[], None],
    clock: Callable[[], float],
) -> float:
    synchronize()
    start = clock()
    for _ in range(count):
        run()
    synchronize()
    return clock() - start
