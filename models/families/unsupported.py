"""Architectures that are known but not supported yet, each with what it would need."""

from __future__ import annotations

_DSA = "DeepSeek sparse attention (an indexer that picks the keys)"
_DELTA = "linear attention with the gated delta rule"
_DENSE = "this dense architecture"

NEEDS_GGUF: dict[str, str] = {
    "deepseek": "the first DeepSeek-MoE's grouped-query attention",
    "deepseek32": _DSA,
    "glm-dsa": _DSA,
    "deepseek4": "compressed attention, hash routing and hyper-connections",
    "glm4": _DENSE,
    "qwen2moe": "the gated shared expert of Qwen2-MoE",
    "qwen3next": _DELTA,
    "qwen35moe": _DELTA,
    "qwen35": _DELTA,
    "gpt-oss": "attention sinks, sliding windows and MXFP4 experts",
    "llama4": "chunked attention and input-scaled experts",
    "kimi-linear": "Kimi delta attention",
    "bailingmoe": "the Ling family's fused q/k/v",
    "bailingmoe2": "the Ling-2.0 family's fused q/k/v and q/k norms",
    "hunyuan-moe": "the Hunyuan family's q/k norms after rope",
    "granitemoe": "Granite's multipliers",
    "ernie4_5-moe": "the ERNIE 4.5 family's router",
    "dots1": "the dots.llm1 family",
    **dict.fromkeys(("qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma4", "phi2", "phi3", "mistral3"), _DENSE),
    **dict.fromkeys(("falcon", "gpt2", "starcoder2", "olmo2", "smollm3", "granite", "exaone4", "seed_oss"), _DENSE),
    "mamba": "state-space layers",
    "mamba2": "state-space layers",
    "rwkv7": "recurrent layers",
    "t5": "an encoder",
    "bert": "an encoder",
}

NEEDS_HF: dict[str, str] = {
    "DeepseekForCausalLM": NEEDS_GGUF["deepseek"],
    "DeepseekV32ForCausalLM": _DSA,
    "GlmMoeDsaForCausalLM": _DSA,
    "DeepseekV4ForCausalLM": NEEDS_GGUF["deepseek4"],
    "Qwen2MoeForCausalLM": NEEDS_GGUF["qwen2moe"],
    "Qwen3NextForCausalLM": _DELTA,
    "Qwen3_5MoeForConditionalGeneration": _DELTA,
    "KimiLinearForCausalLM": NEEDS_GGUF["kimi-linear"],
    "GptOssForCausalLM": NEEDS_GGUF["gpt-oss"],
    "Llama4ForConditionalGeneration": NEEDS_GGUF["llama4"],
    "Llama4ForCausalLM": NEEDS_GGUF["llama4"],
    "BailingMoeForCausalLM": NEEDS_GGUF["bailingmoe"],
    "BailingMoeV2ForCausalLM": NEEDS_GGUF["bailingmoe2"],
    "HunYuanMoEV1ForCausalLM": NEEDS_GGUF["hunyuan-moe"],
    "GraniteMoeForCausalLM": NEEDS_GGUF["granitemoe"],
    "Ernie4_5_MoeForCausalLM": NEEDS_GGUF["ernie4_5-moe"],
    **{
        f"{name}ForCausalLM": _DENSE
        for name in ("Qwen2", "Qwen3", "Mistral", "Gemma2", "Gemma3", "Phi3", "Falcon", "GPT2", "SmolLM3", "Olmo2")
    },
}
