"""The certificate's section `performance`: what L5 measured, as the format's types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

_Count = Annotated[int, Meta(ge=0)]
_Amount = Annotated[float, Meta(ge=0)]
_Key = Annotated[str, Meta(min_length=1)]


class MeasuredFigure(Struct, frozen=True):
    """One measured figure: the median of its samples, and the interval that encloses it."""

    unit: Literal["bytes/s", "flop/s", "s", "share"]
    """Bytes or floating-point operations a second, seconds, or a share of the roofline."""
    median: _Amount
    """The median of the samples."""
    low: _Amount
    """Lower end of the median's interval: 95 %, by ranks; of fewer than six samples, the least."""
    high: _Amount
    """Upper end of it; of fewer than six samples, the greatest."""
    least: _Amount
    """The least sample."""
    most: _Amount
    """The greatest sample."""
    samples: Annotated[int, Meta(ge=1)]
    """How many samples there are."""


class Conditions(Struct, frozen=True):
    """What must be equal for two certificates' speeds to be compared."""

    device: str
    """The device's name."""
    torch: str
    """torch's version, with its build."""
    drivers: Mapping[str, str]
    """Versions of drivers, firmware and toolkits, by component."""
    threads: _Count
    """Threads that torch uses on the host."""


class DeviceRate(Struct, frozen=True):
    """What the device itself does."""

    what: Literal["copy", "read", "gemm"]
    """A copy on the device (bytes read and written), a sum that reads, or a product of square
    matrices: torch's, or a C library's own linear."""
    dtype: str | None
    """Dtype of the product; null for bytes."""
    amount: _Count
    """Bytes or floating-point operations of one call."""
    beyond_caches: bool | None
    """Whether the buffers that took turns are at least four times the last cache; null for
    products."""
    rate: MeasuredFigure
    """Bytes or floating-point operations a second."""


class BaselineShare(Struct, frozen=True):
    """How a share is to the baseline's."""

    verdict: Literal["kept", "rose", "fell", "not resolved", "not compared"]
    """fell and rose: by more than 10 %, and the intervals show it; kept: they show that it is
    within 10 %; not resolved: they are too wide to tell."""
    then: MeasuredFigure | None
    """The share in the baseline; null where it has none."""
    reason: str | None
    """Why they were not compared; null if they were."""


class OperatorShare(Struct, frozen=True):
    """One operator at one shape: its time, and its share of the roofline."""

    operator: _Key
    """The operator."""
    dtype: _Key
    """Its dtype."""
    phase: Literal["decode", "prefill"]
    """decode: a token a sequence; prefill: whole prompts."""
    size: Literal["small", "typical", "large"]
    """Which of the committed shapes."""
    sizes: Mapping[str, _Count]
    """The sizes that were timed: fewer tokens than the shape has, or a smaller shape, where the
    device would take more than 50 ms."""
    bytes: _Count
    """Bytes of a call: each argument read once, each result written once."""
    flops: _Count
    """Floating-point operations of a call."""
    bound: Literal["memory", "compute"]
    """What the roofline's time goes to."""
    seconds: MeasuredFigure
    """Time of one call, by the judge's clock: from its request to the answer that it is done."""
    share: MeasuredFigure
    """The roofline's time over the call's, each by a rate measured in turn with it."""
    turns: Annotated[int, Meta(ge=1)]
    """Sets of arguments that took turns."""
    beyond_caches: bool
    """Whether those were together at least four times the last cache; if not, a share of the
    memory's roofline may be above 1."""
    baseline: BaselineShare | None
    """How it is to the baseline; null without one."""


class UsedBaseline(Struct, frozen=True):
    """The certificate against which the shares were held, and how many were what."""

    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Its digest."""
    created: _Key
    """When it was made."""
    kept: _Count
    """Shares within 10 % of it."""
    rose: _Count
    """Shares that rose by more than 10 %."""
    fell: _Count
    """Shares that fell by more than 10 %."""
    not_resolved: _Count
    """Shares whose intervals are too wide to tell."""
    not_compared: _Count
    """Shares that it has not, or that were measured under other conditions."""


class PhaseLatency(Struct, frozen=True):
    """Latencies of one phase's steps, as the device's process sees them, within 1 %.

    All its times together are at least half of the time that passed by the judge's clock.
    """

    steps: _Count
    """How many steps there were."""
    p50: _Amount | None
    """Half of them took no longer, in seconds."""
    p90: _Amount | None
    """Nine of ten took no longer."""
    p99: _Amount | None
    """99 of a hundred took no longer."""
    longest: _Amount | None
    """The longest step."""
    drift: _Amount | None
    """p10 of the last third over that of the first, beside a product of matrices that was timed
    in the same threads; null where there were too few steps."""


class EnduredLoad(Struct, frozen=True):
    """The mixed load: how long it ran, how much it did, and what it kept."""

    minutes_needed: _Amount
    """How long the level asks for on this device."""
    minutes: _Amount
    """How long it ran."""
    workers: tuple[_Key, ...]
    """The dtype of each worker: one thread, decoder and cache each."""
    streams: _Count
    """How many of them have a stream of their own."""
    rounds: _Count
    """Steps of decoders."""
    operator_calls: _Count
    """Calls of operators."""
    tokens: _Count
    """Tokens of all steps."""
    tokens_per_s: _Amount
    """Tokens of all workers in a second, by the judge's clock."""
    preempted: _Count
    """Sequences that had to make room."""
    probes: _Count
    """How often the script of known inputs was run and compared with its first results."""
    latency_s: Mapping[Literal["decode", "prefill", "mixed"], PhaseLatency]
    """Latencies by phase."""
    memory: Mapping[_Key, tuple[int, ...]]
    """What was held at the end of each window, by what was counted."""


class SeenFault(Struct, frozen=True):
    """One fault, and what came of it."""

    fault: _Key
    """What was done."""
    seen: _Key
    """How each round ended."""


class Performance(Struct, frozen=True):
    """What L5 measured, as measured: no figure is from a datasheet, and none has to be passed."""

    conditions: Conditions
    """What must be equal for two certificates' speeds to be compared."""
    cache_bytes: _Count | None
    """The last cache before memory, as the device or the system says; null if neither does."""
    launch: MeasuredFigure | None
    """Seconds of a call that does next to nothing."""
    rates: tuple[DeviceRate, ...]
    """The device's own roofline, measured before the operators."""
    shares: tuple[OperatorShare, ...]
    """Operators' shares of it."""
    baseline: UsedBaseline | None
    """The certificate against which they were held; null without one."""
    endurance: EnduredLoad | None
    """The mixed load; null if it was not run to its end."""
    faults: tuple[SeenFault, ...]
    """Faults that ended well."""
