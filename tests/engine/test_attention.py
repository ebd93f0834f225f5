"""Attention of many tokens in torch: right, and in blocks, so that long contexts cost no memory."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from hetero.engine.attention import CAUSAL, Mask, attend
from tests.native.attention_reference import attended

LIMITS = [(1, None), (7, None), (33, None), (None, 1), (None, 32), (None, 33), (20, 16)]


@pytest.mark.parametrize("first", [0, 1, 37])
@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (6, 6), (4, 1)])
def test_query_heads_read_their_key_head_up_to_their_own_position(heads, groups, tokens, first):
    torch.manual_seed(0)
    q, k, v = (torch.randn(n, h, 24) for n, h in ((tokens, heads), (first + tokens, groups), (first + tokens, groups)))
    expected = attended(q.numpy(), k.numpy(), v.numpy(), first, 0.3)
    assert np.abs(attend(q, k, v, first, 0.3, CAUSAL).numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize(("window", "chunk"), [(None, None), *LIMITS])
@pytest.mark.parametrize(("tokens", "first"), [(1, 0), (1, 32), (33, 0), (40, 31)])
def test_windows_chunks_and_sinks_equal_float64(window, chunk, sunk, tokens, first):
    torch.manual_seed(1)
    q, k, v = (torch.randn(n, h, 24) for n, h in ((tokens, 4), (first + tokens, 2), (first + tokens, 2)))
    sinks = torch.randn(4) * 2 if sunk else None
    arrays = (q.numpy(), k.numpy(), v.numpy())
    expected = attended(*arrays, first, 0.3, window, chunk, None if sinks is None else sinks.numpy())
    assert np.abs(attend(q, k, v, first, 0.3, Mask(window, chunk, sinks)).numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("first", [0, 64])
@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (16, 1)])
@pytest.mark.parametrize("mask", [CAUSAL, Mask(window=5), Mask(sinks=torch.ones(1))])
def test_torchs_blocked_kernel_takes_the_shapes(heads, groups, first, mask):
    """It refuses where it would have to fall back to the one that holds every score."""
    q, k = torch.randn(32, heads, 48), torch.randn(first + 32, groups, 48)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        attend(q, k, k, first, 0.3, mask)
