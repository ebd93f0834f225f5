"""Gated delta nets (Yang, Kautz, Hatamizadeh 2024, arXiv 2412.06464) as Qwen3-Next has them.

A value head keeps a matrix S [key_dim, value_dim]. A token with key k, value v, decay exp(g) and rate b makes it
S' = exp(g) S + k (b (v - exp(g) S^T k))^T and reads S'^T q. q, k and v first pass a short causal convolution.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hetero.models.blocks import Ops
from hetero.models.config import DeltaConfig, ModelConfig

if TYPE_CHECKING:
    import torch

BLOCK = 64
"""Tokens whose updates are solved together; within a block work is products of matrices, between blocks a loop."""
_L2_EPS = 1e-6


def delta_net(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """The layer's delta net on the normed x [T, hidden]: [T, hidden]."""
    import torch.nn.functional as F

    delta, prefix = config.delta, f"model.layers.{layer}.linear_attn."
    assert delta is not None
    mixed, z, b, a = _project(delta, prefix, x, ops)
    taps, rate, bias = (ops.small(prefix + name) for name in ("conv1d.weight", "A", "dt_bias"))
    assert taps is not None
    assert rate is not None
    assert bias is not None
    step = partial(_mix, delta, taps)
    out = ops.recurrent(layer, step, [mixed, rate * F.softplus(a + bias), b.sigmoid()])
    out = ops.norm(prefix + "norm.weight", out) * F.silu(z.reshape(out.shape))
    return ops.linear(prefix + "out_proj", out.flatten(1))


def _project(
    delta: DeltaConfig, prefix: str, x: torch.Tensor, ops: Ops
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v side by side [T, conv_width], the output's gate z [T, value_heads * value_dim], b and a [T, heads]."""
    import torch

    names = ["in_proj_qkvz"] if delta.fused_qkvz else ["in_proj_qkv", "in_proj_z"]
    names += ["in_proj_ba"] if delta.fused_ba else ["in_proj_b", "in_proj_a"]
    outs = ops.linears([prefix + name for name in names], x)
    per_key = delta.value_heads // delta.key_heads
    if delta.fused_qkvz:
        widths = [delta.key_dim] * 2 + [per_key * delta.value_dim] * 2
        parts = outs.pop(0).view(len(x), delta.key_heads, -1).split(widths, dim=2)
        q, k, v, z = (part.flatten(1) for part in parts)
        mixed = torch.cat([q, k, v], dim=1)
    else:
        mixed, z = outs.pop(0), outs.pop(0)
    if delta.fused_ba:
        b, a = (part.flatten(1) for part in outs[0].view(len(x), delta.key_heads, 2, per_key).unbind(2))
    else:
        b, a = outs
    return mixed, z, b, a


def _mix(
    delta: DeltaConfig, taps: torch.Tensor, states: dict[str, torch.Tensor], inputs: list[torch.Tensor]
) -> torch.Tensor:
    """One request's rows: mixed [n, conv_width], log decays and rates [n, heads] to [n, heads, value_dim]."""
    import torch

    mixed, decay, rate = inputs
    keys = delta.key_heads * delta.key_dim
    mixed = _convolve(states["conv"], mixed, taps)
    heads = torch.arange(delta.value_heads, device=mixed.device)
    heads = heads % delta.key_heads if delta.tiled else heads // (delta.value_heads // delta.key_heads)
    q, k = (part.view(len(mixed), -1, delta.key_dim) for part in mixed[:, : 2 * keys].split(keys, dim=1))
    q, k = (l2_norm(part)[:, heads] for part in (q, k))
    v = mixed[:, 2 * keys :].view(len(mixed), -1, delta.value_dim)
    rule = one_token if len(mixed) == 1 else many_tokens
    return rule(states["delta"], q * delta.key_dim**-0.5, k, v, decay, rate)


def _convolve(state: torch.Tensor, x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """silu of the causal convolution of x [n, C] by `taps` [K, C]; `state` [K - 1, C] are the rows before x."""
    import torch
    import torch.nn.functional as F

    rows = torch.cat([state, x])
    state.copy_(rows[len(x) :])
    out = rows[: len(x)] * taps[0]
    for offset, tap in enumerate(taps[1:], 1):
        out.addcmul_(rows[offset : offset + len(x)], tap)
    return F.silu(out)


def l2_norm(x: torch.Tensor) -> torch.Tensor:
    """x [..., d] divided by its length."""
    return x * (x.square().sum(-1, keepdim=True) + _L2_EPS).rsqrt()


def one_token(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, rate: torch.Tensor
) -> torch.Tensor:
    """The rule for one token: q and k [1, H, dk], v [1, H, dv], decay and rate [1, H]; `state` [H, dk, dv] changes.

    The old state is read once for both products: S'^T q = exp(g) S^T q + (k . q) d with d the update's value.
    """
    import torch

    shrink = decay[0].exp()[:, None]
    recalled = torch.bmm(torch.stack([k[0], q[0]], dim=1), state) * shrink[:, None]
    change = (v[0] - recalled[:, 0]) * rate[0][:, None]
    state.mul_(shrink[..., None]).baddbmm_(k[0][:, :, None], change[:, None])
    return (recalled[:, 1] + (k[0] * q[0]).sum(-1, keepdim=True) * change)[None]


def many_tokens(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, rate: torch.Tensor
) -> torch.Tensor:
    """The rule for n tokens, shapes as for `one_token` with n in the place of 1.

    Within a block, with G the running sum of g and c_ij = exp(G_i - G_j): the updates' values u solve
    u_i + b_i sum_{j<i} c_ij (k_i . k_j) u_j = b_i (v_i - exp(G_i) S^T k_i), a unit triangular system whose solutions
    for both terms of the right side do not need S; then o_i = exp(G_i) S^T q_i + sum_{j<=i} c_ij (q_i . k_j) u_j and
    S' = exp(G_n) S + sum_j c_nj k_j u_j^T (section 3.3 of the paper).
    """
    import torch

    n = len(q)
    q, k, v, decay, rate = (_in_blocks(x) for x in (q, k, v, decay, rate))
    total = decay.cumsum(-1)
    causal = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=q.device).tril()
    # Masked before the exponential: above the diagonal the exponents are positive and may overflow.
    fade = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, float("-inf")).exp()
    system = (k * rate[..., None]) @ k.mT * fade
    right = torch.cat([v, k * total.exp()[..., None]], dim=-1) * rate[..., None]
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, recalls = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    scores = q @ k.mT * fade
    asking, writing = q * total.exp()[..., None], k * fade[..., -1, :, None]
    shrink = total[..., -1].exp()[..., None, None]
    out = torch.empty_like(v)
    for i in range(len(q)):
        change = torch.baddbmm(values[i], recalls[i], state, alpha=-1)
        out[i] = torch.baddbmm(torch.bmm(asking[i], state), scores[i], change)
        state.mul_(shrink[i]).baddbmm_(writing[i].mT, change)
    return out.transpose(1, 2).flatten(0, 1)[:n]


def _in_blocks(x: torch.Tensor) -> torch.Tensor:
    """x [n, H, ...] as [blocks, H, BLOCK, ...], filled up with zeros, which neither write nor decay."""
    import torch.nn.functional as F

    padding = -len(x) % BLOCK
    x = F.pad(x, (0, 0) * (x.ndim - 1) + (0, padding))
    return x.unflatten(0, (-1, BLOCK)).transpose(1, 2)
