"""The search itself: the reference's side, the adapter's with every call judged, and the rest.

Where no operator leaves its reference, whole states are compared: with the same model in float64,
as level L3 does it, layer by layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.transformers import adapt, unadapt
from vllm_adapter.errors import AdapterError, VllmAdapterError
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.bisecting.model import ModelInputs, Trace, Watch, layers_of, run
from vllm_adapter_conformance.bisecting.recorder import (
    DivergentCall,
    Found,
    Recorder,
    original_weights,
)
from vllm_adapter_conformance.bisecting.side import Side
from vllm_adapter_conformance.models.tiny import share as share_of

FAR: Final = 0.5
"""A reference whose error is more than this share of what it should give is none."""


@dataclass(frozen=True)
class LayerError:
    """How far a layer's states are from float64: relative, for both sides; `share` as in L3."""

    layer: str
    ours: float
    reference: float
    share: float


@dataclass(frozen=True)
class SearchResult:
    """What a search found. `verdict`: operator, elsewhere, accumulates or equal."""

    verdict: str
    layers: int
    lengths: Sequence[int]
    steps: int
    calls: int
    worst: Mapping[str, float]
    """The largest share of the budget, by operator, of the calls that were judged."""
    finding: DivergentCall | None = None
    other: float | None = None
    """The share of the reference's own kernel on the same arguments; infinite if it raised."""
    error: str = ""
    """What was raised outside of the operators, and behind which call."""
    growth: Sequence[LayerError] = ()


def search(
    model: Any,
    given: ModelInputs,
    ours: Side,
    reference: Side | None,
    steps: int,
    watch: Callable[[str], None],
) -> SearchResult:
    """Looks for the first operator of `ours` that leaves its float64 reference.

    `reference` is None for plain transformers. `watch` is told what runs.

    Raises:
        VllmAdapterError: a side cannot run the model at all, or the reference is none.
    """
    plain = _reference(model, given, reference, steps, watch)
    mine = _ours(model, given, ours, steps, plain.tokens, watch)
    judged = SearchResult(
        "equal",
        len(layers_of(model)),
        given.lengths,
        steps,
        mine.recorder.count,
        mine.recorder.worst,
    )
    if mine.finding is not None:
        other = _share_on(reference, mine.finding)
        if other is not None and other > 1:
            raise AdapterError(
                f"the reference leaves float64 too, at {mine.finding.path}: {other:.3g} of the "
                "budget",
                hint="--against transformers takes plain transformers as the reference",
            )
        return dataclasses.replace(judged, verdict="operator", finding=mine.finding, other=other)
    if mine.error:
        return dataclasses.replace(judged, verdict="elsewhere", error=mine.error)
    watch("float64")
    truth = run(model.double(), given, steps, plain.tokens, lambda number: None)
    growth = _growth(mine.trace, plain, truth)
    verdict = "accumulates" if growth[-1].share > 1 else "equal"
    return dataclasses.replace(judged, verdict=verdict, growth=growth)


@dataclass
class _Ran:
    """The adapter's side, and how it ended."""

    recorder: Recorder
    trace: Trace = field(default_factory=Trace)
    finding: DivergentCall | None = None
    error: str = ""


def _reference(
    model: Any, given: ModelInputs, side: Side | None, steps: int, watch: Callable[[str], None]
) -> Trace:
    name = "transformers" if side is None else side.name
    tell: Watch = lambda number: watch(f"{name}, forward {number}")  # noqa: E731 # one call
    if side is None:
        return run(model, given, steps, None, tell)
    adapt(model, side.opened, settings=side.settings)
    try:
        return run(model, given, steps, None, tell)
    except VllmAdapterError:
        raise
    except Exception as error:
        raise AdapterError(
            f"the reference, adapter {name}, ended with {type(error).__name__}: {error}",
            hint="--against transformers takes plain transformers as the reference",
        ) from error
    finally:
        unadapt(model)
        model.to("cpu")


def _ours(
    model: Any,
    given: ModelInputs,
    side: Side,
    steps: int,
    tokens: torch.Tensor | None,
    watch: Callable[[str], None],
) -> _Ran:
    with original_weights() as weights:
        adapt(model, side.opened, settings=side.settings)
    recorder = Recorder(weights, side.settings.fallback.value)
    recorder.install(model)
    ran = _Ran(recorder)

    def tell(number: int) -> None:
        recorder.forward = number
        watch(f"{side.name}, forward {number}")

    try:
        ran.trace = run(model, given, steps, tokens, tell)
    except Found as found:
        ran.finding = found.finding
    except VllmAdapterError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        ran.error = f"{what}, after {recorder.last or 'no call of an operator'}"
    finally:
        unadapt(model)
        model.to("cpu")
    return ran


def _share_on(side: Side | None, finding: DivergentCall) -> float | None:
    if side is None:
        return None
    try:
        return side.share(finding.call)
    except Failure as failure:
        return math.inf if failure.share is None else failure.share


def _growth(ours: Trace, reference: Trace, truth: Trace) -> list[LayerError]:
    """Layer by layer and at the end, how far both sides are from float64.

    Raises:
        AdapterError: the reference is nowhere near it.
    """
    found = [
        _error(str(number), *parts)
        for number, parts in enumerate(
            zip(ours.layers, reference.layers, truth.layers, strict=True)
        )
    ]
    found.append(_error("the result", ours.final, reference.final, truth.final))
    if not found[-1].reference < FAR:
        raise AdapterError(
            f"the reference is off by {found[-1].reference:.2g} of the result in float64",
            hint="take another: --against transformers, or a wider --dtype",
        )
    return found


def _error(
    name: str,
    ours: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    truth: Sequence[torch.Tensor],
) -> LayerError:
    mine, other, right = (torch.cat(list(side)).double() for side in (ours, reference, truth))
    size = float(right.square().mean().sqrt())
    distances = [float((side - right).square().mean().sqrt()) / size for side in (mine, other)]
    return LayerError(name, distances[0], distances[1], share_of(mine, other, right))
