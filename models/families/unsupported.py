"""Architectures that are known but not supported yet, each with what it would need."""

from __future__ import annotations

_KDA = "Kimi delta attention"
_DENSE = "this dense architecture"

NEEDS_GGUF: dict[str, str] = {
    "deepseek": "the first DeepSeek-MoE's grouped-query attention",
    "glm4": _DENSE,
    "kimi-linear": _KDA,
    "kimi-k3": f"{_KDA}, attention residuals and latent experts",
    "glm5-next": f"{_KDA}, sparse attention over pooled keys and hyper-connections",
    "qwen4exp": "block-sparse attention, hyper-connections and n-gram tables",
    "minimax-m3": "block-sparse attention",
    "bailingmoe3": f"{_KDA} and latent attention",
    "hy_v4": "Hy4's layers",
    "granitehybrid": "state-space layers (Mamba-2)",
    "mimo2": "MiMo-V2's windows with sinks and heads of two widths",
    "dots1": "the dots.llm1 family",
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma4", "phi2", "phi3", "mistral3"), _DENSE),
    **dict.fromkeys(("falcon", "gpt2", "starcoder2", "olmo2", "smollm3", "granite", "exaone4", "seed_oss"), _DENSE),
    "mamba": "state-space layers",
    "mamba2": "state-space layers",
    "rwkv7": "recurrent layers",
    "t5": "an encoder",
    "bert": "an encoder",
}

NEEDS_HF: dict[str, str] = {
    "DeepseekForCausalLM": NEEDS_GGUF["deepseek"],
    "KimiLinearForCausalLM": NEEDS_GGUF["kimi-linear"],
    "KimiK3ForConditionalGeneration": NEEDS_GGUF["kimi-k3"],
    "DeepseekV41ForCausalLM": "DeepSeek-V4's layers, shared compressors and n-gram tables",
    "Glm5NextForConditionalGeneration": NEEDS_GGUF["glm5-next"],
    "Qwen4ExpForConditionalGeneration": NEEDS_GGUF["qwen4exp"],
    "MiniMaxM3SparseForConditionalGeneration": NEEDS_GGUF["minimax-m3"],
    "BailingMoeV2_5ForCausalLM": "Lightning attention and latent attention",
    "BailingMoeV3ForCausalLM": NEEDS_GGUF["bailingmoe3"],
    "HYV4ForCausalLM": NEEDS_GGUF["hy_v4"],
    "GraniteMoeHybridForCausalLM": NEEDS_GGUF["granitehybrid"],
    "Dots1ForCausalLM": NEEDS_GGUF["dots1"],
    "LongcatFlashForCausalLM": "LongCat's layers of two attentions and experts that do nothing",
    "MiMoV2FlashForCausalLM": NEEDS_GGUF["mimo2"],
    **{
        f"{name}ForCausalLM": _DENSE
        for name in ("Mistral", "Gemma2", "Gemma3", "Phi3", "Falcon", "GPT2", "SmolLM3", "Olmo2")
    },
}
