"""What is asked of a plan: context, concurrency, objective; and what an operator has decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from vllm_adapter.errors import InputError

Objective = Literal["latency", "throughput"]
OBJECTIVES: Final = get_args(Objective)
MOST_TOKENS: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Workload:
    """`context` tokens of a sequence, None: all that the model has; `concurrency` sequences that
    must fit at that length at once, None: one. `own` are values that the operator has fixed, by
    the plan's keys; they win."""

    context: int | None = None
    concurrency: int | None = None
    objective: Objective = "throughput"
    own: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("context", self.context), ("concurrency", self.concurrency)):
            if value is not None and not 1 <= value <= MOST_TOKENS:
                raise InputError(
                    f"--{name} {value} is no number of {_WHAT[name]}",
                    hint=f"give a whole number from 1 to {MOST_TOKENS}",
                )


_WHAT: Final = {"context": "tokens", "concurrency": "sequences"}
