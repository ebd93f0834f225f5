"""Attention of many tokens in torch: right, and in blocks, so that long contexts cost no memory."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from hetero.engine.attention import attend


def reference(q, k, v, first, scale):
    """The definition in float64, with key heads repeated and all scores at once."""
    repeat = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(repeat, 1), v.double().repeat_interleave(repeat, 1)
    positions = torch.arange(len(q))[:, None] + first
    scores = torch.einsum("thd,lhd->htl", q, k) * scale
    scores = scores.masked_fill(torch.arange(len(k))[None] > positions, float("-inf"))
    return torch.einsum("htl,lhd->thd", scores.softmax(-1), v)


@pytest.mark.parametrize("first", [0, 1, 37])
@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (6, 6), (4, 1)])
def test_query_heads_read_their_key_head_up_to_their_own_position(heads, groups, tokens, first):
    torch.manual_seed(0)
    q, k, v = (torch.randn(n, h, 24) for n, h in ((tokens, heads), (first + tokens, groups), (first + tokens, groups)))
    assert (attend(q, k, v, first, 0.3) - reference(q, k, v, first, 0.3)).abs().max() < 1e-5


@pytest.mark.parametrize("first", [0, 64])
@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (16, 1)])
def test_torchs_blocked_kernel_takes_the_shapes(heads, groups, first):
    """It refuses where it would have to fall back to the one that holds every score."""
    q, k = torch.randn(32, heads, 48), torch.randn(first + 32, groups, 48)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        attend(q, k, k, first, 0.3)
