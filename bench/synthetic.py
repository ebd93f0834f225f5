"""GGUF models of random weights with the layers of real ones: python -m bench.synthetic M Q4_0 FOLDER

Codes are random and scales constant, so that weights have the spread of a trained model's and no encoder is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from bench.shapes import MODELS, Model

_SPREADS = {
    Type.Q4_0: (4.6, 0, None),
    Type.Q8_0: (74.0, 0, None),
    Type.Q5_0: (9.2, 0, None),
    Type.Q4_K: (255.0, 0, 7.5),
    Type.Q6_K: (1370.0, 208, None),
}
"""Per type: deviation of the weights that random codes give at d = 1, the place of d in a block, and the minimum's
factor dmin, in units of d, that centres them."""
FORMATS = ("Q4_0", "Q8_0", "Q4_K_M", "BF16")
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PIECE = 1 << 22
"""Weights that are drawn at once."""

Tensor = tuple[str, tuple[int, ...], float]
"""Name, shape in numpy's order and deviation; 0: a norm."""


def make(name: str, fmt: str, folder: Path) -> Path:
    """The file of that model and format in `folder`; one that is there is used again."""
    path = folder / f"{name}-{fmt.lower()}.gguf"
    if not path.exists():
        print(f"writing {path}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        write(MODELS[name], f"synthetic {name}", fmt, part)
        part.rename(path)
    return path


def write(model: Model, name: str, fmt: str, path: Path) -> None:
    """Write a model; the same one each time."""
    writer = gguf.GGUFWriter(path, model.arch)
    _add_metadata(writer, model, name)
    _add_tokenizer(writer, model.vocab)
    planned = []
    for tensor, shape, spread in tensors(model):
        kind = kind_of(tensor, shape, fmt, model.layers)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        row = (*shape[:-1], shape[-1] // block * size)
        planned.append((row, kind, spread))
        writer.add_tensor_info(tensor, row, np.dtype(np.uint8), int(np.prod(row)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    for row, kind, spread in planned:
        writer.write_tensor_data(_draw(row, kind, spread, rng))
    writer.close()


def tensors(model: Model) -> Iterator[Tensor]:
    """Every tensor, by GGUF's names. Each layer adds a little to the residual stream, as in a trained model."""
    hidden = model.routed.hidden
    yield "token_embd.weight", (model.vocab, hidden), 0.5
    yield "output_norm.weight", (hidden,), 0
    yield "output.weight", (model.vocab, hidden), 4 / hidden**0.5
    for layer in range(model.layers):
        for name, shape, spread in _layer(model, layer):
            yield f"blk.{layer}.{name}.weight", shape, spread


def _layer(model: Model, layer: int) -> Iterator[Tensor]:
    hidden, small = model.routed.hidden, 1 / (2 * model.layers) ** 0.5
    yield "attn_norm", (hidden,), 0
    yield from _latent(model) if model.kv_lora else _grouped(model)
    width = model.heads * (model.v_dim or model.head_dim)
    yield "attn_output", (hidden, width), small / width**0.5
    yield "ffn_norm", (hidden,), 0
    if layer < model.first_dense:
        yield from _mlp("", (), model.dense_inter, hidden, small)
        return
    experts, inter = model.routed.experts, model.routed.inter
    yield "ffn_gate_inp", (experts, hidden), hidden**-0.5
    yield from _mlp("_exps", (experts,), inter, hidden, small)
    if model.shared:
        yield from _mlp("_shexp", (), model.shared * inter, hidden, small)


def _mlp(suffix: str, stack: tuple[int, ...], inter: int, hidden: int, small: float) -> Iterator[Tensor]:
    yield "ffn_gate" + suffix, (*stack, inter, hidden), hidden**-0.5
    yield "ffn_up" + suffix, (*stack, inter, hidden), hidden**-0.5
    yield "ffn_down" + suffix, (*stack, hidden, inter), 2 * small / inter**0.5


def _grouped(model: Model) -> Iterator[Tensor]:
    hidden, dim = model.routed.hidden, model.head_dim
    for name, heads in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)):
        yield f"attn_{name}", (heads * dim, hidden), hidden**-0.5
    yield "attn_q_norm", (dim,), 0
    yield "attn_k_norm", (dim,), 0


def _latent(model: Model) -> Iterator[Tensor]:
    hidden, rank = model.routed.hidden, model.kv_lora
    yield "attn_q_a", (model.q_lora, hidden), hidden**-0.5
    yield "attn_q_a_norm", (model.q_lora,), 0
    yield "attn_q_b", (model.heads * (model.nope + model.rope), model.q_lora), model.q_lora**-0.5
    yield "attn_kv_a_mqa", (rank + model.rope, hidden), hidden**-0.5
    yield "attn_kv_a_norm", (rank,), 0
    yield "attn_k_b", (model.heads, rank, model.nope), rank**-0.5
    yield "attn_v_b", (model.heads, model.v_dim, rank), rank**-0.5


def kind_of(name: str, shape: tuple[int, ...], fmt: str, layers: int) -> Type:
    """A tensor's type, chosen as llama-quantize does: the head in 6 bits, and with Q4_K_M some of v and down too."""
    if len(shape) == 1 or name.endswith("ffn_gate_inp.weight"):
        return Type.F32
    kind = Type.Q4_K if fmt == "Q4_K_M" else Type[fmt]
    if name == "output.weight" and fmt in ("Q4_0", "Q4_K_M"):
        kind = Type.Q6_K
    elif fmt == "Q4_K_M" and (".attn_v." in name or ".ffn_down" in name):
        layer = int(name.split(".")[1])
        first, last = layers // 8, 7 * layers // 8
        if layer < first or layer >= last or (layer - first) % 3 == 2:
            kind = Type.Q6_K
    if shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
        return kind
    return {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}.get(kind, Type.F16)


def _draw(row: tuple[int, ...], kind: Type, spread: float, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Encoded weights, uint8 [..., row bytes]."""
    out = np.empty(row, np.uint8)
    flat = out.reshape(-1)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    step = max(1, _PIECE // block) * size
    for at in range(0, flat.size, step):
        piece = flat[at : at + step]
        piece[:] = _blocks(piece.size // size, kind, spread, rng).reshape(-1)
    return out


def _blocks(count: int, kind: Type, spread: float, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    if kind not in _SPREADS:
        x = rng.standard_normal((1, count), dtype=np.float32)
        x = x * np.float32(spread) if spread else 1 + np.float32(0.05) * x
        return np.ascontiguousarray(gguf.quants.quantize(x, kind)).view(np.uint8)
    unit, at, minimum = _SPREADS[kind]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size).copy()
    raw[:, at : at + 2] = np.array([spread / unit], np.float16).view(np.uint8)
    if minimum is not None:
        raw[:, 2:4] = np.array([spread / unit * minimum], np.float16).view(np.uint8)
    return raw


def _add_metadata(writer: gguf.GGUFWriter, model: Model, name: str) -> None:
    routed = model.routed
    writer.add_name(name)
    writer.add_block_count(model.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(routed.hidden)
    writer.add_feed_forward_length(model.dense_inter or routed.inter * routed.top_k)
    writer.add_head_count(model.heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(model.vocab)
    writer.add_expert_count(routed.experts)
    writer.add_expert_used_count(routed.top_k)
    writer.add_expert_feed_forward_length(routed.inter)
    if not model.kv_lora:
        writer.add_head_count_kv(model.kv_heads)
        writer.add_key_length(model.head_dim)
        writer.add_value_length(model.head_dim)
        writer.add_rope_dimension_count(model.head_dim)
        return
    writer.add_head_count_kv(1)
    writer.add_q_lora_rank(model.q_lora)
    writer.add_kv_lora_rank(model.kv_lora)
    writer.add_key_length(model.kv_lora + model.rope)
    writer.add_value_length(model.kv_lora)
    writer.add_key_length_mla(model.nope + model.rope)
    writer.add_value_length_mla(model.v_dim)
    writer.add_rope_dimension_count(model.rope)
    writer.add_leading_dense_block_count(model.first_dense)
    writer.add_expert_shared_count(model.shared)
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_weights_norm(False)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)


def _add_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """All bytes in GPT-2's alphabet, then tokens that no text has, then the special ones."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + i) for i in range(256))
    tokens = [chr(byte) if byte in printable else next(others) for byte in range(256)]
    tokens += [f"<|unused_{i}|>" for i in range(vocab - len(tokens) - len(_SPECIALS))]
    kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.UNUSED] * (len(tokens) - 256)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, *_SPECIALS])
    writer.add_token_types([*kinds, *(gguf.TokenType.CONTROL for _ in _SPECIALS)])
    writer.add_token_merges(["\u0120 t"])
    writer.add_bos_token_id(vocab - 3)
    writer.add_eos_token_id(vocab - 1)
    writer.add_add_bos_token(False)


def tiny(name: str) -> Model:
    """A model of the same kind that is written in a moment, for tests."""
    model = MODELS[name]
    few = replace(model.routed, hidden=256, inter=256, experts=8, top_k=2)
    dense = 512 if model.first_dense else 0
    return replace(model, layers=2, heads=4, routed=few, vocab=512, dense_inter=dense)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in MODELS or sys.argv[2] not in FORMATS:
        sys.exit(f"usage: python -m bench.synthetic {'|'.join(MODELS)} {'|'.join(FORMATS)} FOLDER")
    print(make(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
