"""Changes to torch itself, for a device that Python brought.

torch's support for such devices has no allocator, generator, stream or current device, and parts
of torch ask for them. Each file changes one such part, says which line makes it necessary, and
leaves every other device alone. They last as long as the process.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Final

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.patches import (
    accelerator,
    dynamo,
    generator,
    queues,
    serialization,
    storage,
    transport,
)

PATCHES: Final[tuple[Callable[[Backend, ModuleType], None], ...]] = (
    accelerator.apply,
    storage.apply,
    serialization.apply,
    generator.apply,
    queues.apply,
    transport.apply,
    dynamo.apply,
)
"""All of them; each takes the backend and its module `torch.<name>`."""
