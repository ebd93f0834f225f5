"""What the families with DeepSeek sparse attention share: MLA whose tokens attend to what an indexer chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hetero.machine.types import ModelError
from hetero.models.blocks import Batch, Ops, decoder
from hetero.models.config import IndexerConfig, ModelConfig
from hetero.models.families.common import Keys
from hetero.models.families.latent import SparseLatentAttention

if TYPE_CHECKING:
    import torch


def with_indexer(
    config: ModelConfig, k: Keys, layers: tuple[int, ...], *, heads: int, interleaved: bool
) -> ModelConfig:
    """`config` with the indexer of a config.json; `heads` is the architecture's default. Raises ModelError."""
    indexer = IndexerConfig(
        heads=k.integer("index_n_heads", heads),
        dim=k.integer("index_head_dim", 128),
        top_k=k.integer("index_topk", 2048),
        layers=layers,
        interleaved=interleaved,
    )
    return _checked(replace(config, indexer=indexer), k.where)


def with_gguf_indexer(
    config: ModelConfig, k: Keys, shapes: Mapping[str, tuple[int, ...]], *, interleaved: bool
) -> ModelConfig:
    """`config` with the indexer of GGUF metadata, in the layers that have its tensors. Raises ModelError."""
    names = (f"model.layers.{layer}.self_attn.indexer.wk.weight" for layer in range(config.n_layers))
    indexer = IndexerConfig(
        heads=k.integer("attention.indexer.head_count"),
        dim=k.integer("attention.indexer.key_length"),
        top_k=k.integer("attention.indexer.top_k"),
        layers=tuple(layer for layer, name in enumerate(names) if name in shapes),
        interleaved=interleaved,
    )
    return _checked(replace(config, indexer=indexer), k.where)


def _checked(config: ModelConfig, where: str) -> ModelConfig:
    indexer, mla = config.indexer, config.mla
    assert indexer is not None
    assert mla is not None
    hint = "the file is damaged or of a variant that is not supported; try another upload of this model"
    if mla.q_lora_rank is None:
        raise ModelError(f"{where}: queries have no latent, from which an indexer takes its own", hint)
    if indexer.dim < config.rope.dim:
        raise ModelError(f"{where}: the indexer's keys have {indexer.dim} values; rope turns {config.rope.dim}", hint)
    if 0 not in indexer.layers:
        raise ModelError(f"{where}: layer 0 has no indexer, whose choice it could use", hint)
    return config


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, SparseLatentAttention())
