"""Where the tests of Triton's kernels run: a GPU, or the host by Triton's interpreter."""

from __future__ import annotations

import importlib
import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = ("attention", "layers")


def _import_kernels():
    pytest.importorskip("triton", reason="Triton is not installed")
    # It looks at the variable too, at the first launch.
    importlib.import_module("triton.experimental.gluon")
    for name in KERNELS:
        importlib.import_module(f"vllm_adapter_triton.kernels.{name}")


def _let_numpy_count_elements():
    """Bounds of loops are arrays of one element, which numpy from 2.4 on takes for no number."""
    from triton.runtime import interpreter

    # upstream: triton@v3.9.0 python/triton/runtime/interpreter.py _patch_lang_tensor
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if DEVICE == "cpu":
    # Read while the kernels are imported: other tests of the process must not see it.
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        _import_kernels()
        _let_numpy_count_elements()
    finally:
        del os.environ["TRITON_INTERPRET"]
else:
    _import_kernels()
