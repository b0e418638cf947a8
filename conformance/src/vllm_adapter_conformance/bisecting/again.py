"""What the script of a finding calls: its stored call, run and judged once more."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_adapter.errors import VllmAdapterError
from vllm_adapter.settings import Fallback
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.bisecting.side import Side
from vllm_adapter_conformance.bisecting.stored import StoredCall
from vllm_adapter_conformance.plan.find_target import find_target


def again(adapter: str, data: Path, *, device: int = 0) -> int:
    """Runs a stored call in this process, and prints how it ended; gives the exit code."""
    try:
        call = StoredCall.load(data)
    except Exception as error:  # torch raises several kinds for a file that is none
        print(f"{data} cannot be read ({type(error).__name__}); it belongs beside this script")
        return 2
    os.environ["VA_FALLBACK"] = call.fallback
    try:
        side = Side.of(find_target(adapter, "L2", device=device), Fallback(call.fallback))
        share = side.share(call)
    except Failure as failure:
        print(f"{call.op} of {call.where}")
        print(f"  expected  {failure.expected}\n  saw       {failure.seen}")
        print("\n".join(f"  {line}" for line in failure.detail.splitlines()))
        return 1
    except VllmAdapterError as error:
        print(error)
        return 2
    print(f"{call.op} of {call.where}: {share:.3g} of the budget, passes")
    return 0
