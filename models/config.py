"""A model's hyper-parameters, the same whether they came from a config.json or from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions: base `theta`, rotated width `dim`, pair order and the scaling rule.

    `interleaved` rotates neighbours (2i, 2i+1); otherwise halves (i, i + dim/2). `kind` selects the rule;
    the YaRN fields are those of Peng et al. 2023 (arXiv 2309.00071), `low_freq`/`high_freq` those of Llama 3.
    """

    theta: float
    dim: int
    interleaved: bool = False
    kind: Literal["default", "linear", "yarn", "llama3"] = "default"
    factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    freq_factors: tuple[float, ...] = ()
    """Divisors of the `dim/2` inverse frequencies, as Llama-3 GGUF files store them (`rope_freqs.weight`)."""


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Routed experts of one model. Layers before `first_dense` have a dense MLP instead."""

    n_experts: int
    top_k: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    first_dense: int = 0
    scoring: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    norm_topk: bool = True
    scaling: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    group_score: Literal["max", "top2"] = "max"
    correction_bias: bool = False
    weighs_input: bool = False
    """Whether an expert's input is multiplied by its weight, instead of its output (Llama 4)."""
    shared_gate: bool = False
    """The shared expert's output is multiplied by the sigmoid of one more projection."""
    dense_layers: tuple[int, ...] = ()
    """Layers without routed experts besides those before `first_dense` (mlp_only_layers, decoder_sparse_step)."""
    activation: Literal["silu", "gelu_tanh", "gpt_oss", "clamped_silu"] = "silu"
    """How a routed expert joins gate and up; hetero.h has the formulae."""
    expert_bias: bool = False
    """Whether routed experts add a bias to gate, up and down (`mlp.experts.{gate,up,down}.bias`)."""
    hash_layers: tuple[int, ...] = ()
    """Layers whose experts a table gives by the token's id (`mlp.gate.tid2eid`); scores only weigh them."""


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434); widths per head, `q_lora_rank` None = full q."""

    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    latent_norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class IndexerConfig:
    """DeepSeek sparse attention (DeepSeek-V3.2): a token attends only to the `top_k` positions that an indexer chooses.

    `layers` have an indexer: `heads` query heads and one key of `dim` values per position, whose first values turn by
    the model's rope in pairs as `interleaved` says. The other layers use the choice of the last such layer.
    """

    heads: int
    dim: int
    top_k: int
    layers: tuple[int, ...]
    interleaved: bool
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class DeltaConfig:
    """Gated delta nets (arXiv 2412.06464) in the place of attention in `layers`; widths per head.

    `conv` is the length of the causal convolution that queries, keys and values pass before. With r = value_heads /
    key_heads, value head h reads key head h // r, or h % key_heads where the file holds the value heads `tiled`.
    """

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    fused_qkvz: bool = False
    """One projection gives, for each key head in turn, its q, k and its value heads' v and z."""
    fused_ba: bool = False
    """One projection gives, for each key head in turn, its value heads' b and a."""
    tiled: bool = False

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class CompressedConfig:
    """DeepSeek-V4's attention: each layer sees its last `window` positions, and entries that sum up what came before.

    An entry stands for `rates[layer]` positions (0: the layer has none). In layers with an indexer an entry draws on
    the run of positions before its own as well, and a token sees only the entries that the indexer chooses. Queries
    come from a latent of `q_rank` values; the output goes through `groups` matrices of `group_rank` rows. Layers with
    entries turn everything by `rope` instead of the model's.
    """

    rates: tuple[int, ...]
    window: int
    q_rank: int
    groups: int
    group_rank: int
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class HyperConfig:
    """Hyper-connections (arXiv 2512.24880): `streams` residuals side by side, mixed by matrices that `iterations` of
    Sinkhorn and Knopp's rule make doubly stochastic; `eps` is added to each sum."""

    streams: int
    iterations: int
    eps: float


PAGED_TOKENS = 64
"""Tokens that share a page of the KV cache, in which a state with fewer entries than tokens has at least one."""


@dataclass(frozen=True, slots=True)
class State:
    """Something that a layer keeps of a request: `shape` values for every token, in pages of the KV type.

    `every`: for so many tokens together. `recurrent`: `shape` float32 values for the whole request instead, changed by
    every token.
    """

    shape: tuple[int, ...]
    recurrent: bool = False
    every: int = 1


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Granite's constant factors: on the embedding, on what each block adds, on the logits, and q·k's scale."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention: float | None = None
    """None: one over the root of the head's width."""


