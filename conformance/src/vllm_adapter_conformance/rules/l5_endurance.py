"""L5: hours of serving in small: a mixed load, held against what it gave at first."""

from __future__ import annotations

import math
import statistics
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.decoder_shape import DecoderShape, decoder_shape
from vllm_adapter_conformance.ops.cases import base_cases, declared
from vllm_adapter_conformance.performance.length import minutes_asked, minutes_needed
from vllm_adapter_conformance.performance.roofline import spell_seconds
from vllm_adapter_conformance.performance.steady import (
    DRIFT,
    QUIET,
    Latencies,
    clocks_disagree,
    drift,
    leaks,
    spread_of,
)
from vllm_adapter_conformance.rules._roofline import has_library

if TYPE_CHECKING:
    import torch

    from vllm_adapter_conformance.performance.host_decoder import Script

LOAD: Final = "L5.endurance.load"
WINDOWS: Final = 24
LEAST: Final = 12
"""Windows, without which no slope can be told."""
SHORTEST_S, LONGEST_S = 0.5, 20.0
"""Of a window, between which the load stands still for a moment."""
LEAST_WORKERS: Final = 2
TIMES: Final = 4.0
"""So many times as far from float64 as plain torch in the same dtype a result may be."""
MARGIN_S: Final = 300.0


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    if target.capability is None:
        return
    found = [decoder_shape(declared(target), dtype) for dtype in DTYPES]
    shapes = [asdict(shape) for shape in found if isinstance(shape, DecoderShape)]
    if shapes:
        limit = 60 * minutes_asked(target) * 1.2 + MARGIN_S
        yield Case("mixed", {"shapes": shapes}, "/operators", limit)
    else:
        reject = next(one for one in found if isinstance(one, Reject))
        yield NotDeclaredCase("mixed", reject.pointer, str(reject))


@rule(
    LOAD,
    summary="a mixed load runs as long as asked: results stay right, memory and latency steady",
    why="What fails after hours fails at a customer's. Two threads or more, each with a tiny "
    "decoder over a paged cache of its own (one a declared dtype) and, where the device has "
    "streams, a stream of its own, prefill and decode sequences that grow, end and make room; "
    "the other declared operators are called in between. A script of known inputs is run again "
    "all the time: its first results are held against float64, the later ones must be the first "
    "bit by bit, or right within the same tolerance where the descriptor says that the device is "
    "not deterministic. Between windows nothing is left but what somebody keeps: a count that "
    "grows with the steps, window after window, is a leak. A phase's fastest tenth must not "
    "double from the first third to the last, beside a product of matrices timed in the same "
    "threads. Tokens a second are by the judge's clock; steps are timed in the device's process, "
    "and what it says of them must make up at least half of the time that the judge saw pass.",
    cases=_cases,
    needs=("L2.kv_cache",),
)
def check_load(bench: Bench, case: Case) -> Observation:
    """Starts the load, runs it in windows, judges each at once and the whole at its end."""
    from vllm_adapter_conformance.device_side.load import (
        end_load,
        held_load,
        run_load,
        start_load,
    )

    minutes = minutes_asked(bench.target)
    judge = LoadJudge(bench, case.params["shapes"])
    judge.first(bench.observe(start_load, models=judge.models, seed=_own_seed(bench.target.seed)))
    window = min(LONGEST_S, max(SHORTEST_S, 60 * minutes / WINDOWS))
    begin = time.monotonic()
    try:
        while (left := begin + 60 * minutes - time.monotonic()) > 0 or judge.windows < LEAST:
            done = 1 - max(0.0, left) / (60 * minutes)
            seconds = min(window, max(left, SHORTEST_S))
            started = time.perf_counter()
            seen = bench.observe(run_load, seconds=seconds)
            seen["wall"] = time.perf_counter() - started
            judge.window(seen | {"held": bench.observe(held_load)}, done)
            bench.say(judge.progress(left))
    finally:
        if bench.is_open:  # a process that ended has nothing left
            bench.observe(end_load)
    return judge.verdict(time.monotonic() - begin)


@rule(
    "L5.endurance.length",
    summary="the load has run as long as the level asks for",
    why="Thirty minutes on an accelerator; ten on a CPU, or where the device is emulated. "
    "`--minutes` shortens a try, and a shorter run does not reach the level, however well it "
    "went.",
    cases=_cases,
    needs=(LOAD,),
)
def check_length(bench: Bench, case: Case) -> Observation:
    """The load before has run for as long as was asked."""
    asked, needed = minutes_asked(bench.target), minutes_needed(bench.target)
    if asked < needed:
        raise Failure(f"{needed:g} minutes of load on this device", f"{asked:g} minutes")
    return Observation(note=f"{asked:g} minutes")


def _own_seed(seed: int) -> int:
    """For what the device's side draws: the run's own stays with the judge."""
    return int.from_bytes(sha256(f"load/{seed}".encode()).digest()[:3])


