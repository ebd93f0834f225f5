"""GLM-5 to 5.3: MLA with sparse attention; since 5.2 only some layers have an indexer, whose choice the next share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero.models.config import ModelConfig
from hetero.models.families import latent
from hetero.models.families.common import INV_FREQ, MAX_LAYERS, FusedExperts, Keys, check_groups
from hetero.models.families.deepseek_v32 import expected_tensors
from hetero.models.families.routed import Defaults, layers_without_mtp, moe_from_gguf, sigmoid_moe_from_hf
from hetero.models.families.sparse import forward, with_gguf_indexer, with_indexer

__all__ = ["config_from_gguf", "config_from_hf", "expected_tensors", "forward"]

NAME = "glm_moe_dsa"
HF_ARCHITECTURES = ("GlmMoeDsaForCausalLM",)
HF_MODEL_TYPES = ("glm_moe_dsa",)
GGUF_ARCHS = ("glm-dsa",)
RENAME_HF: tuple[tuple[str, str], ...] = ()
SKIP_HF = (INV_FREQ,)
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' GlmMoeDsaConfig. Raises ModelError."""
    k = Keys(raw, where)
    n_layers = k.integer("num_hidden_layers", high=MAX_LAYERS)
    moe = sigmoid_moe_from_hf(k, n_layers, Defaults(scaling=2.5, first_dense=3))
    config = latent.config_of_hf(k, NAME, moe, model_type=NAME, context=202752, eps=1e-5)
    interleaved = k.flag("indexer_rope_interleave", True)
    return with_indexer(config, k, _full_layers(k, n_layers), heads=32, interleaved=interleaved)


def _full_layers(k: Keys, n_layers: int) -> tuple[int, ...]:
    """Layers with an indexer of their own: named one by one, or by a pattern, or one in `index_topk_freq`."""
    key = k.any_of("indexer_types", "index_topk_pattern")
    kinds = k.get(key)
    if kinds is None:
        step, offset = k.integer("index_topk_freq", 1, low=0) or 1, k.integer("index_skip_topk_offset", 2, low=0)
        return tuple(layer for layer in range(n_layers) if max(layer - offset + 1, 0) % step == 0)
    kinds = [{"F": "full", "S": "shared"}.get(c, c) for c in kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or len(kinds) < n_layers or any(c not in ("full", "shared") for c in kinds):
        raise k.fail(key, repr(kinds)[:60], f"'full' or 'shared' for each of {n_layers} layers")
    return tuple(layer for layer in range(n_layers) if kinds[layer] == "full")


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "glm-dsa.")
    moe = check_groups(moe_from_gguf(k, shapes, layers_without_mtp(k, MAX_LAYERS)[0], "sigmoid"), where)
    config = latent.config_of_gguf(k, shapes, NAME, moe, model_type=NAME)
    return with_gguf_indexer(config, k, shapes, interleaved=True)
