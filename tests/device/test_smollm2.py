"""A real model, SmolLM2-135M-Instruct in float32: tokens of 20 prompts, adapted and plain."""

from __future__ import annotations

import copy

import pytest
import smollm2
import torch

from vllm_adapter.engine.integrations.transformers import adapt

pytestmark = [pytest.mark.device, pytest.mark.slow]
NEW = 64
TIE = 1e-4
"""Where tokens differ at all, the reference's two best logits there are closer than this."""
CLOSE = 1e-3
BLOCK = 16


@pytest.fixture(scope="module")
def loaded():
    """(plain, adapted, the padded batch of prompts, the token that ends)."""
    plain, tokenizer = smollm2.load()
    mine = copy.deepcopy(plain)
    adapt(mine)
    given = dict(tokenizer(smollm2.prompts(), return_tensors="pt", padding=True))
    return plain, mine, given, tokenizer.eos_token_id


@pytest.fixture(scope="module")
def generated(loaded):
    """(tokens, logits) of plain and of adapted; tokens [20, 64], logits [20, 64, vocabulary]."""
    plain, mine, given, _ = loaded
    width = given["input_ids"].shape[1]
    found = []
    for model in (plain, mine):
        out = model.generate(
            **given,
            max_new_tokens=NEW,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        found.append((out.sequences[:, width:], torch.stack(out.logits, 1)))
    return found


def length(tokens, end):
    """Tokens of one row, up to and with the end."""
    ends = (tokens == end).nonzero().flatten().tolist()
    return ends[0] + 1 if ends else len(tokens)


def first_difference(want, got, end):
    """The place of the first token that differs; None where all are equal."""
    last = length(want, end)
    places = (want[:last] != got[:last]).nonzero().flatten().tolist()
    return places[0] if places else None


def test_the_prompts_are_twenty_of_unequal_length_at_and_over_a_block(loaded):
    lengths = loaded[2]["attention_mask"].sum(1).tolist()
    assert len(lengths) == 20
    assert len(set(lengths)) > 10
    assert {BLOCK, BLOCK + 1} <= set(lengths)


def test_tokens_are_those_of_plain_transformers(loaded, generated, figures):
    _, _, given, end = loaded
    (want, logits), (got, ours) = generated
    lines = ["row  prompt tokens  new tokens  tokens     smallest gap of the two best logits"]
    gaps, apart = [], 0.0
    for row, prompt in enumerate(given["attention_mask"].sum(1).tolist()):
        place = first_difference(want[row], got[row], end)
        new = length(want[row], end)
        best = logits[row, :new].topk(2).values
        gap = (best[:, 0] - best[:, 1]) if place is None else (best[place, 0] - best[place, 1])
        said = "identical" if place is None else f"differ at {place}"
        lines.append(f"{row:3}  {prompt:13}  {new:10}  {said:9}  {gap.min().item():.1e}")
        upto = new if place is None else place
        apart = max(apart, (logits[row, :upto] - ours[row, :upto]).abs().max().item())
        if place is not None:
            gaps.append(gap.item())
    lines.append(f"{20 - len(gaps)} of 20 rows identical; generated logits within {apart:.1e}")
    figures("\n".join(lines))
    assert all(gap < TIE for gap in gaps)
    assert apart < CLOSE


def test_a_row_ends_early_for_real(loaded, generated):
    _, _, _, end = loaded
    for tokens, _ in generated:
        ended = [row for row in range(20) if end in tokens[row, : NEW - 1].tolist()]
        assert 0 < len(ended) < 20


def test_logits_of_given_tokens_are_close(loaded, generated, figures):
    plain, mine, given, end = loaded
    tokens = generated[0][0]
    running = torch.cat((torch.ones(20, 1), (tokens[:, :-1] != end).cumprod(1)), 1).long()
    ids = torch.cat((given["input_ids"], tokens), 1)
    mask = torch.cat((given["attention_mask"], running), 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    worst = 0.0
    with torch.no_grad():
        for rows in torch.arange(20).split(5):
            call = {
                "input_ids": ids[rows],
                "attention_mask": mask[rows],
                "position_ids": positions[rows],
                "use_cache": False,
            }
            real = mask[rows].bool()
            apart = (plain(**call).logits - mine(**call).logits)[real].abs().max()
            worst = max(worst, apart.item())
    figures(f"largest difference of teacher-forced logits, {int(mask.sum())} tokens: {worst:.1e}")
    assert 0 < worst < CLOSE
