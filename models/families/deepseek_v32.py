"""DeepSeek-V3.2: V3 with sparse attention; the indexer turns halves where the attention turns neighbours."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from hetero.models.config import ModelConfig
from hetero.models.families import latent
from hetero.models.families.common import INV_FREQ, MAX_LAYERS, Expected, FusedExperts, Keys, check_groups
from hetero.models.families.deepseek import V3_DEFAULTS
from hetero.models.families.routed import layers_without_mtp, moe_from_gguf, sigmoid_moe_from_hf
from hetero.models.families.sparse import forward, with_gguf_indexer, with_indexer

__all__ = ["config_from_gguf", "config_from_hf", "expected_tensors", "forward"]

NAME = "deepseek_v32"
HF_ARCHITECTURES = ("DeepseekV32ForCausalLM",)
HF_MODEL_TYPES = ("deepseek_v32",)
GGUF_ARCHS = ("deepseek32",)
RENAME_HF: tuple[tuple[str, str], ...] = ()
SKIP_HF = (INV_FREQ,)
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' DeepseekV32Config. Raises ModelError."""
    k = Keys(raw, where)
    n_layers = k.integer("num_hidden_layers", high=MAX_LAYERS)
    moe = sigmoid_moe_from_hf(k, n_layers, V3_DEFAULTS)
    config = latent.config_of_hf(k, NAME, moe, model_type=NAME, context=163840, eps=1e-6)
    return with_indexer(config, k, tuple(range(n_layers)), heads=64, interleaved=False)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "deepseek32.")
    moe = check_groups(moe_from_gguf(k, shapes, layers_without_mtp(k, MAX_LAYERS)[0], "sigmoid"), where)
    config = latent.config_of_gguf(k, shapes, NAME, moe, model_type=NAME)
    return with_gguf_indexer(config, k, shapes, interleaved=False)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return latent.model_tensors(config)
