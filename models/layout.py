"""Where every weight lies once it is packed: the same arithmetic for a store's files and for memory.

Knows sizes and offsets, never bytes of weights. Built from headers alone, so a conversion can tell exactly
what it will write before it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hetero.machine.types import ModelError, ModelIndex, TensorInfo, UsageError
from hetero.models.formats import StoredTensor
from hetero.native import FORMATS, down_offset, expert_bytes, packed_bytes, row_bytes

EXPERT_TARGETS: dict[str, str] = {"q4": "Q4_0", "q8": "Q8_0", "bf16": "BF16"}
EXPERT_PARTS = ("gate", "up", "down")
Formats = tuple[str, str, str]
"""Of gate, up and down of a layer's experts, which share one layout and so cannot differ from expert to expert."""
PAGE = 4096
"""Extents start on pages, so that one direct read fetches one."""
PIECE_SOURCE_BYTES = 8 << 20
"""Source bytes of a dense matrix that are read, hashed and packed at a time; part of the fingerprint's definition."""
TILE_ROWS = 16
DENSE_FILE = "dense.bin"
SMALL_FILE = "small.safetensors"
MTP_FILE = "mtp.bin"


@dataclass(frozen=True, slots=True)
class MatrixSlot:
    """One packed dense matrix: `n` output rows of `k` inputs at `offset` of `dense.bin`, in pieces of whole tiles."""

    name: str
    shape: tuple[int, ...]
    format: str
    n: int
    k: int
    offset: int
    length: int
    rows_per_piece: int

    @property
    def piece(self) -> int:
        """Packed bytes of every piece but the last."""
        return packed_bytes(self.format, self.rows_per_piece, self.k)

    @property
    def n_pieces(self) -> int:
        return -(-self.n // self.rows_per_piece)


@dataclass(frozen=True, slots=True)
class LayerSlot:
    """The routed experts of one layer: `n_experts` extents of `stride` bytes in a file of their own."""

    layer: int
    n_experts: int
    hidden: int
    inter: int
    gate_format: str
    up_format: str
    down_format: str
    stride: int
    down_offset: int

    @property
    def file(self) -> str:
        return f"experts-{self.layer:05d}.bin"

    @property
    def length(self) -> int:
        return self.n_experts * self.stride

    @property
    def formats(self) -> tuple[str, str, str]:
        return (self.gate_format, self.up_format, self.down_format)

    @property
    def names(self) -> tuple[str, str, str]:
        """Canonical names of the three stacked tensors."""
        gate, up, down = (expert_name(self.layer, part) for part in EXPERT_PARTS)
        return (gate, up, down)


@dataclass(frozen=True, slots=True)
class MtpSlot:
    """One tensor of `mtp.bin`: `length` bytes at `offset`, with the source's own name, shape, type and bytes."""

    name: str
    shape: tuple[int, ...]
    format: str
    offset: int
    length: int

    @property
    def key(self) -> str:
        """The tensor's key among the store's checksums; no tensor of the model is called so."""
        return f"{MTP_FILE}:{self.name}"

    @property
    def n_pieces(self) -> int:
        return -(-self.length // PIECE_SOURCE_BYTES)

    def piece(self, index: int) -> tuple[int, int]:
        """Where piece `index` starts within the tensor, and its length."""
        start = index * PIECE_SOURCE_BYTES
        return start, min(PIECE_SOURCE_BYTES, self.length - start)


@dataclass(frozen=True, slots=True)
class Layout:
    """The packed form of a whole model; `small` tensors are kept as float32."""

    dense: tuple[MatrixSlot, ...]
    layers: tuple[LayerSlot, ...]
    small: tuple[TensorInfo, ...]
    mtp: tuple[MtpSlot, ...] = ()

    @property
    def dense_bytes(self) -> int:
        return align(self.dense[-1].offset + self.dense[-1].length) if self.dense else 0

    @property
    def mtp_bytes(self) -> int:
        return self.mtp[-1].offset + self.mtp[-1].length if self.mtp else 0

    @property
    def expert_bytes(self) -> int:
        return sum(slot.length for slot in self.layers)


def align(value: int, unit: int = PAGE) -> int:
    """`value` rounded up to a multiple of `unit`."""
    return -(-value // unit) * unit


def expert_name(layer: int, part: str, kind: Literal["weight", "bias"] = "weight") -> str:
    """Canonical name of the stacked `part` (gate, up, down) of `layer`'s routed experts."""
    return f"model.layers.{layer}.mlp.experts.{part}.{kind}"


def matrix_dims(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor flattened to a matrix."""
    n = 1
    for dim in shape[:-1]:
        n *= dim
    return n, shape[-1]


def rows_per_piece(format: str, k: int) -> int:
    """Rows of about `PIECE_SOURCE_BYTES`, a multiple of the tile's rows."""
    return max(TILE_ROWS, PIECE_SOURCE_BYTES // row_bytes(format, k) // TILE_ROWS * TILE_ROWS)


def make_layout(
    index: ModelIndex,
    experts: Mapping[int, Formats] | None = None,
    dense: str | None = None,
    mtp: Sequence[StoredTensor] = (),
) -> Layout:
    """Lays out every tensor of `index` (and `mtp`, as it lies in the source) in name order.

    `experts` are other formats than the source's for gate, up and down of layers of experts, `dense` one for the dense
    matrices whose rows it can hold. Raises UsageError for experts whose shapes do not allow it.
    """
    tensors = sorted(index.tensors, key=lambda info: info.name)
    return Layout(
        dense=_place_dense((info for info in tensors if info.role == "dense"), dense),
        layers=tuple(_place_layers([info for info in tensors if info.role == "expert"], experts or {})),
        small=tuple(info for info in tensors if info.role == "small"),
        mtp=_place_mtp(mtp),
    )


def _place_mtp(tensors: Iterable[StoredTensor]) -> tuple[MtpSlot, ...]:
    slots: list[MtpSlot] = []
    offset = 0
    for t in sorted((t for t in tensors if t.n_bytes), key=lambda t: t.name):
        slots.append(MtpSlot(t.name, t.shape, t.format, offset, t.n_bytes))
        offset = align(offset + t.n_bytes)
    return tuple(slots)


def _place_dense(tensors: Iterable[TensorInfo], target: str | None) -> tuple[MatrixSlot, ...]:
    slots: list[MatrixSlot] = []
    offset = 0
    for info in tensors:
        n, k = matrix_dims(info.shape)
        format = info.format if target is None or k % FORMATS[target].block_k else target
        length = packed_bytes(format, n, k)
        rows = rows_per_piece(info.format, k)
        slots.append(MatrixSlot(info.name, info.shape, format, n, k, offset, length, rows))
        offset = align(offset + length)
    return tuple(slots)


def _place_layers(tensors: list[TensorInfo], experts: Mapping[int, Formats]) -> list[LayerSlot]:
    by_name = {info.name: info for info in tensors}
    layers = sorted({int(name.split(".")[2]) for name in by_name})
    slots = []
    for layer in layers:
        try:
            gate, up, down = (by_name[expert_name(layer, part)] for part in EXPERT_PARTS)
        except KeyError as missing:
            raise ModelError(f"layer {layer} has routed experts but no {missing.args[0]}") from None
        n_experts, inter, hidden = gate.shape
        if up.shape != gate.shape or down.shape != (n_experts, hidden, inter):
            raise ModelError(f"layer {layer}: expert shapes {gate.shape}, {up.shape}, {down.shape} do not fit together")
        slots.append(_layer_slot(layer, (gate, up, down), experts.get(layer)))
    return slots


def _layer_slot(layer: int, infos: tuple[TensorInfo, TensorInfo, TensorInfo], target: Formats | None) -> LayerSlot:
    n_experts, inter, hidden = infos[0].shape
    gate, up, down = formats = target or (infos[0].format, infos[1].format, infos[2].format)
    for format, k in zip(formats, (hidden, hidden, inter), strict=True):
        if not FORMATS[format].plain and k % FORMATS[format].block_k:
            raise UsageError(
                f"layer {layer}: rows of {k} weights cannot be {format}, which has blocks of {FORMATS[format].block_k}",
                "convert with --experts keep",
            )
    stride = expert_bytes(gate, up, down, hidden, inter)
    return LayerSlot(layer, n_experts, hidden, inter, gate, up, down, stride, down_offset(gate, up, hidden, inter))


def piece_range(slot: MatrixSlot, index: int) -> tuple[int, int]:
    """Offset and length of piece `index` in `dense.bin`; the last one takes the padding up to the next page along."""
    offset = slot.offset + index * slot.piece
    last = index == slot.n_pieces - 1
    return offset, slot.offset + align(slot.length) - offset if last else slot.piece
