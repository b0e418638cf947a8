"""L5: faults while a model runs: a typed error, and then the load goes on with right numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.operators import DTYPES
from vllm_adapter.engine.device_process.errors import ProcessEnded
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.decoder_shape import DecoderShape, decoder_shape
from vllm_adapter_conformance.ops.cases import declared
from vllm_adapter_conformance.rules.l5_endurance import LOAD, TIMES, distance

if TYPE_CHECKING:
    import torch

TOO_MUCH: Final = "more memory than there is"
ROUNDS: Final = 6
ROUND_S: Final = 60.0
HANG_S: Final = 8.0


@dataclass(frozen=True)
class Injected:
    """A fault that an emulated device's library is asked for, by its environment.

    `error` is what must be seen, in some rounds; `for_good`: in all rounds from then on.
    """

    variables: Mapping[str, str]
    error: str | None
    for_good: bool = False


INJECTED: Final[Mapping[str, Injected]] = {
    "failed launches": Injected({"SIM_FAULT": "launch@60/331"}, "LaunchFailed"),
    "refused allocations": Injected({"SIM_FAULT": "oom@30/457"}, "OutOfMemory"),
    "lost device": Injected({"SIM_FAULT": "lost@700"}, "DeviceLost", for_good=True),
    "hang": Injected({"SIM_LATENCY_US": "60000000"}, None),
}
"""What `adapters/sim` understands; each counts chances of its kind over the whole process."""


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    if target.capability is None:
        return
    found = [decoder_shape(declared(target), dtype) for dtype in DTYPES]
    shapes = [asdict(shape) for shape in found if isinstance(shape, DecoderShape)]
    if not shapes:
        reason = "no decoder can be made of the declared operators"
        yield NotDeclaredCase(TOO_MUCH, "/operators", reason)
        return
    yield Case(TOO_MUCH, {"shape": shapes[0]}, "/operators")
    for name in INJECTED:
        if can_inject(target):
            yield Case(name, {"shape": shapes[0]}, "/operators")
        else:
            reason = "a fault can be injected into an emulated device's library alone"
            yield NotDeclaredCase(name, "/device/library", reason)


def can_inject(target: Target) -> bool:
    """Whether the device is a C library's that says of itself that it emulates."""
    manifest = target.record.manifest
    return bool(target.emulated and manifest and manifest.device and manifest.device.library)


