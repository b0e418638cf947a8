"""Kernels that are right by their numbers, mostly, and not by how they come to them."""

from __future__ import annotations

import itertools
import time

import torch

from vllm_adapter import generic

_calls = itertools.count(1)


def sleeps(x, weight, eps):
    """Three milliseconds a call."""
    time.sleep(0.003)
    return generic.rms_norm(x, weight, eps)


def wrong_now_and_then(x, weight, eps):
    """One call of seventy is of another input."""
    result = generic.rms_norm(x, weight, eps)
    return result * 1.5 if next(_calls) % 70 == 0 else result


def rounds_in_another_order(x, weight, eps):
    """The mean of squares is added up in an order of chance: other bits, and right."""
    wide = x.float()[..., torch.randperm(x.shape[-1])]
    total = wide.square().sum(-1, keepdim=True)
    scale = (total / x.shape[-1] + eps).rsqrt()
    return (x.float() * scale * weight.float()).to(x.dtype)
