"""DeepSeek-V4's attention: the last positions as they are, and entries that sum up runs of positions before them.

One vector per position is key and value at once, and so is an entry; the last values of each are turned by its position
and those of the output turned back. An entry is a sum of its positions' vectors with weights from a softmax over them,
channel by channel. In layers with an indexer an entry draws on two runs, with other vectors for the earlier one, and a
token sees the `top_k` entries whose keys, made in the same way, suit its own queries best.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from hetero.models.blocks import Batch, Kept, Ops
from hetero.models.config import CompressedConfig, IndexerConfig, ModelConfig, RopeConfig
from hetero.models.hyper import unit
from hetero.models.rope import inverse_frequencies, rotation_scale

if TYPE_CHECKING:
    import torch

BLOCK = 32
"""Tokens that attend together: scores and chosen entries of so many are held at a time."""
_KEYS = 8192
"""Keys of an indexer that are ranked at a time."""


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [..., d] with its last values turned in neighbouring pairs by cos and sin [..., pairs]."""
    import torch

    width = 2 * cos.shape[-1]
    rest, pairs = x[..., :-width], x[..., -width:].unflatten(-1, (-1, 2))
    a, b = pairs.unbind(-1)
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return torch.cat([rest, turned.flatten(-2)], dim=-1)


def turn_back(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`turn` undone, so that what a value adds depends on its distance only."""
    return turn(x, cos, -sin)


@lru_cache(maxsize=8)
def _frequencies(rope: RopeConfig) -> torch.Tensor:
    return inverse_frequencies(rope)


def angles(rope: RopeConfig, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin float32 [T, pairs] of `positions` int64 [T]."""
    turns = positions.float()[:, None] * _frequencies(rope).to(positions.device)
    return turns.cos() * rotation_scale(rope), turns.sin() * rotation_scale(rope)


@dataclass(frozen=True, slots=True)
class Compressor:
    """Makes entries of `dim` values out of runs of `rate` positions, kept under the names `prefix` + ... ."""

    prefix: str
    rate: int
    dim: int
    overlaps: bool
    bias: torch.Tensor
    """What is added to the weights' logits by the place in a run, [rate, dim or 2 dim]."""

    def sums(self, kept: Kept, rows: torch.Tensor) -> torch.Tensor:
        """The sums [m, dim] of the runs that `rows` [n, 2, width] (vectors, weights' logits) complete, in order."""
        import torch

        tail, rate = kept.states[self.prefix + "tail"], self.rate
        held, width = len(tail), rows.shape[2]
        rows = torch.cat([tail.view(held, 2, width), rows])
        tail.copy_(rows[len(rows) - held :].flatten(1))
        whole = kept.first // rate
        count = (kept.first + len(rows) - held) // rate - whole
        if not count:
            return rows.new_zeros(0, self.dim)
        start = held + whole * rate - kept.first
        runs = self._run(rows, start, count)
        if self.overlaps:
            before = self._run(rows, start - rate, count)
            if not whole:
                before[:1, :, 1] = float("-inf")  # nothing comes before the first run
            runs = torch.cat([before[..., : self.dim], runs[..., self.dim :]], dim=1)
        vectors, logits = runs.unbind(2)
        return (vectors * logits.softmax(1)).sum(1)

    def _run(self, rows: torch.Tensor, start: int, count: int) -> torch.Tensor:
        """[count, rate, 2, width] from the row `start` on, with the bias in the logits."""
        runs = rows[start : start + count * self.rate].unflatten(0, (count, self.rate)).clone()
        runs[:, :, 1] += self.bias
        return runs


class CompressedAttention:
    """Attention of one pass over a batch, on the normed x [T, hidden]."""

    def __init__(self, config: ModelConfig, batch: Batch, ops: Ops) -> None:
        assert config.compressed is not None
        self._config, self._compressed, self._ops = config, config.compressed, ops
        self._angles = angles(config.rope, batch.positions), angles(config.compressed.rope, batch.positions)

    def __call__(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] for the normed x [T, hidden]."""
        config, ops, prefix = self._config, self._ops, f"model.layers.{layer}.self_attn."
        cos, sin = self._angles[bool(self._compressed.rates[layer])]
        low, kv = ops.linears([prefix + "q_a_proj", prefix + "kv_proj"], x)
        low = ops.norm(prefix + "q_a_layernorm.weight", low)
        q = ops.linear(prefix + "q_b_proj", low).view(-1, config.n_heads, config.head_dim)
        q = turn(unit(q, config.rms_norm_eps), cos[:, None], sin[:, None])
        kv = turn(ops.norm(prefix + "kv_a_layernorm.weight", kv), cos, sin)
        inputs = [q * config.attention_scale, kv, *self._for_entries(layer, x, low)]
        out = ops.keeping(layer, partial(self._attend, layer), inputs)
        out = turn_back(out, cos[:, None], sin[:, None])
        groups = ops.heads(prefix + "o_a_proj", out.reshape(len(out), self._compressed.groups, -1))
        return ops.linear(prefix + "o_proj", groups.flatten(1))

    def _chooser(self, layer: int) -> IndexerConfig | None:
        indexer = self._config.indexer
        return indexer if indexer is not None and layer in indexer.layers else None

    def _for_entries(self, layer: int, x: torch.Tensor, low: torch.Tensor) -> list[torch.Tensor]:
        """Vectors and logits [T, 2, width] of the entries; and of the indexer's keys, its queries and weights."""
        import torch

        if not self._compressed.rates[layer]:
            return []
        prefix, indexer = f"model.layers.{layer}.self_attn.", self._chooser(layer)
        stems = [prefix + "compressor."] + ([prefix + "indexer.compressor."] if indexer else [])
        names = [stem + name for stem in stems for name in ("kv_proj", "gate_proj")]
        if indexer is None:
            return [torch.stack(self._ops.linears(names, x), dim=1)]
        *parts, weights = self._ops.linears([*names, prefix + "indexer.weights_proj"], x)
        q = self._ops.linear(prefix + "indexer.wq_b", low).view(-1, indexer.heads, indexer.dim)
        cos, sin = self._angles[1]
        q = turn(q, cos[:, None], sin[:, None])
        return [torch.stack(parts[:2], dim=1), torch.stack(parts[2:], dim=1), q, weights]

    def _attend(self, layer: int, kept: Kept, inputs: list[torch.Tensor]) -> torch.Tensor:
        """One request's rows: [n, heads, dim]."""
        import torch

        q, kv, *rest = inputs
        indexer, rate = self._chooser(layer), self._compressed.rates[layer]
        if rest:
            self._add(layer, "", self._config.head_dim, kept, rest[0])
        if indexer:
            self._add(layer, "index_", indexer.dim, kept, rest[1])
        window = kept.states["window"]
        keys = torch.cat([window, kv])
        window.copy_(keys[len(kv) :])
        sinks = self._ops.small(f"model.layers.{layer}.self_attn.sinks")
        assert sinks is not None
        outs = []
        for start in range(0, len(q), BLOCK):
            some = slice(start, min(start + BLOCK, len(q)))
            scene = Scene(kept, self._compressed, kept.first + start, keys[start : some.stop + len(window)])
            asking = (rest[2][some], rest[3][some], indexer.top_k) if indexer else None
            outs.append(scene.attend(q[some], sinks, rate, asking))
        return torch.cat(outs)

    def _add(self, layer: int, kind: str, dim: int, kept: Kept, rows: torch.Tensor) -> None:
        """Store the entries that `rows` complete, normed and turned by the first position of their run."""
        import torch

        rate, of = self._compressed.rates[layer], "indexer." if kind else ""
        prefix = f"model.layers.{layer}.self_attn.{of}compressor."
        bias = self._ops.small(prefix + "position_bias")
        assert bias is not None
        whole = kept.first // rate
        sums = Compressor(kind, rate, dim, rows.shape[2] == 2 * dim, bias).sums(kept, rows)
        if len(sums):
            positions = torch.arange(whole, whole + len(sums), device=sums.device) * rate
            sums = turn(self._ops.norm(prefix + "kv_norm.weight", sums), *angles(self._compressed.rope, positions))
            kept.add(kind + "entries", whole, sums)


Asking = tuple["torch.Tensor", "torch.Tensor", int]
"""An indexer's queries [n, H, d] and weights [n, H] of some tokens, and how many entries each of them may see."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What some tokens see: `keys` [window - 1 + n, dim] end with their own; the first token is at `first`."""

    kept: Kept
    compressed: CompressedConfig
    first: int
    keys: torch.Tensor

    def attend(self, q: torch.Tensor, sinks: torch.Tensor, rate: int, asking: Asking | None) -> torch.Tensor:
        """[n, heads, dim] for scaled q [n, heads, dim] and `sinks` [heads], scores that join without a value."""
        import torch

        near, scores = self._near(q)
        parts, far = [scores], None
        if rate and self.first + len(q) >= rate:
            far, scores = self._far(q, rate, asking)
            parts.append(scores)
        parts.append(sinks[None, :, None].expand(len(q), -1, 1))
        weights = torch.cat(parts, dim=-1).softmax(-1)
        out = weights[..., : len(near)].flatten(0, 1) @ near
        out = out.view(q.shape)
        if far is not None:
            seen = weights[..., len(near) : -1]
            out += torch.bmm(seen, far) if far.ndim == 3 else (seen.flatten(0, 1) @ far).view(q.shape)
        return out

    def _near(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The window's keys that exist [m, dim], and scores [n, heads, m]."""
        import torch

        before = len(self.keys) - len(q)
        absent = max(0, before - self.first)
        keys = self.keys[absent:]
        scores = (q.flatten(0, 1) @ keys.mT).view(*q.shape[:2], -1)
        if len(q) == 1:  # sees all of them
            return keys, scores
        band = torch.ones(len(q), len(self.keys), dtype=torch.bool, device=q.device).tril(before).triu()
        return keys, scores.masked_fill(~band[:, None, absent:], float("-inf"))

    def _far(self, q: torch.Tensor, rate: int, asking: Asking | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The entries [m, dim], or for each token its own [n, m, dim]; and scores [n, heads, m]."""
        import torch

        count = (self.first + len(q)) // rate
        ready = (torch.arange(self.first + 1, self.first + len(q) + 1, device=q.device) // rate)[:, None]
        if asking is None or count <= asking[2]:
            far = self.kept.entries("entries", 0, count)
            scores = (q.flatten(0, 1) @ far.mT).view(*q.shape[:2], -1)
            index = torch.arange(count, device=q.device)[None]
        else:
            index = self._choose(asking, count, ready)
            far = self.kept.chosen("entries", index)
            if len(q) == 1:  # a plain product is faster than a batch of one
                far = far[0]
                scores = (q[0] @ far.mT)[None]
            else:
                scores = torch.bmm(q, far.mT)
        return far, scores.masked_fill((index >= ready)[:, None], float("-inf"))

    def _choose(self, asking: Asking, count: int, ready: torch.Tensor) -> torch.Tensor:
        """The best entries of each token, int64 [n, top_k]; those that are not ready come where too few are."""
        import torch

        q, weights, top_k = asking
        parts = []
        for start in range(0, count, _KEYS):
            keys = self.kept.entries("index_entries", start, min(start + _KEYS, count))
            parts.append(rank(q, weights, keys))
        scores = torch.cat(parts, dim=1)
        scores = scores.masked_fill(torch.arange(count, device=q.device)[None] >= ready, float("-inf"))
        return scores.topk(top_k, dim=-1).indices


def rank(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Scores sum_h w_h relu(q_h . k), [n, L], of keys [L, d] for q [n, H, d] and weights [n, H]; positive factors that
    change no order are left out."""
    import torch

    products = (q.flatten(0, 1) @ keys.mT).relu_().view(*q.shape[:2], -1)
    return torch.bmm(weights[:, None], products)[:, 0]
