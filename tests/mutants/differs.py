"""Whether a mutant is one: its example is run through it, a right kernel and float64.

    OMP_NUM_THREADS=1 python tests/mutants/differs.py [--set second] [NAME ...]

Says nothing of the suite, and uses none of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import sys

import torch
from vllm_adapter_mutant import base
from vllm_adapter_mutant.zoo import RIGHT

SETS = {"first": "vllm_adapter_mutant", "second": "vllm_adapter_mutant_second"}

FACTOR = 8
"""A mutant is farther off than so many roundings and so many times a right kernel's error."""

TRIES = 20
"""Of what shows itself by chance: two threads that meet."""

ACTIVATIONS = ("silu_and_mul", "gelu", "gelu_and_mul")


def results(function, op, args):
    """What a call gives and leaves in the arguments it may write; which others it wrote."""
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    given = function(*args)
    written = base.MUTATED.get(op, ())
    found = list(given) if isinstance(given, tuple) else [given] if given is not None else []
    found += [args[i].clone() for i in written]
    touched = [
        i
        for i, (a, b) in enumerate(zip(args, before, strict=True))
        if isinstance(a, torch.Tensor) and i not in written and not same(a, b)
    ]
    return found, touched


def same(a, b):
    return bool(((a == b) | ((a != a) & (b != b))).all())


def exact(args):
    return [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]


def error(found, reference):
    """The largest error, with infinity where one of both is not a number or infinite."""
    if reference.numel() == 0:
        return 0.0
    found = found.double()
    # What overflows the dtype is infinite in a right kernel, too.
    limit = torch.finfo(torch.float64).max
    off = (found - reference).abs()
    off = off.masked_fill((found == reference) | (found.isnan() & reference.isnan()), 0)
    return float(off.nan_to_num(limit, limit, limit).max())


def largest_share(kernel):
    """The largest error of a mutant's calls as a share of what a right kernel may have."""
    op = kernel.op
    right = getattr(base, op)
    share = 0.0
    calls = zip(kernel.calls(), kernel.calls(), kernel.calls(), strict=True)
    for for_bad, for_good, for_exact in calls:
        tensors = [a for a in for_bad if isinstance(a, torch.Tensor)]
        dtype = next(t.dtype for t in tensors if t.is_floating_point())
        wanted, _ = results(right, op, exact(for_exact))
        try:
            good, _ = results(right, op, list(for_good))
        except TypeError:  # a case that the plain kernel refuses: a cache of float8
            good = [w.to(dtype) for w in wanted]
        bad, touched = results(kernel.function, op, list(for_bad))
        if touched:
            return math.inf
        for b, g, w in zip(bad, good, wanted, strict=True):
            finite = w[w.isfinite()]
            scale = float(finite.abs().max()) if finite.numel() else 1.0
            if op in ACTIVATIONS:
                # x / 2 (1 + tanh(x / 2)) is right, and rounds where 1 is added.
                scale = max(scale, float(for_good[0].nan_to_num(0).abs().max()))
            allowed = FACTOR * max(error(g, w), torch.finfo(dtype).eps * scale)
            share = max(share, error(b, w) / allowed if allowed else math.inf)
    return share


def right_share(kernel, kernels):
    """The largest share of a right kernel, over the examples of its operator's mutants."""
    shares = {
        other.name: largest_share(dataclasses.replace(kernel, calls=other.calls))
        for other in kernels.values()
        if other.op == kernel.op and other.calls and other.family != "state" and not other.entry
    }
    return max((share, name) for name, share in shares.items())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--set", choices=SETS, default="first")
    given = parser.parse_args()
    kernels = importlib.import_module(f"{SETS[given.set]}.all").KERNELS
    bad = 0
    for name in given.names or kernels:
        kernel = kernels[name]
        if kernel.family == RIGHT:
            share, worst = right_share(kernel, kernels)
            bad += share > 1
            print(f"{'WRONG ' if share > 1 else ''}{name} {share:.3g} {worst}", flush=True)
            continue
        if kernel.shows is not None:
            seen, shown = any(kernel.shows() for _ in range(TRIES)), "shown"
        else:
            share = largest_share(kernel)
            seen, shown = share > 1, f"{share:.3g}"
        bad += not seen
        print(f"{'' if seen else 'EQUIVALENT '}{name} {shown}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
