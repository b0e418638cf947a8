"""L2: the plain tensor work of a C library that the suite, torch's checks and every model need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vllm_adapter.contract.operators import DTYPES
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side.plain_work import WORK, worked
from vllm_adapter_conformance.ops.cases import declared
from vllm_adapter_conformance.rules.l1_library import of_library

if TYPE_CHECKING:
    pass

WHOLE: Final = ("int64",)
"""Of ids, tables and lengths, beside the dtypes that the descriptor declares."""


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    yield from of_library(*WORK)(target)


@rule(
    "L2.library.work",
    summary="copy, abs, add, sub, mul, eq, ne, le, and, or, all and fill run on the device",
    why="torch compares, copies and fills tensors around every operator, and so do its own checks "
    "of one: without these each case fails for want of another one, a few a run. They are asked "
    "for here in all dtypes that the descriptor declares and in int64, and the results are exact. "
    "Give the library the functions unary, binary, reduce and fill for them; what else it leaves "
    "NULL runs on the host, and is counted by L3.coverage.step.",
    cases=_cases,
    needs=("L1.copy.round_trip",),
)
def check(bench: Bench, case: Case) -> Observation:
    """One piece of work in each dtype, under policy `error`."""
    import torch

    function, work = WORK[case.id]
    x = torch.tensor([[1, -2, 3], [4, -5, 6]])
    y = torch.tensor([[1, 2, 3], [-4, -5, 7]])
    masks = [x == y, x < y]
    operators = declared(bench.target).operators.values()
    named = {dtype for entries in operators for e in entries if e.declares for dtype in e.dtypes}
    for dtype in (*(d for d in DTYPES if d in named), *WHOLE):
        given = [one.to(getattr(torch, dtype)) for one in (x, y)] + masks
        got = bench.observe(worked, name=case.id, given=given)
        want = work(*given)
        if isinstance(got, str):
            raise Failure(f"{case.id} in {dtype} by the library's function {function}", got)
        if not torch.equal(got, want):
            raise Failure(f"{case.id} in {dtype} to give {want.tolist()}", f"{got.tolist()}")
    return Observation(note=f"by {function}")
