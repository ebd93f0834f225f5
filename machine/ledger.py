"""The bytes that each part of a model needs, counted from headers alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hetero.machine.traffic import expert_layers, one_expert_bytes
from hetero.machine.types import STATE_SLOTS, LedgerLine, ModelIndex, Placement, TensorInfo
from hetero.machine.working import live_values, scratch_bytes
from hetero.native.formats import packed_bytes

KV_BYTES = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "q8": 34 / 32}
"""Of a value, its share of a scale included."""
PAGE_TOKENS = 64
"""Tokens of one page of the KV cache; caches are whole pages."""
INDEX_PRODUCTS = 1 << 24
"""Products of an indexer's queries and keys at a time, float32, over at most `INDEX_KEYS` keys (`engine.selection`)."""
INDEX_KEYS = 8192
TORCH_BYTES = 258 << 20
"""What the interpreter, torch and the other libraries take (x86_64, measured: 256 to 262 MiB)."""
TORCH_CUDA_BYTES = 736 << 20
"""The same with the build of torch that brings CUDA's libraries (measured without a GPU: 730 to 740 MiB)."""
TEXT_BYTES = 800
"""Of the tokenizer and what reading its file left, for each token of the vocabulary (measured: 32768 tokens of BPE)."""
BANK_BYTES = 1 << 20
"""Half a huge page, for what each layer's experts do not fill of the last one."""
CUDA_CONTEXT_BYTES = 500 << 20
GAPS_SHARE = 0.55
GAPS_BYTES = 15 << 20
"""What the heap leaves free between the tensors of a step: a share of them, but not more, as it takes no piece of
32 MiB (measured over all families: 0 to 17 MB)."""
TILE_ROWS = 256
"""Routes of an expert that a worker multiplies at a time by AMX tiles."""
ATTENTION_BYTES = 4 << 20
"""Tiles of the native attention of all threads, whatever the context."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What besides the model decides the bytes: placement, context and types."""

    placement: Placement
    context: int
    kv_dtype: str
    prefill_chunk: int
    packed_on_gpu: bool = False
    """Dense matrices keep their format on a GPU, instead of being unpacked to bf16."""
    torch_cuda: bool = False
    """Whether torch's libraries are those with CUDA, which any placement on a GPU needs."""
    tile_workers: int = 0
    """Threads whose kernels use AMX tiles; 0: no such kernels."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A model with what its ledger needs of its tensors, which neither context nor devices change."""

    index: ModelIndex
    experts: int
    """Packed bytes of all routed experts, each padded to its extent; all of them, not only the active ones."""
    dense: int
    """Dense matrices in their source's format."""
    unpacked: int
    """The same as on a GPU: bf16, or float32 if all are."""
    small: int
    live: int
    """Bytes of the tensors that live at once in a chunk's step, for each of its tokens."""
    scratch: int
    """Of the native kernels, likewise."""
    index_heads: int
    attention_layers: int
    expert_layers: int


def count(index: ModelIndex) -> Counted:
    """Goes through a model's tensors once; ModelError for experts whose parts do not belong together."""
    dense = list(_of_role(index, "dense"))
    layers = sum(info.name.endswith(".self_attn.o_proj.weight") for info in dense) or index.n_layers
    weights = experts_bytes(index), _packed_bytes(dense), _unpacked_bytes(dense), small_bytes(index)
    heads = max((i.shape[0] for i in dense if i.name.endswith(".indexer.weights_proj.weight")), default=0)
    working = 4 * live_values(index), scratch_bytes(index)
    return Counted(index, *weights, *working, heads, layers, len(expert_layers(index)))


def make_ledger(model: Counted, shape: Shape) -> tuple[LedgerLine, ...]:
    """One line per part and device."""
    index, dense = model.index, shape.placement.dense
    framework = TORCH_CUDA_BYTES if shape.torch_cuda or dense != "cpu" else TORCH_BYTES
    framework += TEXT_BYTES * index.vocab_size + BANK_BYTES * model.expert_layers
    unpacked = dense != "cpu" and not shape.packed_on_gpu
    lines = [
        LedgerLine(shape.placement.experts, "experts", model.experts, "file"),
        LedgerLine(dense, "dense", model.unpacked if unpacked else model.dense, "file"),
        LedgerLine(dense, "small", model.small, "file"),
        LedgerLine(dense, "kv cache", kv_bytes(index, shape.context, shape.kv_dtype), "file"),
        LedgerLine(dense, "activations", activation_bytes(model, shape.prefill_chunk), "assumed"),
        LedgerLine(dense, "attention", attention_bytes(model, shape), "assumed"),
        LedgerLine("cpu", "framework", framework, "assumed"),
    ]
    if states := STATE_SLOTS * index.recurrent_bytes:
        lines.append(LedgerLine(dense, "recurrent states", states, "file"))
    if shape.tile_workers and model.experts:
        lines.append(LedgerLine("cpu", "tile rows", tile_bytes(index, shape), "file"))
    if unpacked:
        lines.append(LedgerLine("cpu", "dense, packed", model.dense, "file"))
    if dense != "cpu":
        lines.append(LedgerLine(dense, "cuda context", CUDA_CONTEXT_BYTES, "assumed"))
    return tuple(lines)


