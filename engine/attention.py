"""Causal attention of one request's new tokens over its cached ones, in torch, on the device of its inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, scale: float) -> torch.Tensor:
    """Attention of q [T, H, d] at positions first.. over k [L, G, d], v [L, G, e], L = first + T; returns [T, H, e].

    Heads are grouped: head h reads key head h // (H / G).
    """
    if q.shape[0] == 1:
        return _attend_one(q[0], k, v, scale)[None]
    return _attend_many(q, k, v, first, scale)


def _attend_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """One token: two batched products over the cache as it lies, without repeating key heads."""
    heads, groups = q.shape[0], k.shape[1]
    grouped = q.view(groups, heads // groups, -1) * scale
    weights = torch.softmax(torch.bmm(grouped, k.permute(1, 2, 0)), dim=-1)
    return torch.bmm(weights, v.transpose(0, 1)).view(heads, -1)


def _attend_many(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, scale: float) -> torch.Tensor:
    tokens, heads, groups = q.shape[0], q.shape[1], k.shape[1]
    repeat = heads // groups
    keys = k.transpose(0, 1)[:, None].expand(-1, repeat, -1, -1).flatten(0, 1)
    values = v.transpose(0, 1)[:, None].expand(-1, repeat, -1, -1).flatten(0, 1)
    mask = None
    if first:
        mask = torch.ones(tokens, first + tokens, dtype=torch.bool, device=q.device).tril(first)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return out[0].transpose(0, 1)
