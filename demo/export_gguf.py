"""Write a checkpoint of the demo model as a GGUF file that hetero and llama.cpp load.

    python demo/export_gguf.py build/demo/checkpoint.pt models/demo/hetero-demo.gguf

The matrices are stored as Q8_0, router and norms as F32. The tokenizer is read from beside the checkpoint.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, TokenType, quants
from model import DemoConfig
from torch import Tensor
from vocabulary import CHAT_TEMPLATE, END_OF_TEXT, IM_END, SPECIALS

LAYER_NAMES = {
    "attn_norm.weight": "attn_norm.weight",
    "attn.q_proj.weight": "attn_q.weight",
    "attn.k_proj.weight": "attn_k.weight",
    "attn.v_proj.weight": "attn_v.weight",
    "attn.o_proj.weight": "attn_output.weight",
    "attn.q_norm.weight": "attn_q_norm.weight",
    "attn.k_norm.weight": "attn_k_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "moe.router": "ffn_gate_inp.weight",
}


def tensors(state: dict[str, Tensor], layers: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """The tensors by their GGUF names, float32, in row-major [..., out, in]."""
    named = {"token_embd.weight": state["embed.weight"], "output_norm.weight": state["norm.weight"]}
    for layer in range(layers):
        ours, theirs = f"layers.{layer}.", f"blk.{layer}."
        named |= {theirs + new: state[ours + old] for old, new in LAYER_NAMES.items()}
        gate, up = state[ours + "moe.gate_up"].transpose(1, 2).chunk(2, dim=1)
        named[theirs + "ffn_gate_exps.weight"] = gate
        named[theirs + "ffn_up_exps.weight"] = up
        named[theirs + "ffn_down_exps.weight"] = state[ours + "moe.down"].transpose(1, 2)
    return {name: tensor.float().contiguous().numpy() for name, tensor in named.items()}


def is_quantised(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is stored as Q8_0: every matrix but the router."""
    return len(shape) >= 2 and "ffn_gate_inp" not in name and shape[-1] % 32 == 0


def add_settings(writer: gguf.GGUFWriter, config: DemoConfig) -> None:
    """The hyper-parameters."""
    writer.add_name("hetero-demo")
    writer.add_description("hetero's demo model: a small mixture of experts that explains hetero's words and commands")
    writer.add_license("apache-2.0")
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.expert_width * config.top_k)
    writer.add_expert_feed_forward_length(config.expert_width)
    writer.add_expert_count(config.experts)
    writer.add_expert_used_count(config.top_k)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_vocab_size(config.vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path, size: int) -> None:
    """Vocabulary, merges, special tokens and chat template."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    ids: dict[str, int] = stored["model"]["vocab"] | {t["content"]: t["id"] for t in stored["added_tokens"]}
    names = {number: token for token, number in ids.items()}
    tokens = [names.get(i, f"<|unused_{i}|>") for i in range(size)]
    kinds = [_kind(i, names) for i in range(size)]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in stored["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(ids[IM_END])
    writer.add_pad_token_id(ids[END_OF_TEXT])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _kind(number: int, names: dict[int, str]) -> TokenType:
    if number not in names:
        return TokenType.UNUSED
    return TokenType.CONTROL if names[number] in SPECIALS else TokenType.NORMAL


def export(checkpoint: Path, out: Path) -> None:
    """Write the GGUF file."""
    state = torch.load(checkpoint, map_location="cpu")
    config = DemoConfig(**state["config"])
    writer = gguf.GGUFWriter(out, "qwen3moe")
    add_settings(writer, config)
    add_tokenizer(writer, checkpoint.parent / "tokenizer.json", config.vocab)
    for name, data in tensors(state["model"], config.layers).items():
        if is_quantised(name, data.shape):
            rows = quants.quantize(data, GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    export(args.checkpoint, args.out)


if __name__ == "__main__":
    main()
