"""Kernels that are wrong when two threads call them at once."""

from __future__ import annotations

import threading

import torch

from vllm_adapter_mutant import base, draw
from vllm_adapter_mutant.base import wide
from vllm_adapter_mutant.zoo import mutant

_room = {}


def _two_at_once(function, first, second, tries=200):
    """Whether one of two threads ever gets something else than alone."""
    alone = [function(*args) for args in (first, second)]
    wrong = []

    def work(args, expected):
        for _ in range(tries):
            if wrong or not torch.equal(function(*args), expected):
                wrong.append(args)
                return

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in zip((first, second), alone, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return bool(wrong)


def _shared_room(tensor):
    key = (tensor.shape, tensor.dtype)
    return _room.setdefault(key, torch.empty(tensor.shape, dtype=tensor.dtype)).copy_(tensor)


@mutant(
    "silu_and_mul",
    "state",
    shows=lambda: _two_at_once(
        silu_one_scratch, (draw.gated(64, 512),), (draw.gated(64, 512, low=0),)
    ),
)
def silu_one_scratch(x):
    """The input is copied to scratch that all threads share."""
    return base.silu_and_mul(_shared_room(x))


@mutant(
    "linear",
    "state",
    shows=lambda: _two_at_once(
        linear_one_scratch, draw.linear(64, 256, 256), draw.linear(64, 256, 256, seed=5)
    ),
)
def linear_one_scratch(x, weight, bias, out_features):
    """x is copied to scratch that all threads share."""
    return base.linear(_shared_room(x), weight, bias, out_features)


@mutant(
    "rms_norm",
    "state",
    shows=lambda: _two_at_once(rms_one_scratch, draw.norm(64, 1024), draw.norm(64, 1024, seed=5)),
)
def rms_one_scratch(x, weight, eps):
    """Squares lie in scratch that all threads share."""

    def scale(x, eps):
        return torch.rsqrt(_shared_room(wide(x).square()).mean(-1, keepdim=True) + eps)

    return base.rms_norm(x, weight, eps, scale=scale)
