"""What a search found, in lines and as JSON; and the script that shows it again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter.files import write_atomic
from vllm_adapter_conformance.bisecting.recorder import DivergentCall
from vllm_adapter_conformance.bisecting.search import LayerError, SearchResult

_ALONE_S: Final = 300.0
_ROWS: Final = 12
_MERGED: Final = {
    "inner.input_norm": "input_layernorm",
    "inner.qkv": "self_attn.q_proj, k_proj and v_proj in one",
    "inner.head_norms.0": "self_attn.q_norm",
    "inner.head_norms.1": "self_attn.k_norm",
    "inner.attention": "self_attn",
    "inner.out": "self_attn.o_proj",
    "inner.post_norm": "post_attention_layernorm, with the residual added",
    "inner.gate_up": "mlp.gate_proj and up_proj in one",
    "inner.down": "mlp.down_proj",
    "inner": "self_attn's rotary embedding, or mlp's activation",
}
"""What our parts of a decoder layer stand for in transformers'."""
_SCRIPT: Final = '''\
"""Runs {op} of {where} again, with the arguments that adapter {adapter} got in {model}.

Exit code 0: it passes; 1: it fails; 2: it cannot be run here. A crash shows the line that crashed.
"""

import faulthandler
import sys
from pathlib import Path

from vllm_adapter_conformance.bisecting.again import again

faulthandler.enable()
sys.exit(again({adapter!r}, Path(__file__).with_suffix(".pt"), device={device}))
'''


