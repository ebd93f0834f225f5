"""Checkpoints of random codes for the bench of `hetero convert`: one for each way in which experts are stored.

Safetensors are written by hand, as only shapes and types matter; GGUF files by the gguf package.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, INTER, EXPERTS, VOCAB = 2048, 1408, 32, 1024
GGUF_INTER = 1536
"""K-quants have blocks of 256."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor to be written: what repeats in it, or None for random codes."""

    dtype: str
    shape: tuple[int, ...]
    pattern: bytes | None = None

    @property
    def n_bytes(self) -> int:
        size = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I64": 8}.get(self.dtype, 1)
        return int(np.prod(self.shape, dtype=np.int64)) * size


BF16 = b"\x23\x3c"  # 0.01
F16 = b"\x1f\x21"  # 0.01
F32 = struct.pack("<f", 1e-3)
Parts = dict[str, Tensor]


def _plain(n: int, k: int) -> Parts:
    return {".weight": Tensor("BF16", (n, k))}


def _fp8(n: int, k: int) -> Parts:
    scale = Tensor("F32", (-(-n // 128), -(-k // 128)), F32)
    return {".weight": Tensor("F8_E4M3", (n, k)), ".weight_scale_inv": scale}


def _int4(n: int, k: int, group: int = 32, zeros: bool = False) -> Parts:
    out = {".weight_packed": Tensor("I32", (n, k // 8)), ".weight_scale": Tensor("BF16", (n, k // group), BF16)}
    out[".weight_shape"] = Tensor("I64", (2,), struct.pack("<2q", n, k))
    return out | ({".weight_zero_point": Tensor("I32", (n // 8, k // group))} if zeros else {})


def _int8(n: int, k: int) -> Parts:
    return {".weight": Tensor("I8", (n, k)), ".weight_scale": Tensor("BF16", (n, 1), BF16)}


def _mxfp4(n: int, k: int) -> Parts:
    return {".weight": Tensor("I8", (n, k // 2)), ".scale": Tensor("F8_E8M0", (n, k // 32), b"\x70")}


def _nvfp4(n: int, k: int) -> Parts:
    scale = Tensor("F8_E4M3", (n, k // 16), b"\x38")
    return {".weight": Tensor("U8", (n, k // 2)), ".weight_scale": scale, ".weight_scale_2": Tensor("F32", (), F32)}


def _gptq(n: int, k: int) -> Parts:
    return {".qweight": Tensor("I32", (k // 8, n)), **_scales(n, k)}


def _awq(n: int, k: int) -> Parts:
    return {".qweight": Tensor("I32", (k, n // 8)), **_scales(n, k)}


def _scales(n: int, k: int) -> Parts:
    return {".qzeros": Tensor("I32", (k // 128, n // 8)), ".scales": Tensor("F16", (k // 128, n), F16)}


def _fused(n: int, k: int) -> Parts:
    return {"": Tensor("BF16", (EXPERTS, n, k))}


def _transposed(n: int, k: int) -> Parts:
    return {"": Tensor("BF16", (EXPERTS, k, n))}


def _fused_mxfp4(n: int, k: int) -> Parts:
    return {"_blocks": Tensor("U8", (EXPERTS, n, k // 32, 16)), "_scales": Tensor("U8", (EXPERTS, n, k // 32), b"\x70")}


@dataclass(frozen=True, slots=True)
class Kind:
    """How experts are stored: the parts of a matrix of n rows and k inputs, or of a stack; or GGUF types."""

    parts: Callable[[int, int], Parts] | None = None
    fused: bool = False
    gpt_oss: bool = False
    types: tuple[str, str, str] | None = None


KINDS: dict[str, Kind] = {
    "BF16": Kind(_plain),
    "BF16, fused": Kind(_fused, fused=True),
    "BF16, fused, transposed, interleaved": Kind(_transposed, fused=True, gpt_oss=True),
    "FP8 128 x 128": Kind(_fp8),
    "INT8 per row": Kind(_int8),
    "INT4 group 32": Kind(_int4),
    "INT4 group 128, zero points": Kind(lambda n, k: _int4(n, k, 128, True)),
    "MXFP4": Kind(_mxfp4),
    "MXFP4, fused, interleaved": Kind(_fused_mxfp4, fused=True, gpt_oss=True),
    "NVFP4": Kind(_nvfp4),
    "GPTQ": Kind(_gptq),
    "AWQ": Kind(_awq),
    "GGUF Q8_0": Kind(types=("Q8_0", "Q8_0", "Q8_0")),
    "GGUF Q4_K and Q6_K": Kind(types=("Q4_K", "Q4_K", "Q6_K")),
}


def layer_bytes(name: str) -> int:
    """Bytes of the experts of one layer in the file."""
    kind = KINDS[name]
    if kind.types is None:
        return sum(t.n_bytes for name, t in tensors(kind, 1) if ".experts." in name)
    from hetero.native import row_bytes

    gate, up, down = kind.types
    inner = GGUF_INTER * (row_bytes(gate, HIDDEN) + row_bytes(up, HIDDEN))
    return EXPERTS * (inner + HIDDEN * row_bytes(down, GGUF_INTER))


def make(name: str, size: int, folder: Path) -> Path:
    """A checkpoint of about `size` bytes in `folder`; returns what to convert."""
    kind, layers = KINDS[name], max(2, round(size / layer_bytes(name)))
    folder.mkdir()
    if kind.types is not None:
        return _make_gguf(kind.types, layers, folder / "model.gguf")
    (folder / "config.json").write_text(json.dumps(_config(kind, layers)))
    from tests.tiny_tokenizer import save_tokenizer

    save_tokenizer(folder)
    # No e4m3 NaN, no infinite bfloat16: the highest bit of the exponent stays clear.
    noise = (np.random.default_rng(0).integers(0, 256, 64 << 20, dtype=np.uint8) & 0xBF).tobytes()
    header, offset = {}, 0
    for tensor, t in tensors(kind, layers):
        header[tensor] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": (offset, offset + t.n_bytes)}
        offset += t.n_bytes
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw)
        for _, t in tensors(kind, layers):
            for start in range(0, t.n_bytes, len(noise)):
                part = min(len(noise), t.n_bytes - start)
                f.write(noise[:part] if t.pattern is None else t.pattern * (part // len(t.pattern)))
        f.flush()
        os.fsync(f.fileno())
    return folder


def _config(kind: Kind, layers: int) -> dict[str, Any]:
    config: dict[str, Any] = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    config |= {"vocab_size": VOCAB, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 1}
    config |= {"head_dim": 128, "hidden_size": HIDDEN, "intermediate_size": INTER, "moe_intermediate_size": INTER}
    config |= {"num_experts": EXPERTS, "num_experts_per_tok": 2, "max_position_embeddings": 1024}
    if kind.gpt_oss:
        config |= {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": EXPERTS}
        del config["num_experts"]
    return config


def tensors(kind: Kind, layers: int) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a Qwen3-MoE or gpt-oss with `layers` layers whose experts are stored as `kind`."""
    yield "model.embed_tokens.weight", Tensor("BF16", (VOCAB, HIDDEN), BF16)
    yield "lm_head.weight", Tensor("BF16", (VOCAB, HIDDEN), BF16)
    yield "model.norm.weight", Tensor("BF16", (HIDDEN,), BF16)
    for layer in range(layers):
        p = f"model.layers.{layer}."
        for name, size in _vectors(kind):
            yield p + name, Tensor("BF16", (size,), BF16)
        for name, shape in (("q", (512, HIDDEN)), ("k", (128, HIDDEN)), ("v", (128, HIDDEN)), ("o", (HIDDEN, 512))):
            yield f"{p}self_attn.{name}_proj.weight", Tensor("BF16", shape, BF16)
        router = "router" if kind.gpt_oss else "gate"
        yield f"{p}mlp.{router}.weight", Tensor("BF16", (EXPERTS, HIDDEN), BF16)
        yield from _experts(kind, f"{p}mlp.experts.")


def _vectors(kind: Kind) -> Iterator[tuple[str, int]]:
    yield "input_layernorm.weight", HIDDEN
    yield "post_attention_layernorm.weight", HIDDEN
    if not kind.gpt_oss:
        yield from (("self_attn.q_norm.weight", 128), ("self_attn.k_norm.weight", 128))
        return
    yield from ((f"self_attn.{name}_proj.bias", n) for name, n in (("q", 512), ("k", 128), ("v", 128), ("o", HIDDEN)))
    yield from (("self_attn.sinks", 4), ("mlp.router.bias", EXPERTS))


def _experts(kind: Kind, prefix: str) -> Iterator[tuple[str, Tensor]]:
    assert kind.parts is not None
    if kind.fused:
        for name, n, k in (("gate_up_proj", 2 * INTER, HIDDEN), ("down_proj", HIDDEN, INTER)):
            yield from ((f"{prefix}{name}{part}", t) for part, t in kind.parts(n, k).items())
            if kind.gpt_oss:
                yield f"{prefix}{name}_bias", Tensor("BF16", (EXPERTS, n), BF16)
        return
    for e in range(EXPERTS):
        for part, (n, k) in (("gate", (INTER, HIDDEN)), ("up", (INTER, HIDDEN)), ("down", (HIDDEN, INTER))):
            yield from ((f"{prefix}{e}.{part}_proj{name}", t) for name, t in kind.parts(n, k).items())


def _make_gguf(types: tuple[str, str, str], layers: int, path: Path) -> Path:
    import gguf

    from tests.models.gguf_maker import Shape, add_metadata, random_rows

    shape = Shape(layers=layers, hidden=HIDDEN, inter=GGUF_INTER, experts=EXPERTS, vocab=VOCAB)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    add_metadata(writer, shape)
    rng, data = np.random.default_rng(0), []

    def add(name: str, format: str, *dims: int, rows: int = 0) -> None:
        made = random_rows(rng, format, rows or int(np.prod(dims[:-1], dtype=np.int64)), dims[-1])
        kind = gguf.GGMLQuantizationType[format]
        n_bytes = int(np.prod(dims[:-1], dtype=np.int64)) * made.shape[1]
        writer.add_tensor_info(name, (*dims[:-1], made.shape[1]), np.dtype(np.uint8), n_bytes, raw_dtype=kind)
        data.append((made.reshape(-1), n_bytes // made.nbytes))

    for name in ("token_embd", "output"):
        add(f"{name}.weight", "Q8_0", VOCAB, HIDDEN)
    add("output_norm.weight", "F32", 1, HIDDEN)
    for layer in range(layers):
        p = f"blk.{layer}."
        for name, n in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", 16), ("attn_k_norm", 16)):
            add(f"{p}{name}.weight", "F32", 1, n)
        for name, n, k in (("q", 64, HIDDEN), ("k", 32, HIDDEN), ("v", 32, HIDDEN), ("output", HIDDEN, 64)):
            add(f"{p}attn_{name}.weight", "Q8_0", n, k)
        add(f"{p}ffn_gate_inp.weight", "F32", EXPERTS, HIDDEN)
        for name, format, n, k in zip(
            ("gate", "up", "down"), types, (GGUF_INTER, GGUF_INTER, HIDDEN), (HIDDEN, HIDDEN, GGUF_INTER), strict=True
        ):
            add(f"{p}ffn_{name}_exps.weight", format, EXPERTS, n, k, rows=n)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for made, repeats in data:
        writer.write_tensor_data(np.tile(made, repeats))
    writer.close()
    return path
