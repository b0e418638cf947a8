"""Builds one of our native platforms where its device is not, and prints what it overrides.

    python build_platform.py NativeCuda

vLLM's modules of other devices ask for compiled parts that a CPU wheel has not: they are stood in
for. No method of a platform is called.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from unittest import mock

COMPILED = ("vllm._C_stable_libtorch", "vllm._C", "vllm._moe_C", "vllm._rocm_C", "amdsmi")
XPU = ("vllm_xpu_kernels", *(f"vllm_xpu_kernels.{part}" for part in ("_C", "_moe_C", "_xpu_C")))


class StandIn(types.ModuleType):
    """A module that has whatever is asked of it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock()


def main(name):
    for module in (*COMPILED, *XPU):
        sys.modules[module] = StandIn(module)
    import torch

    # upstream: vllm@0.32 platforms/rocm.py asks for both while it is imported
    mi300 = types.SimpleNamespace(gcnArchName="gfx942", name="", multi_processor_count=304)
    torch.cuda.get_device_properties = lambda *device: mi300
    torch.cuda.get_device_capability = lambda *device: (9, 4)

    from vllm_adapter.engine.integrations.vllm import platforms
    from vllm_adapter.engine.integrations.vllm.mixin import PortableMixin

    made = getattr(platforms, name)
    assert made is getattr(platforms, name), "one class a process"
    theirs = made.__mro__[2]
    overridden = [
        n for n, member in vars(PortableMixin).items() if isinstance(member, classmethod)
    ]
    print(
        "RESULT",
        json.dumps(
            {
                "enum": made._enum.name,
                "theirs": theirs.__name__,
                "parameters": {
                    n: [parameters(getattr(kind, n)) for kind in (made, theirs)]
                    for n in overridden
                },
            }
        ),
    )


def parameters(method):
    """Names, kinds and defaults, in order."""
    found = inspect.signature(method).parameters.values()
    return [[p.name, p.kind.name, repr(p.default)] for p in found]


if __name__ == "__main__":
    main(sys.argv[1])
