"""vLLM 0.27 and 0.28: a backend says which shape a layer's cache has."""

from __future__ import annotations


class ShapedCache:
    """[blocks, kv_heads, block, K|V], as later releases give it to every backend."""

    # upstream: vllm@0.28 v1/attention/backend.py:99, v1/worker/gpu_model_runner.py:7568
    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """The logical shape; without an order of strides it is that of memory, too."""
        return num_blocks, num_kv_heads, block_size, 2 * head_size