class LoadJudge:
    """Draws what a load is given, and judges what it gave."""

    def __init__(self, bench: Bench, shapes: Sequence[Mapping[str, Any]]) -> None:
        from vllm_adapter_conformance.performance import host_decoder

        self._bench, seed = bench, bench.target.seed
        self._shapes = [DecoderShape(**raw) for raw in shapes]
        while len(self._shapes) < LEAST_WORKERS:
            self._shapes.append(self._shapes[0])
        self._scripts: list[Script] = []
        self.models: list[dict[str, Any]] = []
        self._sides = [_sides(bench, shape.dtype) for shape in self._shapes]
        for shape, sides in zip(self._shapes, self._sides, strict=True):
            script = host_decoder.draw_script(shape, seed)
            self._scripts.append(script)
            self.models.append(
                {
                    "shape": shape.plain(),
                    "weights": host_decoder.draw_weights(shape, seed),
                    "script": asdict(script),
                    "sides": [side.given for side in sides],
                    "own_linear": has_library(bench.target),
                }
            )
        self._deterministic = declared(bench.target).numerics.deterministic is not False
        self._truth: list[tuple[torch.Tensor, float]] = []
        self._worst = 0.0
        self._totals = dict.fromkeys(_TOTALS, 0)
        # Arrays: in one process with the device, what the judge keeps is counted too.
        self._windows: dict[str, array[float]] = {}
        self._thirds: dict[str, tuple[Latencies, ...]] = {}
        self._all: dict[str, Latencies] = {}
        self._control = array("d"), array("d"), array("d")
        self._conditions: dict[str, Any] = {}
        self._clocks = [0.0, 0.0, 0.0]
        """Seconds of all windows: the judge's, the device's process's, and of parts in it."""

    @property
    def windows(self) -> int:
        """How many windows there were."""
        return len(self._windows.get("steps", ()))

    def first(self, seen: Mapping[str, Any]) -> None:
        """Holds the first results against float64.

        Raises:
            Failure: one of them is wrong.
        """
        import torch

        from vllm_adapter_conformance.performance import host_decoder

        self._conditions = {name: seen[name] for name in ("threads", "torch", "streams")}
        for number, (shape, script, model) in enumerate(
            zip(self._shapes, self._scripts, self.models, strict=True)
        ):
            weights, dtype = model["weights"], getattr(torch, shape.dtype)
            truth = host_decoder.run_script(shape, weights, script, torch.float64)
            plain = host_decoder.run_script(shape, weights, script, dtype)
            self._truth.append((truth, TIMES * distance(plain, truth)))
            self._hold(number, "decoder", seen["first"][number], "at the beginning")
            for side, found in zip(self._sides[number], seen["sides"][number], strict=True):
                self._hold(number, side.op, found, "at the beginning")

    def window(self, seen: Mapping[str, Any], done: float) -> None:
        """Takes a window's counts, and judges its results. `done` is its place, from 0 to 1.

        Raises:
            Failure: a worker stalled, an error, or a wrong result.
        """
        after = (
            f"after {self._totals['rounds']} to {self._totals['rounds'] + seen['rounds']} steps"
        )
        if seen["stalled"]:
            raise Failure("every step of the load to end", f"one that does not, {after}")
        if seen["errors"]:
            error = seen["errors"][0]
            raise Failure(
                "steps without an error",
                f"{len(seen['errors'])} {after}, first {error['kind']}: {error['words']}",
            )
        for row in seen["different"]:
            if row["found"] is not None:
                self._hold(row["worker"], row["what"], row["found"], after)
            if self._deterministic:
                raise Failure(
                    f"the same bits from the same inputs ({row['what']} in "
                    f"{self._shapes[row['worker']].dtype}), all the time",
                    f"others, {after}",
                    detail=f"seed {self._bench.target.seed}; numerics.deterministic is not false",
                )
        for name in _TOTALS:
            self._totals[name] += seen[name]
        workers = len(self._shapes)
        for at, part in enumerate((seen["wall"], sum(seen["clocked"]), sum(seen["parts"]))):
            self._clocks[at] += part if at == 0 else part / workers
        third = min(2, int(3 * done))
        for phase, rows in seen["bins"].items():
            thirds = self._thirds.setdefault(phase, tuple(Latencies() for _ in range(3)))
            thirds[third].add(rows)
            self._all.setdefault(phase, Latencies()).add(rows)
        if seen["control"]:
            fast = seen["control"][int(QUIET * len(seen["control"]))]
            self._control[third].append(fast)
        for what, value in seen["held"].items():
            self._windows.setdefault(what, array("d")).append(value)

    def progress(self, left: float) -> str:
        """What is shown while it runs."""
        minutes, seconds = divmod(max(0, round(left)), 60)
        decode = self._all.get("decode")
        p50 = decode.quantile(0.5) if decode else None
        text = f"{minutes} min {seconds:02} s left, {self._totals['rounds']} steps"
        return text if p50 is None else f"{text}, decode p50 {spell_seconds(p50)}"

    def verdict(self, seconds: float) -> Observation:
        """What the whole run shows.

        Raises:
            Failure: memory grows, a phase slows down, or nothing was checked.
        """
        drifts = {phase: self._drift(thirds) for phase, thirds in self._thirds.items()}
        figures = {
            "endurance": {
                "minutes_needed": minutes_needed(self._bench.target),
                "minutes": round(seconds / 60, 3),
                "workers": [shape.dtype for shape in self._shapes],
                "streams": self._conditions["streams"],
                **{name: self._totals[name] for name in _TOTALS},
                "tokens_per_s": self._totals["tokens"] / self._clocks[0],
                "latency_s": {
                    phase: {**spread_of(self._all[phase]), "drift": drifts[phase]}
                    for phase in sorted(self._all)
                },
                "memory": {
                    what: [int(value) for value in column]
                    for what, column in self._windows.items()
                },
            },
            "threads": self._conditions["threads"],
            "torch": self._conditions["torch"],
        }
        problem = clocks_disagree(*self._clocks)
        if problem is not None:
            raise Failure("latencies that fit the time that passed", problem, figures=figures)
        found = leaks(self._windows)
        if found:
            raise Failure(
                "memory that is steady between windows of equal load",
                "; ".join(found),
                figures=figures,
            )
        for phase, times in drifts.items():
            if times is not None and times > DRIFT:
                raise Failure(
                    f"{phase} steps no slower at the end than twice what they were at first",
                    f"{times:.3g} times as slow in the last third",
                    figures=figures,
                )
        if not self._totals["probes"]:
            raise Failure(
                "results to be checked while the load runs",
                f"no check within {self._totals['rounds']} steps: the run was too short",
                figures=figures,
            )
        totals = self._totals
        note = (
            f"{totals['rounds']} steps and {totals['probes']} checks in {seconds / 60:.3g} min; "
            f"largest error {self._worst:.2g} of what plain torch may have"
        )
        return Observation(share=self._worst, note=note, figures=figures)

    def _hold(self, number: int, what: str, found: torch.Tensor, when: str) -> None:
        if what == "decoder":
            truth, allowed = self._truth[number]
            share = distance(found, truth) / allowed if allowed else math.inf
        else:
            share = next(s for s in self._sides[number] if s.op == what).share(found)
        share = share if math.isfinite(share) else math.inf
        self._worst = max(self._worst, share)
        if share > 1:
            raise Failure(
                f"{what} in {self._shapes[number].dtype} as near to float64 as it may be, {when}",
                f"{share:.3g} times what is allowed",
                share=share,
                detail=f"seed {self._bench.target.seed}",
            )

    def _drift(self, thirds: Sequence[Latencies]) -> float | None:
        if not (self._control[0] and self._control[2]):
            return None
        control = statistics.median(self._control[0]), statistics.median(self._control[2])
        return drift(thirds[0], thirds[2], control)


