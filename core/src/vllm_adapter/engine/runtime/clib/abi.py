"""The ctypes mirror, under the engine's name: it lives in the torch-free half."""

from vllm_adapter.clib.abi import *  # noqa: F403