def experts_bytes(index: ModelIndex) -> int:
    """Packed bytes of all routed experts, each padded to its extent; all of them, not only the active ones."""
    return sum(layer[0].shape[0] * one_expert_bytes(layer) for layer in expert_layers(index))


def _packed_bytes(dense: Iterable[TensorInfo]) -> int:
    """Packed in their source's format. A tied head has no tensor of its own, so the embedding is counted once."""
    return sum(packed_bytes(info.format, math.prod(info.shape[:-1]), info.shape[-1]) for info in dense)


def _unpacked_bytes(dense: Collection[TensorInfo]) -> int:
    size = 4 if all(info.format == "F32" for info in dense) else 2
    return size * sum(math.prod(info.shape) for info in dense)


def small_bytes(index: ModelIndex) -> int:
    """Norms, biases and routers, held as float32."""
    return sum(4 * math.prod(info.shape) for info in _of_role(index, "small"))


def kv_bytes(index: ModelIndex, context: int, kv_dtype: str) -> int:
    """The KV cache of one request of `context` tokens, in whole pages, with its windows."""
    pages = -(-context // PAGE_TOKENS)
    fixed = math.ceil(index.kv_fixed_elements * KV_BYTES[kv_dtype])
    return pages * PAGE_TOKENS * kv_token_bytes(index, kv_dtype) + fixed


def kv_token_bytes(index: ModelIndex, kv_dtype: str) -> int:
    """What one token takes in the KV cache."""
    padding = index.kv_padding if kv_dtype == "q8" else 0
    return math.ceil((index.kv_elements_per_token + padding) * KV_BYTES[kv_dtype])


def activation_bytes(model: Counted, chunk: int) -> int:
    """Working memory of one prefill chunk of `chunk` tokens, with the heap's gaps, and a row of logits."""
    live = chunk * model.live
    return live + min(GAPS_BYTES, int(GAPS_SHARE * live)) + chunk * model.scratch + 4 * model.index.vocab_size


def tile_bytes(index: ModelIndex, shape: Shape) -> int:
    """What AMX tiles read of a chunk: each token's and each route's row, and each worker's copies of an expert's."""
    gates = [info for info in _of_role(index, "expert") if "down" not in info.name]
    row = max(tile_row_bytes(info.format, index.hidden_size) for info in gates)
    inter = max(info.shape[1] for info in gates)
    routes = shape.prefill_chunk * index.top_k
    gathered = shape.tile_workers * min(TILE_ROWS, routes)
    return (shape.prefill_chunk + gathered) * row + routes * tile_row_bytes("BF16", inter)


def tile_row_bytes(format: str, k: int) -> int:
    """One row of k activations in bf16, and once more in int8 with scales per 128 for formats with int8 tiles."""
    bf16 = 2 * (-(-k // 32) * 32 + 32)
    kind, *group = format.split("_")
    if kind not in ("I4", "U4", "I8") or group[0] == "32":
        return bf16
    groups = -(-k // 128)
    return bf16 + -(-(128 + 16) * groups // 64) * 64 + 64


def attention_bytes(model: Counted, shape: Shape) -> int:
    """A chunk's attention over a full cache.

    Indexers hold each token's choice (8 bytes, and as many for where it lies) and, while no layer's other tensors live,
    a block of products. The CPU's kernel reads the cache as it lies. A GPU gathers one layer's keys and values (2 bytes
    a value), makes them float32, and has the causal mask as bool and as float32.
    """
    index, chunk, context = model.index, shape.prefill_chunk, shape.context
    pages = -(-context // PAGE_TOKENS)
    chosen = 0
    if 0 < index.attended < context:
        products = 4 * min(INDEX_PRODUCTS, chunk * model.index_heads * min(context, INDEX_KEYS))
        chosen = 16 * index.attended * chunk + max(0, products - activation_bytes(model, chunk))
    if shape.placement.dense == "cpu":
        return ATTENTION_BYTES + chosen
    layer = 6 * index.kv_elements_per_token // model.attention_layers
    return pages * PAGE_TOKENS * (layer + 5 * min(chunk, context)) + chosen


def all_f32(index: ModelIndex) -> bool:
    """Whether every matrix is float32, so that the run can be exact."""
    return all(info.format == "F32" for info in index.tensors if info.role != "small")


def _of_role(index: ModelIndex, role: str) -> Iterable[TensorInfo]:
    return (info for info in index.tensors if info.role == role)
