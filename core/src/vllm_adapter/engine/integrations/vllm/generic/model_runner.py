"""vLLM's first model runner, with torch in the place of the kernels that it launches itself."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from vllm_adapter.engine.integrations.vllm import who_runs
from vllm_adapter.engine.integrations.vllm.generic import (
    experts,
    grammar,
    torch_names,
    triton_free,
)
from vllm_adapter.engine.integrations.vllm.generic.served import served
from vllm_adapter.engine.runtime.device_from_clib.enable import enabled


class GenericModelRunner(GPUModelRunner):
    """Streams and events are the device's own where it has some."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        triton_free.replace(device.type)
        with torch_names.as_torch_cuda(served()):
            super().__init__(vllm_config, device)
        self.use_cuda_graph = False
        experts.replace()  # before the model is built
        grammar.replace()

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's; what ran on the host for want of a kernel is noted for the table."""
        result = super().execute_model(*args, **kwargs)
        backend = enabled()
        if backend is not None:
            who_runs.note_fallbacks(backend.coverage.counts())
        return result

    def _init_kv_zero_meta(self) -> None:
        """Nothing is prepared: blocks are cleared by their number."""

    def _zero_block_ids(self, block_ids: list[int]) -> None:
        """Clears blocks that are handed out again, where a model reads what it never wrote."""
        if not block_ids:
            return
        rows = torch.tensor(block_ids, dtype=torch.int64).to(self.device)
        seen: set[int] = set()
        for cache in self.kv_caches:
            for tensor in cache if isinstance(cache, (list, tuple)) else (cache,):
                if tensor.data_ptr() not in seen:
                    seen.add(tensor.data_ptr())
                    tensor.index_fill_(0, rows, 0)