@dataclass(frozen=True, slots=True)
class ChunkedConfig:
    """Llama 4's attention. Layers see their own run of `chunk` positions only (0: all that came before).

    `global_layers` are not rotated and see all; their queries at position p are scaled by
    1 + temperature * log(1 + floor((p + 1) / floor)), where `floor` 0 stands for no scaling.
    """

    chunk: int
    global_layers: tuple[int, ...]
    floor: int
    temperature: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything a family's forward pass needs to know."""

    family: str
    model_type: str
    vocab_size: int
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    max_context: int
    rope: RopeConfig
    tie_word_embeddings: bool = False
    qk_norm: bool = False
    moe: MoeConfig | None = None
    mla: MlaConfig | None = None
    indexer: IndexerConfig | None = None
    delta: DeltaConfig | None = None
    compressed: CompressedConfig | None = None
    hyper: HyperConfig | None = None
    zero_centred: bool = False
    """Norm weights are stored less one, but for those of gated delta nets."""
    attention_bias: bool = False
    clip_qkv: float | None = None
    """Largest absolute value of q, k and v after their norms."""
    windows: tuple[int, ...] = ()
    """Per layer, how many of the latest positions a token sees, itself included; 0: all. Empty: all in every layer."""
    multipliers: Multipliers = Multipliers()
    chunked: ChunkedConfig | None = None
    norm_head: bool = False
    """Whether the columns of the head are made unit vectors (Ling 1.x)."""
    mtp_layers: int = 0
    """Multi-token prediction layers that follow the last layer in the file; they are not loaded."""

    def window(self, layer: int) -> int | None:
        """The latest positions that a token sees in `layer`, None for all."""
        return (self.windows[layer] or None) if self.windows else None

    @property
    def attention_scale(self) -> float:
        """The factor on q·k."""
        return self.multipliers.attention or self.head_dim**-0.5

    def is_moe_layer(self, layer: int) -> bool:
        """Whether `layer` has routed experts."""
        moe = self.moe
        return moe is not None and layer >= moe.first_dense and layer not in moe.dense_layers

    def is_delta_layer(self, layer: int) -> bool:
        """Whether `layer` has a gated delta net instead of attention."""
        return self.delta is not None and layer in self.delta.layers

    def layer_states(self, layer: int) -> dict[str, State]:
        """What `layer` keeps, by name: MLA its latent and shared rope key side by side, an indexer its key."""
        if self.delta is not None and self.is_delta_layer(layer):
            d = self.delta
            matrices = State((d.value_heads, d.key_dim, d.value_dim), recurrent=True)
            return {"conv": State((d.conv - 1, d.conv_width), recurrent=True), "delta": matrices}
        if self.compressed is not None:
            return self._compressed_states(layer, self.compressed)
        if self.mla is not None:
            latent = {"latent": State((self.mla.kv_lora_rank + self.mla.rope_dim,))}
            if self.indexer is not None and layer in self.indexer.layers:
                return latent | {"index": State((self.indexer.dim,))}
            return latent
        return dict.fromkeys(("k", "v"), State((self.n_kv_heads, self.head_dim)))

    def _compressed_states(self, layer: int, compressed: CompressedConfig) -> dict[str, State]:
        """The window's keys before a token; the inputs of entries that are not complete yet; the entries."""
        states = {"window": State((compressed.window - 1, self.head_dim), recurrent=True)}
        rate, indexer = compressed.rates[layer], self.indexer
        if not rate:
            return states
        if indexer is None or layer not in indexer.layers:
            tail = State((rate - 1, 2 * self.head_dim), recurrent=True)
            return states | {"tail": tail, "entries": State((self.head_dim,), every=rate)}
        for name, dim in (("", self.head_dim), ("index_", indexer.dim)):
            states[name + "tail"] = State((2 * rate - 1, 4 * dim), recurrent=True)
            states[name + "entries"] = State((dim,), every=rate)
        return states

    @property
    def attended(self) -> int:
        """Positions that a token attends to at most; 0: all that it has."""
        return self.indexer.top_k if self.indexer and self.mla else 0

    @property
    def index_elements(self) -> int:
        """Values that one token keeps for indexers over all layers, where they choose among positions."""
        return self.indexer.dim * len(self.indexer.layers) if self.indexer and self.mla else 0

    @property
    def kv_elements_per_token(self) -> int:
        """Values that one token keeps in the KV cache over all layers."""
        return self._values(recurrent=False)

    @property
    def kv_padding(self) -> int:
        """Values by which rows in blocks of 32, as an 8-bit cache has them, are longer over all layers."""
        paged = self._states(recurrent=False)
        return sum(_each(math.prod(state.shape[:-1]) * (-state.shape[-1] % 32), state) for state in paged)

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of a request's recurrent states over all layers."""
        return 4 * self._values(recurrent=True)

    def _values(self, *, recurrent: bool) -> int:
        return sum(_each(math.prod(state.shape), state) for state in self._states(recurrent=recurrent))

    def _states(self, *, recurrent: bool) -> Iterator[State]:
        for layer in range(self.n_layers):
            yield from (state for state in self.layer_states(layer).values() if state.recurrent is recurrent)


def _each(values: int, state: State) -> int:
    """Of a state's `values`, as many as one token counts for."""
    return -(-values // min(state.every, PAGED_TOKENS))
