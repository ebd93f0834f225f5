"""Latent attention's kv_b, which many files hold as one matrix [H * (nope + v), r], as the two that absorbed attention
multiplies with: k_b [H, r, nope], each head's keys turned, and v_b [H, v, r].

Rows of v_b are rows of the file. Turning keeps plain types as they are, and FP8 where each run of 128 keys shares its
scales; other quantised types have no exact form with rows across their blocks, and their k_b is float32, which holds
every one of their numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetero.machine.types import ModelError
from hetero.models.config import ModelConfig
from hetero.models.families.latent import PLAIN, turned_format
from hetero.models.float_codes import FP8_BLOCK, Fp8Rows
from hetero.models.formats import FORMATS, row_bytes
from hetero.models.matrices import Bytes, Derived, Found, Read
from hetero.native import Kernels, choose_tier
from hetero.native.formats import FORMATS as KERNEL_FORMATS

_JOINT = "kv_b_proj.weight"
_OTHER = "the file and its configuration do not belong together; try another upload of this model"


def split_kv_b(found: Mapping[str, Found], config: ModelConfig, files: tuple[Path, ...]) -> dict[str, Found]:
    """`found` with every joint kv_b taken apart. Raises ModelError where its rows are not those of the heads."""
    out: dict[str, Found] = {}
    for name, tensor in found.items():
        if config.mla is None or not name.endswith(_JOINT):
            out[name] = tensor
            continue
        mla, heads, inner = config.mla, config.n_heads, tensor.matrices[0]
        rows = heads * (mla.nope_dim + mla.v_dim)
        if tensor.shape != (rows, mla.kv_lora_rank):
            found_text = f"tensor {inner.stored.name!r} has shape {list(tensor.shape)}"
            expected = f"[{rows}, {mla.kv_lora_rank}]"
            raise ModelError(f"{files[inner.stored.file]}: {found_text}; expected {expected}", _OTHER)
        keys = TurnedKeys(inner, heads, mla.nope_dim, mla.v_dim)
        stem = name.removesuffix(_JOINT)
        out[stem + "k_b_proj.weight"] = Found((heads, mla.kv_lora_rank, mla.nope_dim), (keys,))
        values = HeadValues(inner, heads, mla.nope_dim, mla.v_dim)
        out[stem + "v_b_proj.weight"] = Found((heads, mla.v_dim, mla.kv_lora_rank), (values,))
    return out


@dataclass(frozen=True, slots=True)
class _OfHeads(Derived):
    """Rows of `inner`, whose heads have `nope` rows of keys and `v` of values."""

    heads: int
    nope: int
    v: int


class HeadValues(_OfHeads):
    """The last `v` rows of each head."""

    __slots__ = ()

    @property
    def n(self) -> int:
        return self.heads * self.v

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        parts = [np.empty((0, row_bytes(self.format, self.k)), np.uint8)]
        for head, first, last in _by_head(start, stop, self.v):
            skipped = head * (self.nope + self.v) + self.nope
            parts.append(self.inner.rows(read, skipped + first, skipped + last))
        return np.concatenate(parts)


class TurnedKeys(_OfHeads):
    """The first `nope` rows of each head as columns: row h * r + i holds value i of head h's keys."""

    __slots__ = ()

    @property
    def format(self) -> str:
        square = isinstance(self.inner, Fp8Rows) and self.inner.scale.height in (0, FP8_BLOCK)
        return turned_format(self.inner.format, self.nope + self.v, square)

    @property
    def n(self) -> int:
        return self.heads * self.inner.k

    @property
    def k(self) -> int:
        return self.nope

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        parts = [np.empty((0, row_bytes(self.format, self.k)), np.uint8)]
        for head, first, last in _by_head(start, stop, self.inner.k):
            above = head * (self.nope + self.v)
            parts.append(self._turned(self.inner.rows(read, above, above + self.nope))[first:last])
        return np.concatenate(parts)

    def _turned(self, rows: Bytes) -> Bytes:
        """Raw rows [nope] of r values as raw rows [r] of nope values."""
        if self.format == "FP8_E4M3":
            return _turned_fp8(rows, self.inner.k)
        if self.inner.format not in PLAIN:
            rows = _kernels().dequantize(self.inner.format, rows, self.nope, self.inner.k).view(np.uint8)
        item = FORMATS[self.format].n_bytes
        values = np.ascontiguousarray(rows).view(f"u{item}").reshape(self.nope, self.inner.k)
        return np.ascontiguousarray(values.T).view(np.uint8)


def _by_head(start: int, stop: int, each: int) -> list[tuple[int, int, int]]:
    """The rows [start, stop) of heads with `each` rows: (head, first, last) of each head's own."""
    heads = range(start // each, -(-stop // each))
    return [(head, max(0, start - head * each), min(each, stop - head * each)) for head in heads]


def _turned_fp8(rows: Bytes, width: int) -> Bytes:
    count, size = len(rows), KERNEL_FORMATS["FP8_E4M3"].block_bytes
    blocks = rows.reshape(count, -1, size)
    codes, groups = blocks[:, :, 4:].reshape(count, -1)[:, :width], -(-count // FP8_BLOCK)
    out = np.zeros((width, groups, size), np.uint8)
    out[:, :, :4] = np.repeat(blocks[::FP8_BLOCK, :, :4].swapaxes(0, 1), FP8_BLOCK, axis=0)[:width]
    padded = np.zeros((width, groups * FP8_BLOCK), np.uint8)
    padded[:, :count] = codes.T
    out[:, :, 4:] = padded.reshape(width, groups, FP8_BLOCK)
    return out.reshape(width, -1)


@functools.cache
def _kernels() -> Kernels:
    return Kernels(choose_tier(None))