def write_script(
    folder: Path, adapter: str, device: int, model: str, finding: DivergentCall
) -> Path:
    """Writes the call and a script beside it; the last one's of this adapter are replaced.

    Raises:
        InputError: the folder cannot be written.
    """
    path = folder / f"{adapter}-bisect.py"
    text = _SCRIPT.format(
        op=finding.call.op, where=finding.path, adapter=adapter, model=model, device=device
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        finding.call.save(path.with_suffix(".pt"))
        write_atomic(path, text)
    except (OSError, RuntimeError) as problem:
        raise InputError(
            f"cannot write to {folder}: {problem}", hint="give another place with --output"
        ) from None
    return path


def fails_alone(script: Path) -> bool | None:
    """Whether the script fails in a process of its own; None if it cannot be run there."""
    try:
        done = subprocess.run(
            [sys.executable, str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ALONE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode in (0, 2):
        return None if done.returncode else False
    return True


def layer_of(path: str) -> int | None:
    """The number of a module's layer, from its path."""
    return next((int(part) for part in path.split(".") if part.isdigit()), None)


def stands_for(path: str) -> str:
    """What a part of ours is in transformers' own model; empty where it has its own name."""
    before, mark, rest = path.partition(".inner")
    return _MERGED.get(f"inner{rest}", "") if mark and before else ""


def lines(outcome: SearchResult, script: Path | None, alone: bool | None) -> list[str]:
    """What was found, without the first line."""
    if outcome.finding is not None:
        return [*_operator(outcome, outcome.finding), *_again(script, alone)]
    if outcome.verdict == "elsewhere":
        return [
            f"  saw       {outcome.error}",
            f"  before    {_judged(outcome)}",
            "  hint      an operation of torch on the device is at fault, and no operator of the "
            "adapter: run it on the device alone",
        ]
    found = [f"  before    {_judged(outcome)}"]
    if outcome.verdict == "accumulates":
        found += ["  layer     ours      reference  share of what is allowed"]
        found += [
            f"  {one.layer:<10}{one.ours:<10.2e}{one.reference:<11.2e}{one.share:.3g}"
            for one in _shortened(outcome.growth)
        ]
        found.append(
            "  hint      no operator is beyond its budget: look at what transformers does on the "
            "device between them (sums of residuals), and at those that use most of their budget"
        )
    else:
        end = outcome.growth[-1]
        found.append(
            f"  result    {end.ours:.2e} from float64, the reference {end.reference:.2e}: "
            f"{end.share:.3g} of what is allowed"
        )
    return found


def headline(outcome: SearchResult) -> str:
    """The first line."""
    if outcome.finding is not None:
        layer = layer_of(outcome.finding.path)
        where = f"layer {layer} of {outcome.layers}" if layer is not None else outcome.finding.path
        return (
            f"the first operator that leaves the reference is {outcome.finding.call.op}, {where}"
        )
    return {
        "elsewhere": "the model ends in an error outside of the adapter's operators",
        "accumulates": "no operator leaves the reference, and the result does: errors add up",
        "equal": "nothing leaves the reference",
    }[outcome.verdict]


def to_json(
    outcome: SearchResult, script: Path | None, alone: bool | None, **run: Any
) -> dict[str, Any]:
    """The whole outcome, with how it was run."""
    finding = outcome.finding
    return {
        "ok": outcome.verdict == "equal",
        **run,
        "verdict": outcome.verdict,
        "headline": headline(outcome),
        "layers": outcome.layers,
        "prompts": list(outcome.lengths),
        "steps": outcome.steps,
        "calls": outcome.calls,
        "worst": {op: _finite(share) for op, share in outcome.worst.items()},
        "error": outcome.error or None,
        "growth": [asdict(one) | {"share": _finite(one.share)} for one in outcome.growth],
        "found": finding and _finding_json(outcome, finding, script, alone),
    }


def _finding_json(
    outcome: SearchResult, finding: DivergentCall, script: Path | None, alone: bool | None
) -> dict[str, Any]:
    failure = finding.failure
    return {
        "operator": finding.call.op,
        "layer": layer_of(finding.path),
        "module": finding.path,
        "stands_for": stands_for(finding.path) or None,
        "forward": finding.forward,
        "call": finding.number,
        "facts": dict(finding.call.facts),
        "kernel": finding.kernel,
        "providers": list(finding.providers),
        "expected": failure.expected,
        "saw": failure.seen,
        "error": _finite(failure.share),
        "cause": failure.cause or None,
        "detail": failure.detail,
        "reference_error": _finite(outcome.other),
        "repro": None if script is None else str(script),
        "fails_alone": alone,
    }


def _operator(outcome: SearchResult, finding: DivergentCall) -> list[str]:
    failure, call = finding.failure, finding.call
    when = "the prefill" if not finding.forward else f"decode step {finding.forward}"
    own = stands_for(finding.path)
    facts = ", ".join(f"{name}={value}" for name, value in call.facts.items())
    found = [
        f"  module    {finding.path}" + (f" (transformers: {own})" if own else ""),
        f"  when      {when}, call {finding.number} of an operator",
        f"  facts     {facts}",
        f"  kernel    {finding.kernel}, of {', '.join(finding.providers)}",
        f"  expected  {failure.expected}",
        f"  saw       {failure.seen}",
    ]
    pattern = [line for line in failure.detail.splitlines() if line.startswith("pattern ")]
    found += [f"  {line}" for line in pattern]
    if outcome.other is not None:
        found.append(f"  against   {outcome.other:.3g} of the budget on the same arguments")
    return [*found, f"  before    {_judged(outcome)}"]


def _judged(outcome: SearchResult) -> str:
    """How the other calls went."""
    count = outcome.calls - (outcome.finding is not None)
    if not count:
        return "no other call"
    worst = sorted(outcome.worst.items(), key=lambda pair: -pair[1])[:3]
    most = ", ".join(f"{op} {share:.2g}" for op, share in worst)
    return f"{count} calls within their budgets; the largest shares: {most}"


def _again(script: Path | None, alone: bool | None) -> list[str]:
    if script is None:
        return []
    found = [f"  again     python {script}"]
    if alone is False:
        found.append(
            "            it passes alone: the kernel keeps something from earlier calls, which "
            "this search repeats"
        )
    return found


def _shortened(growth: Sequence[LayerError]) -> list[LayerError]:
    """At most about `_ROWS` layers: the first, every few, and the result."""
    step = -(-len(growth) // _ROWS)
    return [one for number, one in enumerate(growth) if number % step == 0 or one is growth[-1]]


def _finite(share: float | None) -> float | None:
    """A share for JSON, which has no infinity: None."""
    return share if share is not None and share < float("inf") else None
