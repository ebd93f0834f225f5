"""Shapes that are measured: one mixture-of-experts layer, and small models with the layers of real ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """Routed experts of one layer."""

    hidden: int
    inter: int
    experts: int
    top_k: int

    @classmethod
    def parse(cls, text: str) -> Layer:
        """From `hidden,inter,experts,top_k`; ValueError otherwise."""
        return cls(*(int(part) for part in text.split(",")))

    def __str__(self) -> str:
        return f"{self.hidden},{self.inter},{self.experts},{self.top_k}"


@dataclass(frozen=True)
class Model:
    """A whole model with few layers; `kv_lora` > 0 means latent attention, whose heads are nope + rope wide."""

    arch: str
    layers: int
    heads: int
    routed: Layer
    vocab: int = 32768
    kv_heads: int = 0
    head_dim: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    nope: int = 0
    rope: int = 0
    v_dim: int = 0
    shared: int = 0
    first_dense: int = 0
    dense_inter: int = 0


MODELS = {
    "M": Model("qwen3moe", layers=8, heads=32, kv_heads=4, head_dim=128, routed=Layer(2048, 768, 128, 8)),
    "D": Model(
        "deepseek2",
        layers=6,
        heads=16,
        q_lora=1280,
        kv_lora=512,
        nope=128,
        rope=64,
        v_dim=128,
        routed=Layer(2048, 1408, 64, 6),
        shared=2,
        first_dense=1,
        dense_inter=10944,
    ),
}
"""M has the layers of Qwen3-30B-A3B, D those of DeepSeek-V2-Lite (with a low-rank query, as llama.cpp wants it)."""
