"""A Qwen3-MoE in plain torch, written for fast training on a few CPU cores.

It computes what `transformers.Qwen3MoeForCausalLM` computes: RMS norms, grouped-query attention with normalised
queries and keys, rotary positions by halves, a softmax router with renormalised top-k weights, SwiGLU experts.
It knows nothing about data, files or the GGUF format.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class DemoConfig:
    """The shape of the demo model."""

    vocab: int = 3072
    hidden: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    experts: int = 16
    top_k: int = 2
    expert_width: int = 128
    context: int = 2048
    rope_theta: float = 10000.0
    eps: float = 1e-6


class RmsNorm(nn.Module):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rope_tables(config: DemoConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [context, head_dim], both halves alike."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(config.context, dtype=torch.float64), config.rope_theta**-half)
    both = torch.cat((angles, angles), dim=1)
    return both.cos().float(), both.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [B, heads, T, head_dim]; the pairs are (i, i + head_dim / 2)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal grouped-query attention with RMS-normalised queries and keys."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.shape = (config.heads, config.kv_heads, config.head_dim)
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, q, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv, bias=False)
        self.o_proj = nn.Linear(q, config.hidden, bias=False)
        self.q_norm = RmsNorm(config.head_dim, config.eps)
        self.k_norm = RmsNorm(config.head_dim, config.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads, kv_heads, dim = self.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, heads, dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, kv_heads, dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, kv_heads, dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(heads // kv_heads, dim=1)
        v = v.repeat_interleave(heads // kv_heads, dim=1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, heads * dim))
        return merged


class Experts(nn.Module):
    """Router and routed experts. Returns the output and the load-balancing loss (Fedus et al. 2021, eq. 4)."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.router = nn.Parameter(torch.empty(config.experts, config.hidden))
        self.gate_up = nn.Parameter(torch.empty(config.experts, config.hidden, 2 * config.expert_width))
        self.down = nn.Parameter(torch.empty(config.experts, config.expert_width, config.hidden))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.reshape(-1, x.shape[-1])
        probs = functional.softmax(functional.linear(tokens, self.router), dim=-1)
        weights, ids = probs.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = ids.flatten().argsort(stable=True)
        counts = torch.bincount(ids.flatten(), minlength=probs.shape[1])
        source = order // self.top_k
        parts = tokens.index_select(0, source).split(counts.tolist())
        jobs = zip(parts, self.gate_up.unbind(0), self.down.unbind(0), strict=True)
        out = torch.cat([self._expert(*job) for job in jobs])
        out = out * weights.flatten()[order].unsqueeze(1)
        merged = torch.zeros_like(tokens).index_add(0, source, out)
        balance = probs.shape[1] * (counts / counts.sum() * probs.mean(0)).sum()
        return merged.view_as(x), balance

    @staticmethod
    def _expert(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = (x @ gate_up).chunk(2, dim=-1)
        return (functional.silu(gate) * up) @ down


class Layer(nn.Module):
    """One transformer layer: attention and experts, each after a norm and with a residual."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.attn_norm = RmsNorm(config.hidden, config.eps)
        self.attn = Attention(config)
        self.ffn_norm = RmsNorm(config.hidden, config.eps)
        self.moe = Experts(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attn(self.attn_norm(x), cos, sin)
        out, balance = self.moe(self.ffn_norm(x))
        return x + out, balance


class DemoModel(nn.Module):
    """Token ids [B, T] to final hidden states; `head` turns them into logits with the embedding's own weights."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RmsNorm(config.hidden, config.eps)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        residual = (2 * self.config.layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            fan_in = weight.shape[1] if weight.dim() == 3 or "embed" not in name else self.config.hidden
            scale = 0.02 if "embed" in name else fan_in**-0.5
            small = residual if name.endswith(("o_proj.weight", "moe.down")) else 1.0
            nn.init.normal_(weight, std=scale * small)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [B, T, hidden] after the last norm, and the mean balance loss."""
        length = ids.shape[1]
        cos, sin = self.get_buffer("cos")[:length], self.get_buffer("sin")[:length]
        x = self.embed(ids)
        balance = x.new_zeros(())
        for layer in self.layers:
            x, one = layer(x, cos, sin)
            balance = balance + one / self.config.layers
        return self.norm(x), balance

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab]."""
        return functional.linear(hidden, self.embed.weight)
