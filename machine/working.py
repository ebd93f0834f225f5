"""Working memory of a chunk's step, counted from the tensors of a layer that live at once."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.machine.traffic import latent_sizes
from hetero.machine.types import ModelIndex
from hetero.native.formats import FORMATS

_BLOCK = 64
"""Tokens whose updates a delta net solves together (`hetero.models.delta`)."""
Shapes = Mapping[str, tuple[int, ...]]


def live_values(index: ModelIndex) -> int:
    """float32 values for each token of a chunk, of the layer that needs most.

    Two hidden vectors, the residual and its norm, outlive a layer's parts; attention and MLP follow each other.
    """
    most = 0
    for shapes in _layers(index):
        parts = [_latent(shapes), _grouped(shapes), _delta(index, shapes), _mlp(index, shapes)]
        most = max(most, *parts)
    return 2 * index.hidden_size + most


def scratch_bytes(index: ModelIndex) -> int:
    """Of the native kernels, for each token of a chunk: what they make of the activations of the widest product.

    Experts: each route's gated vector, as float32 or with 1.5 bytes a value, two numbers for sorting. Products with
    quantised weights: codes and scales of their inputs, 1.5 bytes a value.
    """
    experts = {info.name.rsplit(".", 2)[1]: info for info in index.tensors if info.role == "expert"}
    routed = 0.0
    if "down" in experts:
        _, hidden, inter = experts["down"].shape
        routed = index.top_k * (8 + _codes(experts["down"].format, inter, 4.0)) + _codes(
            experts["gate"].format, hidden, 0.0
        )
    dense = (_codes(info.format, info.shape[-1], 0.0) for info in index.tensors if info.role == "dense")
    return int(max(routed, *dense, 0.0))


def _codes(fmt: str, inputs: int, plain: float) -> float:
    return plain * inputs if FORMATS[fmt].plain else 1.5 * inputs + 64


def _layers(index: ModelIndex) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of each layer's tensors by the rest of their names."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for info in index.tensors:
        parts = info.name.split(".", 3)
        if len(parts) == 4 and parts[1] == "layers":
            found.setdefault(parts[2], {})[parts[3]] = info.shape
    return list(found.values())


def _latent(shapes: Shapes) -> int:
    """Queries, their turned part, those in the latent space, what is attended, the same by head, values."""
    sizes = latent_sizes({n.removeprefix("self_attn."): s for n, s in shapes.items()})
    if sizes is None:
        return 0
    low = shapes.get("self_attn.q_a_proj.weight", (0,))[0]
    wide = sizes.queries + sizes.heads * (3 * sizes.rank + 2 * sizes.rope) + sizes.values
    return wide + 2 * (sizes.rank + sizes.rope) + sizes.rank + low


def _grouped(shapes: Shapes) -> int:
    """Queries, keys, values and the outcome; of a gated one also q by itself, the gate and the product."""
    if "self_attn.o_proj.weight" not in shapes or "self_attn.q_proj.weight" not in shapes:
        return 0
    out = shapes["self_attn.o_proj.weight"][1]
    rows = [shapes.get(f"self_attn.{part}_proj.weight", (0,))[0] for part in "qkv"]
    return sum(rows) + (4 if rows[0] > out else 1) * out


def _delta(index: ModelIndex, shapes: Shapes) -> int:
    """The inputs before and after the convolution, the gate, and per value head what blocks of tokens need."""
    if "linear_attn.conv1d.weight" not in shapes:
        return 0
    width, _, taps = shapes["linear_attn.conv1d.weight"]
    heads, values = shapes["linear_attn.dt_bias"][0], shapes["linear_attn.out_proj.weight"][1]
    layers = sum(info.name.endswith(".linear_attn.dt_bias") for info in index.tensors)
    keys = (index.recurrent_bytes // 4 // layers - width * (taps - 1)) // values
    return 2 * width + values + heads * (3 * _BLOCK + 7 * keys) + 4 * values


def _mlp(index: ModelIndex, shapes: Shapes) -> int:
    """Gate, up, their product and the outcome; of experts the router's scores and one more outcome."""
    widest = max((shape[0] for name, shape in shapes.items() if name.endswith(".gate_proj.weight")), default=0)
    routed = index.n_experts + index.hidden_size if index.n_experts else 0
    return 3 * widest + index.hidden_size + routed
