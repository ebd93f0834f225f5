"""The dense Llama family: grouped-query attention, half-split rope, SwiGLU. A mixture of experts with none routed."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig
from hetero.models.families.common import INV_FREQ, Expected, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors

if TYPE_CHECKING:
    import torch

NAME = "llama"
HF_ARCHITECTURES = ("LlamaForCausalLM",)
HF_MODEL_TYPES = ("llama",)
GGUF_ARCHS = ("llama",)
SKIP_HF = (INV_FREQ,)
RENAME_HF: tuple[tuple[str, str], ...] = ()
FUSED_EXPERTS = None
SKIP_GGUF: tuple[str, ...] = ("rope_freqs.weight",)  # read into the configuration (`RopeConfig.freq_factors`)
PERMUTED_QK = True
"""GGUF files of this architecture hold the rows of q and k in rope pairs; HF files hold them in halves."""


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' LlamaConfig. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("mlp_bias", False, False)
    return config_of_hf(k, NAME, context=2048, eps=1e-6)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "llama.")
    k.integer("feed_forward_length")  # which an architecture with experts may lack
    return config_of_gguf(k, shapes, NAME)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return model_tensors(config)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
