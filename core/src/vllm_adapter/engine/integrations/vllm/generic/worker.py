"""vLLM's worker on any device of an adapter: one rank, one device of its own index."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory
from vllm.v1.worker.worker_base import CompilationTimes
from vllm.v1.worker.workspace import init_workspace_manager

from vllm_adapter.engine.integrations.vllm import operators
from vllm_adapter.engine.integrations.vllm.generic.model_runner import GenericModelRunner
from vllm_adapter.engine.integrations.vllm.generic.served import served
from vllm_adapter.errors import NoSuchDevice


class GenericWorker(Worker):
    """Opens its device, measures its memory, and makes our runner."""

    def init_device(self) -> None:
        """The device of this rank, its place among the others, and the memory it may take.

        Raises:
            NoSuchDevice: there are fewer devices than ranks.
            UnsupportedCase: the model's dtype is none of the device's.
        """
        index = self._index()
        operators.use_device(index)
        self.device = served().device(index)
        current_platform.set_device(self.device)
        current_platform.check_if_supports_dtype(self.model_config.dtype)
        self.parallel_config.disable_custom_all_reduce = True
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        gc.collect()
        torch.accelerator.empty_cache()
        self.init_snapshot = MemorySnapshot(device=self.device)
        # An exact size for the cache is taken as it is, wherever the device's share stands.
        self.requested_memory = self.cache_config.kv_cache_memory_bytes or request_memory(
            self.init_snapshot, self.cache_config
        )
        self._start_runner()

    def _start_runner(self) -> None:
        start = getattr(self, "_init_workspace_and_model_runner", None)
        if start is not None:
            start()
            return
        # upstream: vllm@0.31 v1/worker/gpu_worker.py:500 has it inside of its init_device
        init_workspace_manager(self.device, 1)
        self.model_runner: Any = self._make_model_runner()

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Nothing more than the seed: the run that measured memory was the first of all kernels.

        vLLM's own would warm up its kernels of other devices, and capture graphs.
        """
        set_random_seed(self.model_config.seed)
        compilation = self.compilation_config
        return CompilationTimes(
            language_model=compilation.compilation_time,
            encoder=compilation.encoder_compilation_time,
        )

    def _index(self) -> int:
        """The device of this rank among all those of this machine, of every replica."""
        device, config = served(), self.parallel_config
        if device.is_host:
            return 0  # one device for all ranks
        replica = config.data_parallel_rank_local
        if replica is None:
            replica = config.data_parallel_index
        ranks = config.pipeline_parallel_size * config.tensor_parallel_size
        here = self.local_rank + replica * ranks
        index: int = current_platform.logical_device_id_to_visible_device_id(here)
        if all(one.index != index for one in device.record.devices):
            raise NoSuchDevice(
                f"rank {self.rank} would run on {device.torch_type}:{index}, and the adapter "
                f"{device.record.name} has {len(device.record.devices)} devices here",
                hint="lower --tensor-parallel-size, or --data-parallel-size",
            )
        return index

    def _make_model_runner(self) -> GenericModelRunner:
        return GenericModelRunner(self.vllm_config, self.device)

    def _maybe_get_memory_pool_context(self, tag: str) -> Any:
        return contextlib.nullcontext()  # the pools of vLLM's sleep mode are CUDA's
