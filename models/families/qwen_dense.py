"""Dense Qwen2, Qwen2.5 and Qwen3: Llama with biases on q, k and v, or with q/k norms; GGUF rows are not permuted."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig
from hetero.models.families.common import INV_FREQ, Expected, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors, norm_tensors
from hetero.models.families.qwen2_moe import without_output_bias

if TYPE_CHECKING:
    import torch

NAME = "qwen_dense"
HF_ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
HF_MODEL_TYPES = ("qwen2", "qwen3")
GGUF_ARCHS = ("qwen2", "qwen3")
RENAME_HF: tuple[tuple[str, str], ...] = ()
SKIP_HF = (INV_FREQ,)
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False
FUSED_EXPERTS = None


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' Qwen2Config or Qwen3Config. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("use_sliding_window", False, False)
    names = raw.get("architectures")
    qwen3 = (names[0] if isinstance(names, list) and names else raw.get("model_type")) in ("Qwen3ForCausalLM", "qwen3")
    if qwen3 and not k.has("head_dim"):
        k = Keys({**raw, "head_dim": 128}, where)
    base = config_of_hf(k, NAME, context=32768, eps=1e-6, kv_default=None if k.has("num_key_value_heads") else 32)
    return replace(base, qk_norm=qwen3, attention_bias=base.attention_bias if qwen3 else True)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    arch = meta["general.architecture"]
    base = config_of_gguf(Keys(meta, where, f"{arch}."), shapes, NAME)
    return replace(base, model_type=arch, qk_norm=arch == "qwen3")


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    out = model_tensors(config)
    if config.qk_norm:
        return out | norm_tensors(config, config.head_dim, config.head_dim)
    return without_output_bias(out)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
