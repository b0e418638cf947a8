"""Right kernels that say when they are called, for tests of binding. `CALLS` is theirs."""

from __future__ import annotations

from vllm_adapter.engine.ops import generic

CALLS = []


def norm(x, weight, eps):
    CALLS.append("norm")
    return generic.rms_norm(x, weight, eps)


def other_norm(x, weight, eps):
    CALLS.append("other_norm")
    return generic.rms_norm(x, weight, eps)


def fused_norm(x, residual, weight, eps):
    CALLS.append("fused_norm")
    return generic.fused_add_rms_norm(x, residual, weight, eps)


def decode(*args):
    CALLS.append("decode")
    return generic.paged_attention(*args)


def general(*args):
    CALLS.append("general")
    return generic.paged_attention(*args)


def plan(step, state):
    CALLS.append("plan")
    return generic.plan_paged_attention(step, state)


def plan_decode(step, state):
    CALLS.append(f"plan_decode after {state}")
    return "a decode"


def plan_general(step, state):
    CALLS.append(f"plan_general after {state}")
    return "another phase"


def stated(*args):
    CALLS.append(f"runs {args[-1]}")
    return generic.paged_attention(*args[:-1], None)


def stated_decode(*args):
    return stated(*args)


def pack(weight):
    CALLS.append("pack")
    return weight.flatten()


def packed_linear(x, weight, bias, out_features):
    CALLS.append("packed_linear")
    return generic.linear(x, weight.view(out_features, -1), bias, out_features)
