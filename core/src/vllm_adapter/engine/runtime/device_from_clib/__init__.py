"""A C library becomes a torch device, in plain Python: `enable(name, library)`.

What works on such a device, and what does not, is in docs/clib-device.md.
"""

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.coverage import Coverage
from vllm_adapter.engine.runtime.device_from_clib.enable import enable, enabled

__all__ = ["Backend", "Coverage", "enable", "enabled"]