_TOTALS: Final = ("rounds", "operator_calls", "tokens", "preempted", "probes")


class _LoadSide:
    """An operator beside the decoder: one sample, and its reference."""

    def __init__(self, bench: Bench, op: str, facts: Mapping[str, Any]) -> None:
        from vllm_adapter.engine.ops.catalog import SPECS
        from vllm_adapter_conformance.ops.trials import TRIALS

        self.op, self._trial, self._facts = op, TRIALS[op], facts
        self._sample = self._trial.samples(facts, bench.target.seed)[0]
        self._args = [_contiguous(a) for a in self._sample.build(lambda tensor: tensor.clone())]
        self.given = {"op": op, "facts": dict(facts), "args": self._args}
        assert not SPECS[op].mutates

    def share(self, found: torch.Tensor) -> float:
        """The error of a result as a share of its budget."""
        from vllm_adapter_conformance.ops.tolerance import compare

        upcast = [_upcast(argument) for argument in self._args]
        (want,) = self._trial.reference(*upcast)
        return compare(found, want, self._sample.terms or self._trial.terms(self._facts)).share


def _sides(bench: Bench, dtype: str) -> list[_LoadSide]:
    """The declared operators that no decoder calls."""
    capability = declared(bench.target)
    within = {op for op, _ in DecoderShape(dtype, 1, 1, 1).needs()}
    found = []
    for op in OPERATORS:
        for base in base_cases(capability, op) if op not in within else ():
            if base.facts["dtype"] == dtype:
                found.append(_LoadSide(bench, op, base.facts))
                break
    return found


def _upcast(value: Any) -> Any:
    is_float = getattr(value, "is_floating_point", None)
    return value.double() if is_float is not None and is_float() else value


def _contiguous(value: Any) -> Any:
    return value.contiguous() if hasattr(value, "contiguous") else value


def distance(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Root of the mean square of the differences, in float64; another shape is infinitely far."""
    if got.shape != truth.shape:
        return math.inf
    return float((got.double() - truth.double()).square().mean().sqrt())
