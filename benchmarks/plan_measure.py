"""What vLLM really uses for the cases of `plan_predict.py`, on this CPU: a model and dtype a run.

`plan_measure.py MODEL DTYPE` where vLLM is installed prints one JSON object. Times are of the CPU,
with OMP_NUM_THREADS=1, so that other work on the machine does not count. Weights are random
(`load_format="dummy"`): their values decide neither bytes nor time. All sequences of a batch
share their first tokens, so that prefill is paid once; each reads keys and values itself.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from model_configs import CONFIGS

BATCHES, CONTEXTS, STEPS, ROUNDS = (1, 16), (128, 2048), 8, 2
KV = 1 << 30


def status(key: str) -> int:
    """A size of /proc/self/status, in bytes."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    name, dtype = sys.argv[1:3]
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_PLUGINS": "",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import LLM, SamplingParams
    from vllm.model_executor.model_loader import base_loader

    imported = status("VmRSS")
    seen: dict[int, int] = {}
    packed = base_loader.process_weights_after_loading

    def counted(model: Any, *words: Any, **named: Any) -> Any:
        """Counts the weights before they are packed: on a CPU vLLM then frees the originals."""
        for tensor in (*model.parameters(), *model.buffers()):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return packed(model, *words, **named)

    base_loader.process_weights_after_loading = counted
    folder = Path(tempfile.mkdtemp(prefix="plan-measure-"))
    (folder / "config.json").write_text(json.dumps(CONFIGS[name] | {"torch_dtype": dtype}))
    llm = LLM(
        str(folder),
        dtype=dtype,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=2112,
        max_num_seqs=16,
        max_num_batched_tokens=2112,
        block_size=32,
        kv_cache_memory_bytes=KV,
        enforce_eager=True,
        enable_prefix_caching=True,
        seed=0,
    )
    model = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    caches = {}
    for cache in model.kv_caches:
        caches[cache.untyped_storage().data_ptr()] = cache.untyped_storage().nbytes()
    blocks = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    speeds = {}
    for context in CONTEXTS if sys.argv[3:] != ["bytes"] else ():
        shared = [(7 * i) % 1000 + 10 for i in range(context - STEPS - 8)]
        for batch in BATCHES:
            prompts = [
                {"prompt_token_ids": [*shared, *range(10 + i, 18 + i)]} for i in range(batch)
            ]
            best = []
            for _ in range(ROUNDS):
                spent = []
                for new in (1, 1 + STEPS):
                    asked = SamplingParams(
                        temperature=0, max_tokens=new, ignore_eos=True, detokenize=False
                    )
                    began = time.process_time()
                    llm.generate(prompts, asked, use_tqdm=False)
                    spent.append(time.process_time() - began)
                best.append(batch * STEPS / (spent[1] - spent[0]))
            speeds[f"b{batch} c{context}"] = sorted(best)
            print(batch, context, best, flush=True)
    print(
        "RESULT "
        + json.dumps(
            {
                "model": name,
                "dtype": dtype,
                "weight_bytes": sum(seen.values()),
                "kv_bytes": sum(caches.values()),
                "kv_blocks": blocks,
                "peak_bytes": status("VmHWM"),
                "imported_bytes": imported,
                "decode_tokens_a_second": speeds,
                "load": os.getloadavg(),
            }
        )
    )


if __name__ == "__main__":
    main()
