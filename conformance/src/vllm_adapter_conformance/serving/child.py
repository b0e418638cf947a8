"""Runs engines of real vLLM in this process: `python -m ... JOB.json RESULT.json`.

The job lists engines (`name`, `model`, `options`, `steps`); the result has, by engine's name,
what each step gave, or the error that ended the engine. It is written after each engine, so that
a crash loses only what follows. Nothing of vLLM is replaced here: which platform serves, the
environment says.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from vllm_adapter.files import write_atomic
from vllm_adapter_conformance.serving.steps import STEPS


def main(job: Path, result: Path) -> None:
    """Runs a job."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    begin = time.monotonic()
    import vllm
    from vllm.platforms import current_platform

    found: dict[str, Any] = {
        "vllm": vllm.__version__,
        "platform": type(current_platform).__name__,
        "device": current_platform.device_type,
        "import_seconds": _since(begin),
        "engines": {},
    }
    for order in json.loads(job.read_text("utf-8")):
        found["engines"][order["name"]] = _engine(order)
        write_atomic(result, json.dumps(found))


def _engine(order: dict[str, Any]) -> dict[str, Any]:
    """What one engine gave; an error in it is what it gave."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    before, begin = _counts(), time.monotonic()
    llm = None
    try:
        llm = LLM(order["model"], **order["options"])
        start = _since(begin)
        steps = {step["name"]: STEPS[step["kind"]](llm, step) for step in order["steps"]}
        return {
            "start_seconds": start,
            "seconds": _since(begin),
            "steps": steps,
            "counters": _new_calls(before, _counts()),
        }
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "log": traceback.format_exc()}
    finally:
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def _counts() -> dict[tuple[str, str, str], int]:
    """Calls so far by process, operator and provider."""
    folder = os.environ.get("VA_COUNTERS")
    if not folder:
        return {}
    from vllm_adapter.engine.integrations.vllm.counters import read_counts

    return {
        (process.process, op, provider): calls
        for process in read_counts(Path(folder))
        for (op, provider), calls in process.calls.items()
    }


def _new_calls(
    before: dict[tuple[str, str, str], int], after: dict[tuple[str, str, str], int]
) -> list[list[Any]]:
    new = {key: calls - before.get(key, 0) for key, calls in after.items()}
    return [[*key, calls] for key, calls in sorted(new.items()) if calls]


def _since(begin: float) -> float:
    return round(time.monotonic() - begin, 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
