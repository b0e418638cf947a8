"""Holding an engine of ours against plain vLLM: prompts, models as folders, tokens, calls."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from vllm_adapter.engine.integrations.vllm.counters import read_counts

PLAIN = {"VLLM_PLUGINS": ""}
TIE = 1e-4
"""Where tokens differ at all, the reference's two best logits there are closer than this."""
NEW = 24
LAYERS = ("linear", "rotary_embedding", "reshape_and_cache", "paged_attention", "silu_and_mul")
OPERATORS = (*LAYERS, "rms_norm", "fused_add_rms_norm", "embedding")


def drawn(*lengths, seed=0):
    """Prompts of random tokens, of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 128, (n,), generator=generator).tolist() for n in lengths]


def saved(model, folder):
    model.save_pretrained(folder)
    return folder


def with_tokenizer(folder, words=128):
    """Puts a tokenizer there whose words are numbers: vLLM does not embed without one."""
    level = models.WordLevel({str(n): n for n in range(words)}, unk_token="0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(level)).save_pretrained(folder)
    return folder


def equal(want, got):
    """Rows of a table; fails at a difference that no near tie explains."""
    lines = ["row  tokens  compared     smallest gap of the two best logits"]
    for row, (theirs, ours) in enumerate(zip(want["answers"], got["answers"], strict=True)):
        pairs = list(zip(theirs["tokens"], ours["tokens"], strict=True))
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        gaps = theirs["gaps"]
        said = "identical" if place is None else f"differ at {place}"
        gap = min(gaps) if place is None else gaps[place]
        lines.append(f"{row:3}  {len(pairs):6}  {said:11}  {gap:.1e}")
        assert place is None or gap < TIE, "\n".join(lines)
    return "\n".join(lines)


def near(want, got, allowed):
    """A line about embeddings; fails where a number is farther away than allowed."""
    theirs, ours = (torch.tensor(ran["answers"]) for ran in (want, got))
    far = (theirs - ours).abs().max().item()
    line = f"{len(theirs)} embeddings of {theirs.shape[1]}, largest difference {far:.1e}"
    assert far < allowed, line
    return line


def calls_of(folder):
    """The calls of each operator, and the providers, of the one process that made any."""
    (counts,) = read_counts(folder)
    assert {provider for _, provider in counts.calls} == {"cpu"}
    return counts.process, {op: number for (op, _), number in counts.calls.items()}


def changed(folder, change):
    """The CPU adapter's descriptor of this machine with other operators, as a file."""
    from vllm_adapter.engine.device import open_device

    raw = dict(open_device("cpu").capability.raw)
    raw["operators"] = change(raw["operators"])
    raw["vllm"] = {**raw.get("vllm", {}), "relative_speed": None}  # all that is declared is used
    Path(folder).mkdir(exist_ok=True)
    file = Path(folder) / "changed.json"
    file.write_text(json.dumps(raw))
    return file
