"""Runs one engine of real vLLM in this process: a JSON of what to do in, a JSON of what came out.

    python engine.py SPEC.json RESULT.json

`SPEC` has `model`, `engine` (arguments of LLM), `prompts` (token numbers; lists of prompts are
run one after the other) and `tokens` (how many to generate; with `runner` pooling it embeds). It
may have `sampling` (arguments of SamplingParams beyond the greedy ones) and `loras` (folders: the
rows of a batch take them in turn, the first of them none).
The variable COMPILER names what the adapter gives as its compiler; with PIECES vLLM's CPU platform
leaves the mode that compiles a model in pieces, as platforms of other devices do.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    spec = json.loads(Path(sys.argv[1]).read_text())
    if "COMPILER" in os.environ:
        give_compiler(os.environ["COMPILER"])
    if "PIECES" in os.environ:
        leave_pieces()
    embeds = spec["engine"].get("runner") == "pooling"
    # upstream: vllm@0.32 entrypoints/pooling/factories.py asks for a tokenizer, whatever is given
    defaults = {"skip_tokenizer_init": not embeds, "disable_log_stats": False}
    llm = LLM(spec["model"], **{**defaults, **spec["engine"]})
    greedy = {"temperature": 0, "ignore_eos": True, "logprobs": 2, "detokenize": False}
    asked = spec.get("sampling", {})
    if "choice" in asked:
        asked["structured_outputs"] = StructuredOutputsParams(choice=asked.pop("choice"))
    params = SamplingParams(**{**greedy, "max_tokens": spec["tokens"], **asked})
    answers = []
    reset_fallbacks()
    if "SIM_FAULT_FROM" in os.environ:  # from now on faults strike
        Path(os.environ["SIM_FAULT_FROM"]).touch()
    for batch in spec["prompts"]:
        given = [{"prompt_token_ids": prompt} for prompt in batch]
        if embeds:
            answers += [out.outputs.embedding for out in llm.embed(given, use_tqdm=False)]
        else:
            loras = lora_requests(spec.get("loras"), len(given))
            outs = llm.generate(given, params, use_tqdm=False, lora_request=loras)
            answers += [answer(out) for out in outs]
    Path(sys.argv[2]).write_text(json.dumps({"answers": answers, **state(llm)}))


def lora_requests(folders, count):
    if not folders:
        return None
    from vllm.lora.request import LoRARequest

    made = [None, *(LoRARequest(Path(f).name, i, f) for i, f in enumerate(folders, start=1))]
    return [made[row % len(made)] for row in range(count)]


def reset_fallbacks():
    """What has run on the host so far, while a C library's device was set up, does not count."""
    from vllm_adapter.engine.runtime.device_from_clib.enable import enabled

    if (backend := enabled()) is not None:
        backend.coverage.reset()


def fallbacks():
    from vllm_adapter.engine.runtime.device_from_clib.enable import enabled

    backend = enabled()
    return {} if backend is None else dict(backend.coverage.counts())


def give_compiler(dotted: str) -> None:
    """As if the adapter's hook `compiler` had named it."""
    from vllm.plugins import load_general_plugins

    from vllm_adapter.engine.integrations.vllm import policy

    load_general_plugins()
    policy.use(dataclasses.replace(policy.in_use(), compiler=dotted))


def leave_pieces() -> None:
    # upstream: vllm@0.32 platforms/cpu.py:356 puts a single graph in its place
    from vllm.config import CompilationMode
    from vllm.platforms.cpu import CpuPlatform

    theirs = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls, vllm_config) -> None:
        theirs(cls, vllm_config)
        vllm_config.compilation_config.mode = CompilationMode.VLLM_COMPILE

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def backend(graph, inputs):
    """A compiler that says that it was asked, and compiles nothing."""
    print("COMPILED", len(graph.graph.nodes), flush=True)
    return graph


def answer(out) -> dict:
    places = out.outputs[0].logprobs or []
    best = [sorted(v.logprob for v in place.values())[::-1] for place in places]
    return {
        "tokens": list(out.outputs[0].token_ids),
        "gaps": [values[0] - values[1] for values in best],
        "cached": out.num_cached_tokens,
    }


def state(llm) -> dict:
    """Which classes of vLLM's are replaced in this process, and what its metrics say."""
    from vllm import ir
    from vllm.platforms import current_platform

    from vllm_adapter.engine.integrations.vllm.release_differences import registries

    config = llm.llm_engine.vllm_config
    layers = config.compilation_config.static_forward_context.values()
    metrics = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    return {
        "platform": type(current_platform).__name__,
        "replaced": sorted({name for one in registries() for name in one.op_registry_oot}),
        "backends": sorted({x.attn_backend.get_name() for x in layers if hasattr(x, "impl")}),
        "ir": sorted(ir.ops.rms_norm.impls),
        "preemptions": metrics.get("vllm:num_preemptions"),
        "device": current_platform.device_type,
        "block_size": config.cache_config.block_size,
        "blocks": config.cache_config.num_gpu_blocks,
        "dtype": str(config.model_config.dtype),
        "fallbacks": fallbacks(),
        "kernels": sorted(m for m in sys.modules if m.startswith(("vllm._C", "vllm._moe_C"))),
    }


if __name__ == "__main__":
    main()