@rule(
    "L5.endurance.faults",
    summary="a fault ends in a typed error, and the load goes on after it with right numbers",
    why="A server that meets out of memory lets a request wait, one that loses its device starts "
    "anew; both need to be told which it is, and neither may be told by a wrong token. A tiny "
    "decoder runs its script round after round while allocations are refused, launches fail, the "
    "device is lost or does not answer: each round ends in the results of an undisturbed one, "
    "bit by bit, or in an error that core types (OutOfMemory, LaunchFailed, DeviceLost). After "
    "an error the next round is right in the same process; after a lost device, or one that "
    "hangs and is ended from outside, in a new one. Faults are injected where the library is an "
    "emulated one; asking for more memory than there is can be tried anywhere.",
    cases=_cases,
    needs=(LOAD,),
    seconds=400.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """Runs the script with the fault, and without."""
    from vllm_adapter_conformance.device_side.fault_rounds import ask_for_too_much
    from vllm_adapter_conformance.performance import host_decoder

    shape = DecoderShape(**case.params["shape"])
    seed = bench.target.seed
    script = host_decoder.draw_script(shape, seed)
    weights = host_decoder.draw_weights(shape, seed)
    model = {"shape": shape.plain(), "weights": weights, "script": _plain(script)}
    if case.id == TOO_MUCH:
        seen = bench.observe(ask_for_too_much, model=model)
        _right(shape, weights, script, seen["first"])
        return judge_too_much(seen)
    fault = INJECTED[case.id]
    calm = rounds_beside(bench, model, _CALM, 1)
    if calm["results"] is None or len(calm["rounds"]) != 1:
        how = calm["words"] or calm["ended"] or _without_results(calm["rounds"])
        raise Failure("a right round in a process without a fault", f"{how}")
    _right(shape, weights, script, calm["results"])
    digest = calm["rounds"][0]["digest"]
    silent_s = HANG_S if fault.error is None else ROUND_S
    seen = rounds_beside(bench, model, {**_CALM, **fault.variables}, ROUNDS, silent_s)
    note = judge_rounds(case.id, fault, seen, digest)
    if fault.error is None or fault.for_good:
        again = rounds_beside(bench, model, _CALM, 1)
        if [row["digest"] for row in again["rounds"]] != [digest]:
            raise Failure("the same results in a new process", f"{again['rounds']}")
        note += "; a new process goes on, with the same results"
    return Observation(note=note, figures={"faults": [{"fault": case.id, "seen": note}]})


_CALM: Final = {"SIM_FAULT": "", "SIM_LATENCY_US": ""}


def rounds_beside(
    bench: Bench,
    model: Mapping[str, Any],
    variables: Mapping[str, str],
    rounds: int,
    silent_s: float = ROUND_S,
) -> dict[str, Any]:
    """What rounds gave in one more process of the device, with variables in its environment.

    Gives `rounds` (as `try_round` has them, with the `digest` of the results in their place),
    `results` (of the first right round, or None), `begun` (the process came up), `hung` (a round
    took longer than `silent_s`), `ended` (how the process did, if it did) and its last `words`.
    """
    from vllm_adapter_conformance.device_side.fault_rounds import try_round

    rows: list[dict[str, Any]] = []
    seen: dict[str, Any] = {"rounds": rows, "results": None, "begun": False}
    seen |= {"hung": False, "ended": None, "words": ""}
    other = bench.beside(variables)
    try:
        other.allow(silent_s)
        other.ask("live")
        seen["begun"] = True
        for _ in range(rounds):
            other.allow(silent_s)
            row = other.observe(try_round, model=model)
            results = row.pop("results")
            if results is not None and seen["results"] is None:
                seen["results"] = results
            rows.append(row | {"digest": _digest(results)})
    except ProcessEnded as ended:
        seen |= {"hung": ended.hung, "ended": str(ended), "words": ended.words}
    finally:
        other.end()
    return seen


def _digest(results: torch.Tensor | None) -> str | None:
    """Of a host tensor's bytes."""
    if results is None:
        return None
    import torch

    return sha256(results.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _without_results(rows: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{row['error']}: {row['words']}" for row in rows)


def judge_too_much(seen: Mapping[str, Any]) -> Observation:
    """More memory than there is was refused by name, and the results after it are the first.

    Raises:
        Failure: it was granted, the error is another, or the results are.
    """
    for row in seen["errors"]:
        if not row["typed"]:
            raise Failure(
                f"OutOfMemory for {row['what']}", row["error"] or "no error: it was granted"
            )
    if not seen["after"].equal(seen["first"]):
        raise Failure("the same results after a refused allocation", "others")
    note = "; ".join(f"{row['what']}: {row['error']}" for row in seen["errors"])
    return Observation(note=note, figures={"faults": [{"fault": TOO_MUCH, "seen": note}]})


def judge_rounds(name: str, fault: Injected, seen: Mapping[str, Any], digest: str) -> str:
    """What the rounds with a fault were, in words.

    Raises:
        Failure: a wrong number, an error without a type, a fault that nobody was told of, or no
            right round after it.
    """
    rounds: Sequence[Mapping[str, Any]] = seen["rounds"]
    if not seen["begun"]:
        raise Failure("the process to open the device", seen["words"] or f"{seen['ended']}")
    for number, row in enumerate(rounds, 1):
        if row["error"] is None and row["digest"] != digest:
            raise Failure(
                f"{name}: results of a round without an error as without a fault",
                f"others in round {number}: a fault became a wrong number",
            )
        if row["error"] is not None and not row["typed"]:
            raise Failure(f"{name}: an error that core types", f"{row['error']}: {row['words']}")
    if fault.error is None:
        if not seen["hung"]:
            raise Failure(f"{name}: no answer, and the process ended from outside", f"{rounds}")
        return f"no answer within {HANG_S:g} s, ended from outside"
    if seen["ended"] is not None:
        how = "it hangs" if seen["hung"] else f"{seen['ended']}: {seen['words']}"
        raise Failure(f"{name}: the process to go on after the error", how)
    names = [row["error"] for row in rounds]
    struck = [number for number, error in enumerate(names) if error is not None]
    if not any(fault.error in str(names[number]) for number in struck):
        raise Failure(f"{name}: {fault.error} in some round", f"{names}")
    after = names[struck[0] :]
    if fault.for_good:
        if None in after:
            raise Failure(f"{name}: an error in every round from then on", f"{names}")
    elif None not in after:
        raise Failure(f"{name}: a right round after the error", f"{names}")
    left = [row["left"] for row in rounds]
    if not fault.for_good and len(set(left)) > 1 and left[-1] > left[0] and None not in left:
        raise Failure(f"{name}: as many allocations after each round", f"{left}")
    told = ", ".join(str(error or "right") for error in names)
    return f"{len(rounds)} rounds: {told}"


def _plain(script: Any) -> dict[str, Any]:
    raw = asdict(script)
    return raw | {"lengths": list(raw["lengths"]), "steps": list(raw["steps"])}


def _right(shape: DecoderShape, weights: Any, script: Any, found: Any) -> None:
    """The undisturbed results are as near to float64 as they may be."""
    import torch

    from vllm_adapter_conformance.performance import host_decoder

    truth = host_decoder.run_script(shape, weights, script, torch.float64)
    plain = host_decoder.run_script(shape, weights, script, getattr(torch, shape.dtype))
    share = distance(found, truth) / (TIMES * distance(plain, truth))
    if not share <= 1:
        raise Failure(
            "the results of a round without a fault as near to float64 as they may be",
            f"{share:.3g} times what is allowed",
            share=None if share != share else share,
        )
