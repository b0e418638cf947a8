"""What torch's fused attention is given: it asks neither where a view begins nor for the sign."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vllm_adapter.engine.ops import generic

pytestmark = pytest.mark.device


def view(offset, beside, *shape):
    """A tensor that begins `offset` elements into its storage, with `beside` behind each row."""
    torch.manual_seed(offset)
    wide = (*shape[:-1], shape[-1] + beside)
    count = torch.Size(wide).numel()
    return torch.randn(count + offset)[offset:].view(wide)[..., : shape[-1]]


@pytest.mark.parametrize("scale", [0.25, -0.25])
@pytest.mark.parametrize("offset", [0, 1, 2, 4])
@pytest.mark.parametrize("beside", [0, 1, 3, 4])
def test_views_are_aligned_and_the_scale_is_not_negative(monkeypatch, offset, beside, scale):
    given = []
    fused = F.scaled_dot_product_attention

    def spy(*tensors, **options):
        given.append((tensors, options["scale"]))
        return fused(*tensors, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    query, key, value = (view(offset, beside, 6, 2, 16) for _ in range(3))
    starts = torch.tensor([0, 6], dtype=torch.int32)
    got = generic.attention(query, key, value, starts, scale, True, 0, 0.0)
    ((tensors, used),) = given
    assert used == 0.25
    assert all(t.storage_offset() * t.element_size() % 16 == 0 for t in tensors)
    assert all(s * t.element_size() % 16 == 0 for t in tensors for s in t.stride()[:-1])
    scores = torch.einsum("qhd,khd->hqk", query.double(), key.double()) * scale
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    want = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value.double())
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_what_is_aligned_is_not_copied():
    for tensor in (view(0, 4, 6, 2, 16), view(4, 0, 6, 2, 16), view(0, 0, 6, 2, 10)):
        assert generic.attention.__globals__["_aligned"](tensor) is tensor
