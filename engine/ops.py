"""The operations that a family's forward pass is written against, bound to one step's batch."""

from __future__ import annotations

import torch

from hetero.engine.attention import Attention
from hetero.engine.batch import Batch
from hetero.engine.owners import Angles, DenseOwner
from hetero.models.config import ModelConfig
from hetero.models.load import Model
from hetero.models.rope import inverse_frequencies, rotation_scale
from hetero.native import Pool


class Experts:
    """The routed experts of a model: native kernels on the CPU, whatever device owns the dense parts."""

    def __init__(self, model: Model, pool: Pool) -> None:
        self._banks, self._kernels, self._pool = model.banks, model.kernels, pool

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the chosen experts for x [T, hidden], ids int32 and weights float32 [T, k]."""
        device = x.device
        host = x.to("cpu").contiguous()
        out = torch.empty_like(host)
        chosen, scale = ids.to("cpu").contiguous(), weights.to("cpu").contiguous()
        self._kernels.moe(self._pool, self._banks[layer], host.numpy(), chosen.numpy(), scale.numpy(), out.numpy())
        return out.to(device)


class Runtime:
    """What does not change between steps: the model's parts where the placement put them."""

    def __init__(self, model: Model, owner: DenseOwner, pool: Pool, attention: Attention) -> None:
        self.config: ModelConfig = model.config
        self.owner = owner
        self.attention = attention
        self.experts = Experts(model, pool)
        self.inverse = inverse_frequencies(model.config.rope).to(owner.device)
        self.rotation_scale = rotation_scale(model.config.rope)
        self._latent: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def to_latent(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """MLA: q_nope [T, H, nope] into the latent space, [T, H, r]."""
        out = self.owner.heads(f"model.layers.{layer}.self_attn.k_b_proj", q)
        return torch.einsum("thn,hnr->thr", q, self._joint(layer)[0]) if out is None else out

    def from_latent(self, layer: int, mixed: torch.Tensor) -> torch.Tensor:
        """MLA: the attended latent [T, H, r] to values, [T, H, v]."""
        out = self.owner.heads(f"model.layers.{layer}.self_attn.v_b_proj", mixed)
        return torch.einsum("thr,hvr->thv", mixed, self._joint(layer)[1]) if out is None else out

    def _joint(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The two halves of a checkpoint's joint kv_b_proj, float32 [H, nope, r] and [H, v, r], unpacked once."""
        if layer not in self._latent:
            mla = self.config.mla
            joint = self.owner.dense(f"model.layers.{layer}.self_attn.kv_b_proj.weight")
            assert mla is not None
            assert joint is not None
            parts = joint.view(self.config.n_heads, mla.nope_dim + mla.v_dim, mla.kv_lora_rank)
            self._latent[layer] = parts[:, : mla.nope_dim].contiguous(), parts[:, mla.nope_dim :].contiguous()
        return self._latent[layer]


class Ops:
    """`forward(config, batch, ops)` of a family sees only this; no family names a device."""

    def __init__(self, runtime: Runtime, batch: Batch) -> None:
        self._runtime, self._batch = runtime, batch
        turns = batch.positions.float()[:, None] * runtime.inverse
        scale = runtime.rotation_scale
        self._angles = Angles(turns.cos() * scale, turns.sin() * scale, runtime.config.rope.interleaved)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """float32 [T, hidden]."""
        return self._runtime.owner.embed(token_ids)

    def small(self, name: str) -> torch.Tensor | None:
        """A small float32 tensor by canonical name, or None."""
        return self._runtime.owner.small(name)

    def norm(self, name: str, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
        """RMS norm over the last axis by the weight `name`; `eps` defaults to the model's."""
        weight = self._runtime.owner.small(name)
        assert weight is not None, name
        return self._runtime.owner.norm(x, weight, self._runtime.config.rms_norm_eps if eps is None else eps)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x [T, k] by the matrix `name`.weight (and .bias): float32 [T, n]."""
        return self._runtime.owner.linears([name], x)[0]

    def linears(self, names: list[str], x: torch.Tensor) -> list[torch.Tensor]:
        """Several matrices on the same x, in one pass over it."""
        return self._runtime.owner.linears(names, x)

    def rotate(self, x: torch.Tensor, norm: str | None = None) -> torch.Tensor:
        """Rotary positions on x [T, heads, d], whose first `rope.dim` values turn, after the per-head norm `norm`."""
        weight = None if norm is None else self.small(norm)
        return self._runtime.owner.rotate(x, self._angles, weight, self._runtime.config.rms_norm_eps)

    def experts(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The routed experts' weighted sum, float32 [T, hidden]."""
        return self._runtime.experts(layer, x, ids, weights)

    def attention(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """Append k, v [T, G, d] to the cache and attend q [T, H, d] causally, each request to itself: [T, H, d]."""
        outs = []
        for span in self._batch.spans:
            rows = slice(span.start, span.stop)
            outs.append(self._runtime.attention.grouped(layer, span, q[rows], k[rows], v[rows], scale))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def latent_attention(
        self, layer: int, q_nope: torch.Tensor, q_rope: torch.Tensor, latent: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Absorbed MLA: cache `latent` [T, r + rope] only; q_nope [T, H, nope], q_rope [T, H, rope]; [T, H, v].

        q·k = (W_k^T q_nope)·c + q_rope·k_rope, so keys are never expanded (DeepSeek-V2, arXiv 2405.04434, 2.1.2).
        """
        q = torch.cat([self._runtime.to_latent(layer, q_nope), q_rope], dim=-1)
        rank, outs = q.shape[2] - q_rope.shape[2], []
        for span in self._batch.spans:
            rows = slice(span.start, span.stop)
            outs.append(self._runtime.attention.latent(layer, span, q[rows], latent[rows], rank, scale))
        return self._runtime.from_latent(layer, outs[0] if len(outs) == 1 else torch.cat(outs))
