"""Where the tests of Triton's kernels run: a GPU, or the host by Triton's interpreter."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _kernels():
    """Imports and gives every module of kernels."""
    pytest.importorskip("triton", reason="Triton is not installed")
    package = importlib.import_module("vllm_adapter_triton.kernels")
    return [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
    ]


_FORMS = {}


def _interpreted(function):
    """The one interpreted form of a function of Triton's: forms are compared by identity."""
    from triton.runtime.interpreter import InterpretedFunction

    if function.fn not in _FORMS:
        _FORMS[function.fn] = InterpretedFunction(function.fn)
    return _FORMS[function.fn]


def _compiled_of(module):
    """The functions of a module, by name, that Triton would compile."""
    from triton.runtime.jit import JITFunction

    return {name: value for name, value in vars(module).items() if isinstance(value, JITFunction)}


def interpret(*modules):
    """Replaces the kernels of `modules` by interpreted ones.

    Triton's own switch is a variable read at each import, so that it counts who imports Triton
    first: here the functions of its language are replaced while an interpreted kernel runs, and
    nobody else of the process sees that.
    """
    for module in modules:
        for name, function in _compiled_of(module).items():
            setattr(module, name, _interpreted(function))


def _switch_language():
    import triton.language as tl
    from triton import knobs
    from triton.runtime import interpreter

    language = [
        importlib.import_module(f"triton.language.{name}")
        for name in ("core", "math", "random", "standard")
    ]
    # upstream: triton@v3.9.0 python/triton/runtime/interpreter.py _patch_lang_tensor
    patch = interpreter._patch_lang_tensor
    run = interpreter.GridExecutor.__call__
    call = interpreter.InterpretedFunction.__call__
    scopes = []

    def patched(tensor, scope):
        patch(tensor, scope)
        # Bounds of loops are arrays of one element, which numpy from 2.4 on takes for no number.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
        for module in (tl, *language):
            for name, function in _compiled_of(module).items():
                scope.set_attr(module, name, _interpreted(function))
        scopes.append(scope)

    def launch(self, *args, **kwargs):
        with knobs.runtime.scope():
            knobs.runtime.interpret = True
            return run(self, *args, **kwargs)

    def called(self, *args, **kwargs):
        """A call from a kernel patches again what its launch restores, and what nobody does."""
        before = len(scopes)
        try:
            return call(self, *args, **kwargs)
        finally:
            while len(scopes) > before:
                scopes.pop().restore()

    interpreter._patch_lang_tensor = patched
    interpreter.GridExecutor.__call__ = launch
    interpreter.InterpretedFunction.__call__ = called


KERNELS = _kernels()
if DEVICE == "cpu":
    _switch_language()
    interpret(*KERNELS)
