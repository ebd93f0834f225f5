"""Who computes the dense parts: the native kernels on the CPU, or torch on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from hetero.models.config import HyperConfig
from hetero.models.hyper import doubly_stochastic
from hetero.models.load import Model
from hetero.models.rope import rotate
from hetero.models.router import route
from hetero.native import Kernels, PackedMatrix, Pool, allocate, packed_bytes
from hetero.native import prepared as native
from hetero.native.prepared import PreparedLinear, PreparedNorm, PreparedRouter, linear_heads


@dataclass(frozen=True, slots=True)
class Angles:
    """cos and sin float32 [T, half] of a step's positions, and the order of the pairs they turn."""

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool


class DenseOwner(Protocol):
    """Holds the dense matrices of a model and applies them to float32 activations [T, k] on `device`."""

    device: torch.device

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding for ids int64 [T], float32 [T, hidden]."""

    def linears(self, names: list[str], x: torch.Tensor) -> list[torch.Tensor]:
        """x times each matrix (or router) transposed, plus its bias where it has one: float32 [T, n] each."""

    def heads(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x float32 [T, H, k], head by head times the matrix `name`.weight [H, n, k]: [T, H, n]."""

    def add(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """h + x of float32 [T, n]; `h` may be used up."""

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of float32 [T, n]; `gate` may be used up."""

    def balanced(self, x: torch.Tensor, hyper: HyperConfig) -> torch.Tensor:
        """x float32 [T, n, n] as nearly doubly stochastic matrices; `x` may be used up. See models.hyper."""

    def join(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a [..., n] and b [..., m] side by side."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm of x [..., d] over its last axis by weight [d]."""

    def rotate(self, x: torch.Tensor, angles: Angles, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        """x [T, heads, d], RMS-normed per head by `weight` where given, then turned by `angles`."""

    def route(self, logits: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """ids int32 and weights float32 [T, k] of the experts that logits float32 [T, E] choose; see models.router."""

    def small(self, name: str) -> torch.Tensor | None:
        """A norm weight, bias or router as float32, None where the model has none of that name."""

    def column_norms(self, name: str) -> torch.Tensor:
        """Euclidean norms of the columns of the matrix `name`.weight [n, k]: float32 [k]."""


EMBEDDING = "model.embed_tokens.weight"
_FEW = 1 << 16
"""Values that are moved by a native call, which a step's recording can hold; torch moves more with all threads."""
_NORM_ROWS = 4096
"""Rows that are unpacked at a time for the norms of columns."""


def _smalls(model: Model, device: torch.device) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).to(device) for name, array in model.small.items()}


def _unpack(kernels: Kernels, matrix: PackedMatrix) -> torch.Tensor:
    return torch.from_numpy(kernels.dequantize_packed(matrix)).view(matrix.shape)


class NativeOwner:
    """Dense parts on the CPU, quantised as they lie, by the same kernels as the experts."""

    def __init__(self, model: Model, pool: Pool) -> None:
        self.device = torch.device("cpu")
        self._model, self._kernels, self._pool = model, model.kernels, pool
        self._small = _smalls(model, self.device)
        self._linears: dict[tuple[str, ...], PreparedLinear] = {}
        self._routers: dict[int, PreparedRouter] = {}
        self._norms: dict[tuple[int, int, int, int, float, bool], PreparedNorm] = {}

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._kernels.gather_rows(self._model.matrices[EMBEDDING], ids.numpy()))

    def linears(self, names: list[str], x: torch.Tensor) -> list[torch.Tensor]:
        key = tuple(names)
        prepared = self._linears.get(key) or self._prepare(key)
        assert x.dtype is torch.float32
        x = x.contiguous()
        tokens = x.shape[0]
        outs = [torch.empty(tokens, width) for width in prepared.widths]
        prepared(self._pool, tokens, x.data_ptr(), [out.data_ptr() for out in outs])
        return outs

    def _prepare(self, names: tuple[str, ...]) -> PreparedLinear:
        matrices = [self._model.matrices.get(name + ".weight") or self._pack(name + ".weight") for name in names]
        biases = [self._small.get(name + ".bias") for name in names]
        addresses = [0 if bias is None else bias.data_ptr() for bias in biases]
        self._linears[names] = prepared = PreparedLinear(self._kernels, matrices, addresses)
        return prepared

    def _pack(self, name: str) -> PackedMatrix:
        """A small matrix, which is a router, in float32 tiles."""
        values = self._model.small[name]
        n, k = values.shape
        data = allocate(packed_bytes("F32", n, k))
        self._kernels.pack("F32", values.view(np.uint8), n, k, out=data)
        return PackedMatrix("F32", n, k, data, (n, k))

    def heads(self, name: str, x: torch.Tensor) -> torch.Tensor:
        matrix = self._model.matrices[name + ".weight"]
        tokens, heads, _ = x.shape
        by_head = self._whole(x.transpose(0, 1))
        out = torch.empty(heads, tokens, matrix.n // heads)
        linear_heads(self._kernels, self._pool, matrix, heads, tokens, by_head.data_ptr(), out.data_ptr())
        return out.transpose(0, 1)

    def add(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        h, x = h.contiguous(), x.contiguous()
        native.add(self._kernels, self._pool, h.numel(), h.data_ptr(), x.data_ptr(), h.data_ptr())
        return h

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        native.gate(self._kernels, self._pool, gate.numel(), gate.data_ptr(), up.data_ptr(), gate.data_ptr())
        return gate

    def balanced(self, x: torch.Tensor, hyper: HyperConfig) -> torch.Tensor:
        x = x.contiguous()
        if len(x):
            native.balance(self._kernels, len(x), hyper.streams, hyper.iterations, hyper.eps, x.data_ptr())
        return x

    def join(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.numel() + b.numel() > _FEW:
            return torch.cat([a, b], dim=-1)
        out = torch.empty(*a.shape[:-1], a.shape[-1] + b.shape[-1])
        self._copy(a, out[..., : a.shape[-1]])
        self._copy(b, out[..., a.shape[-1] :])
        return out

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        """x [n, m, width] without gaps between its rows."""
        if x.is_contiguous() or x.numel() > _FEW:
            return x.contiguous()
        out = torch.empty(x.shape)
        self._copy(x, out)
        return out

    def _copy(self, source: torch.Tensor, to: torch.Tensor) -> None:
        """Between tensors [n, width] or [n, m, width] whose last axis has no gaps."""
        source, to = (x if x.ndim == 3 else x[:, None] for x in (source, to))
        n, m, width = source.shape
        assert source.stride(2) == to.stride(2) == 1 or width == 1
        strides = ((source.stride(0), source.stride(1)), (to.stride(0), to.stride(1)))
        native.copy(self._kernels, (n, m, width), source.data_ptr(), strides[0], to.data_ptr(), strides[1])

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        d = weight.shape[0]
        prepared = self._prepared_norm(1, d, weight.data_ptr(), eps, 0, False)
        out = torch.empty_like(x)
        prepared(self._pool, x.numel() // d, x.data_ptr(), d, out.data_ptr())
        return out

    def rotate(self, x: torch.Tensor, angles: Angles, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        tokens, heads, d = x.shape
        if x.stride(2) != 1 or x.stride(1) != d:
            x = self._whole(x)
        address = 0 if weight is None else weight.data_ptr()
        prepared = self._prepared_norm(heads, d, address, eps, angles.cos.shape[1], angles.interleaved)
        out = torch.empty(tokens, heads, d)
        cos, sin = angles.cos.data_ptr(), angles.sin.data_ptr()
        prepared(self._pool, tokens, x.data_ptr(), x.stride(0), out.data_ptr(), cos, sin)
        return out

    def _prepared_norm(self, heads: int, d: int, weight: int, eps: float, half: int, interleaved: bool) -> PreparedNorm:
        key = (heads, d, weight, half, eps, interleaved)
        prepared = self._norms.get(key)
        if prepared is None:
            self._norms[key] = prepared = PreparedNorm(self._kernels, heads, d, weight, eps, half, interleaved)
        return prepared

    def route(self, logits: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if self._model.config.moe is not None and self._model.config.moe.scoring == "sqrtsoftplus":
            return route(logits, self._model.config.moe, bias)  # the native router does not have these scores
        address = 0 if bias is None else bias.data_ptr()
        router = self._routers.get(address)
        if router is None:
            self._routers[address] = router = self._prepare_router(address)
        tokens, moe = logits.shape[0], self._model.config.moe
        assert moe is not None
        logits = logits.contiguous()
        ids, weights = torch.empty(tokens, moe.top_k, dtype=torch.int32), torch.empty(tokens, moe.top_k)
        router(self._pool, tokens, logits.data_ptr(), ids.data_ptr(), weights.data_ptr())
        return ids, weights

    def _prepare_router(self, bias: int) -> PreparedRouter:
        moe = self._model.config.moe
        assert moe is not None
        return PreparedRouter(
            self._kernels,
            moe.n_experts,
            moe.top_k,
            sigmoid=moe.scoring == "sigmoid",
            norm_topk=moe.norm_topk,
            n_group=moe.n_group,
            topk_group=moe.topk_group if moe.n_group > 1 else 1,
            group_top2=moe.group_score == "top2",
            scaling=moe.scaling,
            bias=bias,
        )

    def small(self, name: str) -> torch.Tensor | None:
        return self._small.get(name)

    def column_norms(self, name: str) -> torch.Tensor:
        matrix = self._model.matrices[name + ".weight"]
        total = torch.zeros(matrix.k, dtype=torch.float64)
        for start in range(0, matrix.n, _NORM_ROWS):
            ids = np.arange(start, min(start + _NORM_ROWS, matrix.n))
            total += torch.from_numpy(self._kernels.gather_rows(matrix, ids)).double().square().sum(dim=0)
        return total.sqrt().float()


class TorchOwner:
    """Dense parts in torch on `device`, unpacked to `dtype` once (bf16 on a GPU, float32 in parity tests)."""

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self._model, self._dtype = model, dtype
        self._small = _smalls(model, device)
        self._weights = {
            name: _unpack(model.kernels, matrix).view(matrix.n, matrix.k).to(dtype).to(device)
            for name, matrix in model.matrices.items()
        }

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self._weights[EMBEDDING]).float()

    def linears(self, names: list[str], x: torch.Tensor) -> list[torch.Tensor]:
        cast = x.to(self._dtype)
        outs = []
        for name in names:
            weight = self._weights.get(name + ".weight")
            # routers are small tensors and stay in float32: a rounded score chooses another expert
            router = self._small.get(name + ".weight") if weight is None else None
            outs.append(F.linear(cast, weight).float() if router is None else F.linear(x, router))
        biases = [self._small.get(name + ".bias") for name in names]
        return [out if bias is None else out + bias for out, bias in zip(outs, biases, strict=True)]

    def heads(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight = self._weights[name + ".weight"]
        return torch.einsum("thk,hnk->thn", x.to(self._dtype), weight.view(x.shape[1], -1, x.shape[2])).float()

    def add(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return h + x

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate).mul_(up)

    def balanced(self, x: torch.Tensor, hyper: HyperConfig) -> torch.Tensor:
        return doubly_stochastic(x, hyper)

    def join(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b], dim=-1)

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def rotate(self, x: torch.Tensor, angles: Angles, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        x = x if weight is None else F.rms_norm(x, weight.shape, weight, eps)
        return rotate(x, angles.cos[:, None], angles.sin[:, None], angles.interleaved)

    def route(self, logits: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        moe = self._model.config.moe
        assert moe is not None
        return route(logits, moe, bias)

    def small(self, name: str) -> torch.Tensor | None:
        return self._small.get(name)

    def column_norms(self, name: str) -> torch.Tensor:
        return self._weights[name + ".weight"].float().norm(dim=0)
