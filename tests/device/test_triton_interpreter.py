"""Triton's interpreter in tests: it needs no import order and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernels here")

TESTS = Path(__file__).parents[1]
CHILD = """
import importlib, os, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)

def language():
    import triton.language as tl
    parts = [tl, tl.core, tl.core.tensor, tl.math, tl.standard, tl.dtype]
    return [(part, dict(vars(part))) for part in parts]

import triton.language
before = language()
import torch, triton_device
from vllm_adapter_triton import layers
x, weight = torch.ones(3, 8), torch.full((8,), 2.0)
for _ in range(2):
    assert torch.allclose(layers.rms_norm(x, weight, 0.0), torch.full((3, 8), 2.0))
assert "TRITON_INTERPRET" not in os.environ
for (part, was), (_, now) in zip(before, language(), strict=True):
    changed = [name for name, value in was.items() if value is not now.get(name)]
    assert not changed, (part, changed)
"""


@pytest.mark.parametrize("first", [[], ["vllm_adapter_triton.kernels.layers"]])
def test_a_kernel_is_interpreted_whoever_imports_triton_first(first):
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(TESTS), *first], capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
