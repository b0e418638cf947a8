"""What the planner predicts for two small models: weights, KV cache, memory, order of speed.

Written before any run is measured: `plan_predict.py [PROFILE] > predicted.json`; this machine
without PROFILE. `plan_measure.py` runs the same cases, `plan_compare.py` holds both together.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from planning_boxes import demand

from vllm_adapter.planning.line import Figures
from vllm_adapter.planning.plan import make_plan
from vllm_adapter.planning.profiles import box_of_profile
from vllm_adapter.planning.roofline import gemms, rates, step
from vllm_adapter.planning.sources import box_of_machine
from vllm_adapter.planning.workload import Workload

MODELS = {"SmolLM2-135M": 2048 + 64, "Qwen3-Embedding-0.6B": 2048 + 64}
DTYPES = ("float32", "bfloat16")
BATCHES = (1, 16)
CONTEXTS = (128, 2048)
KV = 1 << 30


def main() -> None:
    box = box_of_profile(sys.argv[1]) if len(sys.argv) > 1 else box_of_machine()
    models: dict[str, object] = {}
    for name, length in MODELS.items():
        cases = {}
        for dtype in DTYPES:
            model = demand(name, torch_dtype=dtype)
            own = {
                "dtype": dtype,
                "sequences": "16",
                "prefill_chunk": "2112",
                "block_size": "32",
                "kv_bytes": str(KV),
            }
            plan = make_plan(model, box, Workload(length, 16, "throughput", own))
            memory = plan.sizing.memory
            speeds = {}
            for batch in BATCHES:
                for context in CONTEXTS:
                    peaks = rates(Figures(box.capability), dtype)
                    products = gemms(model, 1, batch, dtype, None)
                    one = step(
                        model, products, peaks, name="decode", sequences=batch, new=1,
                        context=context, kv_dtype=dtype,
                    )  # fmt: skip
                    speeds[f"b{batch} c{context}"] = one.tokens_a_second
            cases[dtype] = {
                "weight_bytes": memory.weights,
                "kv_bytes_a_token": model.kv_bytes_a_token(dtype),
                "kv_blocks": plan.sizing.blocks,
                "peak_bytes": memory.weights + memory.activations + memory.reserve + KV,
                "decode_tokens_a_second": speeds,
            }
        models[name] = cases
    root = f"{Path(__file__).resolve().parent.parent}/"
    print(json.dumps({"box": box.to_json(), "models": models}, indent=1).replace(root, ""))


if __name__ == "__main__":
    main()
