"""What one step of a model moves and computes, counted from its tensors: bytes and products per part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hetero.machine.types import ModelError, ModelIndex, TensorInfo, UsageError
from hetero.native.formats import expert_bytes, packed_bytes
from hetero.native.widths import PLAIN, bits, source_bytes

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Weights:
    """Matrices of one number format: parameters, and their packed bytes."""

    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """A model by what it costs. Formats are keys; experts are those of all layers, dense what every token reads."""

    experts: Mapping[str, Weights]
    dense: Mapping[str, Weights]
    head: Mapping[str, Weights]
    """The head, or the embedding that serves as one: read for each token that is sampled."""
    float32: int
    """Bytes of routers and other small tensors, read as float32 by every token."""
    share: float
    """Of the experts, those that one token uses."""
    expert_layers: int
    latent_layers: int
    """Layers with latent attention, whose token passes through more and smaller matrices."""
    query_width: int
    """Products of one token's attention with one token of context, over all layers."""
    index_width: int
    """Products of one token's indexers with one token of context, over all layers."""


def with_formats(index: ModelIndex, experts: str | None, dense: str | None) -> ModelIndex:
    """The model as if its experts or dense matrices were in another format; UsageError where widths forbid it."""
    wanted = {"expert": experts, "dense": dense}
    tensors = tuple(_in_format(info, wanted.get(info.role)) for info in index.tensors)
    return index if tensors == index.tensors else replace(index, tensors=tensors)


def _in_format(info: TensorInfo, fmt: str | None) -> TensorInfo:
    if fmt is None or fmt == info.format:
        return info
    try:
        packed_bytes(fmt, 1, info.shape[-1])
    except ValueError:
        if info.role == "dense":  # as converters do: what cannot be quantised stays
            return info
        raise UsageError(
            f"{fmt} cannot hold experts whose rows have {info.shape[-1]} inputs", "q4 and q8 need a multiple of 32"
        ) from None
    return replace(info, format=fmt, n_bytes=source_bytes(fmt, info.shape))


def expert_layers(index: ModelIndex) -> list[tuple[TensorInfo, TensorInfo, TensorInfo]]:
    """Gate, up and down of each layer with routed experts. Raises ModelError for a gate without companions."""
    by_name = {info.name: info for info in index.tensors if info.role == "expert"}
    layers = []
    for name, gate in by_name.items():
        if not name.endswith(".gate.weight"):
            continue
        base = name.removesuffix("gate.weight")
        try:
            layers.append((gate, by_name[base + "up.weight"], by_name[base + "down.weight"]))
        except KeyError as error:
            raise ModelError(f"{index.name}: {name} has no companion {error}") from None
    return layers


def one_expert_bytes(layer: tuple[TensorInfo, TensorInfo, TensorInfo]) -> int:
    """Packed bytes of each expert of a layer."""
    gate, up, down = layer
    _, inter, hidden = gate.shape
    return expert_bytes(gate.format, up.format, down.format, hidden, inter)


def traffic(index: ModelIndex) -> Traffic:
    """Counts what the model's tensors cost a step."""
    experts: dict[str, Weights] = {}
    layers = expert_layers(index)
    for layer in layers:
        whole = layer[0].shape[0] * one_expert_bytes(layer)
        values = sum(math.prod(info.shape) for info in layer)
        _add(experts, max((info.format for info in layer), key=bits), values, whole)
    dense: dict[str, Weights] = {}
    head: dict[str, Weights] = {}
    read = [info for info in index.tensors if info.role == "dense" and _is_read(index, info)]
    for info in read:
        n, k = math.prod(info.shape[:-1]), info.shape[-1]
        part = head if info.name in (EMBEDDING, HEAD) else dense
        _add(part, info.format, n * k, packed_bytes(info.format, n, k))
    small = sum(math.prod(info.shape) for info in index.tensors if info.role == "small")
    return Traffic(
        experts=experts,
        dense=dense,
        head=head,
        float32=4 * small,
        share=index.top_k / index.n_experts if index.n_experts else 0.0,
        expert_layers=len(layers),
        latent_layers=sum(info.name.endswith(".kv_a_proj_with_mqa.weight") for info in read),
        query_width=_query_width(index),
        index_width=sum(info.shape[0] for info in index.tensors if info.name.endswith(".indexer.wq_b.weight")),
    )


def attention_products(index: ModelIndex, made: Traffic, past: int, tokens: int) -> int:
    """Products of the attention and the indexers of `tokens` new tokens after `past`."""
    seen, scored = index.pairs(past, tokens)
    return made.query_width * seen + made.index_width * scored


def active_parameters(index: ModelIndex) -> float:
    """Parameters that one token uses."""
    made = traffic(index)
    routed = sum(w.parameters for w in made.experts.values()) * made.share
    whole = sum(w.parameters for part in (made.dense, made.head) for w in part.values())
    return routed + whole + made.float32 / 4


def total_parameters(index: ModelIndex) -> int:
    """All parameters."""
    return sum(math.prod(info.shape) for info in index.tensors)


def is_plain(fmt: str) -> bool:
    """Whether a format's products are floating-point ones."""
    return fmt in PLAIN or fmt == "FP8_E4M3"


def _add(table: dict[str, Weights], fmt: str, parameters: int, n_bytes: int) -> None:
    before = table.get(fmt, Weights(0, 0))
    table[fmt] = Weights(before.parameters + parameters, before.bytes + n_bytes)


def _is_read(index: ModelIndex, info: TensorInfo) -> bool:
    """Of an embedding, one row is read; a tied one is read whole as the head."""
    return info.name != EMBEDDING or all(other.name != HEAD for other in index.tensors)


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Of one layer with latent attention: heads, latent rank, turned values, and the widths of queries and values."""

    heads: int
    rank: int
    rope: int
    queries: int
    values: int


def latent_sizes(shapes: Mapping[str, tuple[int, ...]]) -> LatentSizes | None:
    """From the shapes of a layer's attention by name; None for attention of another kind. Heads follow from widths."""
    latent = shapes.get("kv_a_proj_with_mqa.weight")
    if latent is None:
        return None
    split = shapes.get("k_b_proj.weight")
    queries = (shapes.get("q_b_proj.weight") or shapes["q_proj.weight"])[0]
    values = shapes["o_proj.weight"][1]
    rank = split[1] if split else latent[0]
    rope = latent[0] - rank
    heads = split[0] if split else (queries + values) // max(1, rope)
    return LatentSizes(heads, rank, rope, queries, values)


def _query_width(index: ModelIndex) -> int:
    """Multiply-adds of one query token with one cached token, over all layers.

    Grouped attention: widths of the queries and of the heads' outputs. Latent attention works on the latent, so its
    heads meet rank + rope values for the scores and rank for the output.
    """
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for info in index.tensors:
        layer, attention, name = info.name.partition(".self_attn.")
        if attention:
            layers.setdefault(layer, {})[name] = info.shape
    total = 0
    for shapes in layers.values():
        sizes = latent_sizes(shapes)
        if sizes is not None:
            total += sizes.heads * (2 * sizes.rank + sizes.rope)
        elif "o_proj.weight" in shapes:
            total += 2 * shapes["o_proj.weight"][1]
    return total
