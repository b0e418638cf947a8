"""vLLM's published start-up lines against the planner: model, card and flags in, tokens out.

A card's memory is what `nvidia-smi` shows of it; other figures are the planner's own assumptions.
Flags that a log does not name are vLLM's defaults of that release.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from model_configs import CONFIGS, LLAMA3_8B, QWEN3_30B_A3B
from planning_boxes import demand, descriptor

from vllm_adapter.planning.box import profile_box
from vllm_adapter.planning.plan import make_plan
from vllm_adapter.planning.workload import Workload

MIB = 1 << 20
QWEN2 = LLAMA3_8B | {"model_type": "qwen2", "vocab_size": 152064}
CONFIGS |= {
    "Llama-3.1-8B": LLAMA3_8B | {"max_position_embeddings": 131072},
    "Qwen2.5-7B": QWEN2
    | {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
    },
    "R1-Distill-Qwen-14B": QWEN2
    | {
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "max_position_embeddings": 131072,
    },
    "Qwen3-235B-A22B-FP8": QWEN3_30B_A3B
    | {
        "hidden_size": 4096,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
}
LOGS: list[tuple[str, str, int, int, dict[str, Any], int]] = [
    # model, card, MiB of it, tokens of context, flags, tokens that the log tells; source below
    # a file experiments/cost/vllm_calibration.py of a public repository
    ("Qwen2.5-7B", "RTX A6000", 49140, 131072,
     {"memory_share": "0.92", "sequences": "256", "prefill_chunk": "8192"}, 517_264),
    # vllm-project/vllm#9802; that the A100 have 80 GB is assumed
    ("Llama-3.1-8B", "4 x A100", 81920, 40000,
     {"memory_share": "0.9", "sequences": "512", "prefill_chunk": "512", "tensor_parallel": "4"},
     2_115_600),
    # vllm-project/vllm#10517, two lines of one comment
    ("Llama-3.1-8B", "RTX 3090", 24576, 20000,
     {"memory_share": "0.9", "sequences": "256", "prefill_chunk": "20000"}, 31_232),
    ("Llama-3.1-8B", "RTX 3090", 24576, 29000,
     {"memory_share": "0.9", "sequences": "256", "prefill_chunk": "29000"}, 23_648),
    # vllm-project/vllm#13061
    ("R1-Distill-Qwen-14B", "2 x RTX 4090", 24564, 131072,
     {"memory_share": "0.98", "sequences": "256", "prefill_chunk": "2048", "tensor_parallel": "2"},
     81_536),
    # vllm-project/vllm#21348
    ("Qwen3-235B-A22B-FP8", "4 x H100", 81559, 40960,
     {"memory_share": "0.9", "sequences": "256", "prefill_chunk": "8192", "tensor_parallel": "4"},
     178_880),
]  # fmt: skip


def main() -> None:
    for name, card, mib, context, flags, told in LOGS:
        chip = descriptor(memory__capacity_bytes=mib * MIB, memory__runtime_reserve_bytes=None)
        count = int(flags.get("tensor_parallel", 1))
        box = profile_box(chip, "cuda", count, card)
        found = make_plan(demand(name), box, Workload(context, None, "throughput", flags))
        tokens = found.sizing.blocks * found.asked.block
        off = 100 * (tokens / told - 1)
        print(f"{name:<20} {card:<13} {context:>7}  {tokens:>10,} of {told:>10,}  {off:+.1f} %")


if __name__ == "__main__":
    main()
