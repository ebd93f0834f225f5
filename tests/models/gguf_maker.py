"""Small qwen3moe GGUF files with random codes in any format, for the tests of packing, storing and loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from hetero.models.iquants import stored_row_bytes

U8 = npt.NDArray[np.uint8]
SCALES = {
    "Q8_0": (34, 32, (0,)),
    "Q4_0": (18, 32, (0,)),
    "Q4_1": (20, 32, (0, 2)),
    "Q5_0": (22, 32, (0,)),
    "Q5_1": (24, 32, (0, 2)),
    "Q4_K": (144, 256, (0, 2)),
    "Q5_K": (176, 256, (0, 2)),
    "Q6_K": (210, 256, (208,)),
    "Q2_K": (84, 256, (80, 82)),
    "Q3_K": (110, 256, (108,)),
    "IQ4_NL": (18, 32, (0,)),
    "IQ4_XS": (136, 256, (0,)),
    "MXFP4": (17, 32, ()),
    "NVFP4": (36, 64, ()),
}
"""Bytes of a block, weights in it, and where its fp16 scales are."""
ALL_FORMATS = ("F32", "F16", "BF16", *SCALES)
REPACKED = {
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "TQ2_0": (64,),
}
"""Formats that are held in another one, and where their fp16 scale is; their rows are of one block of 256."""


@dataclass
class Shape:
    """Sizes of the model; each matrix kind has a format of its own."""

    layers: int = 2
    experts: int = 4
    hidden: int = 256
    inter: int = 256
    vocab: int = 300
    gate: str = "Q4_0"
    up: str = "Q4_0"
    down: str = "Q4_0"
    dense: str = "Q8_0"
    tied: bool = False
    seed: int = 1
    blank: bool = False
    """All codes and scales zero: quick to make where only the size matters."""
    extra: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Further tensors."""
    raw: dict[str, U8] = field(default_factory=dict)
    """Filled by `write`: the raw rows of every matrix by GGUF name, [rows, row bytes]."""


def random_rows(rng: np.random.Generator, format: str, n: int, k: int) -> U8:
    """Raw rows [n, row bytes]: random codes and finite scales of about 0.01."""
    if format not in SCALES and format not in REPACKED:
        values = rng.standard_normal((n, k)).astype(np.float32) * 0.05
        if format == "F32":
            return values.view(np.uint8)
        if format == "F16":
            return values.astype(np.float16).view(np.uint8)
        return np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
    size, block, scales = SCALES[format] if format in SCALES else (stored_row_bytes(format, 256), 256, REPACKED[format])
    blocks = rng.integers(0, 256, (n * k // block, size), dtype=np.uint8)
    for at in scales:
        values = rng.uniform(0.001, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
    if format == "MXFP4":
        blocks[:, 0] = rng.integers(116, 122, len(blocks))
    if format == "NVFP4":
        blocks[:, :4] = rng.integers(0, 0x28, (len(blocks), 4))
    return blocks.reshape(n, -1)


def write(path: Path, shape: Shape) -> Path:
    """Writes the model and returns `path`."""
    rng = np.random.default_rng(shape.seed)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    add_metadata(writer, shape)

    def matrix(name: str, format: str, n: int, k: int, experts: int = 0) -> None:
        count = n * max(1, experts)
        rows = (
            np.zeros((count, stored_row_bytes(format, k)), np.uint8)
            if shape.blank
            else random_rows(rng, format, count, k)
        )
        shape.raw[name] = rows
        data = rows.reshape(experts, n, -1) if experts else rows
        if format in ("F32", "F16"):
            writer.add_tensor(name, data.view(np.float32 if format == "F32" else np.float16))
        else:
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[format])

    def vector(name: str, *dims: int) -> None:
        writer.add_tensor(name, rng.standard_normal(dims).astype(np.float32))

    hidden = shape.hidden
    matrix("token_embd.weight", shape.dense, shape.vocab, hidden)
    vector("output_norm.weight", hidden)
    if not shape.tied:
        matrix("output.weight", shape.dense, shape.vocab, hidden)
    for layer in range(shape.layers):
        p = f"blk.{layer}."
        for name, n in (("attn_q", 64), ("attn_k", 32), ("attn_v", 32)):
            matrix(f"{p}{name}.weight", shape.dense, n, hidden)
        matrix(f"{p}attn_output.weight", "F16", hidden, 64)
        for name, dim in (("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", 16), ("attn_k_norm", 16)):
            vector(f"{p}{name}.weight", dim)
        vector(f"{p}ffn_gate_inp.weight", shape.experts, hidden)
        matrix(f"{p}ffn_gate_exps.weight", shape.gate, shape.inter, hidden, shape.experts)
        matrix(f"{p}ffn_up_exps.weight", shape.up, shape.inter, hidden, shape.experts)
        matrix(f"{p}ffn_down_exps.weight", shape.down, hidden, shape.inter, shape.experts)
    for name, values in shape.extra.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Everything but tensors."""
    writer.add_name("random")
    writer.add_block_count(shape.layers)
    writer.add_context_length(512)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inter)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(shape.inter)
    tokens = [*_byte_tokens(), "th"]
    tokens += [f"<unused{i}>" for i in range(len(tokens), shape.vocab - 1)] + ["<|im_end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3] * (shape.vocab - 257))
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(shape.vocab - 1)


def _byte_tokens() -> list[str]:
    """The 256 byte tokens as byte-level BPE spells them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in plain)
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]
