"""The native kernels as Python calls on numpy arrays. The pointers stay here; lengths are checked here and in C."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.machine.types import HardwareError
from hetero.native.formats import down_offset, expert_bytes, format_info, packed_bytes, row_bytes
from hetero.native.library import MESSAGE_BYTES, ffi, open_library

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Listener = Callable[[str, tuple[Any, ...]], None]


def _array(name: str, array: npt.NDArray[Any], dtype: Any, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:
    """`array` itself, after a check of type, layout and shape; ValueError otherwise."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        kind = "a contiguous" if array.flags.c_contiguous else "a scattered"
        raise ValueError(f"{name}: {kind} {array.dtype} array, expected a contiguous one of {np.dtype(dtype).name}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name}: shape {list(array.shape)}, expected {list(shape)}")
    return array


def _target(name: str, array: npt.NDArray[Any], dtype: Any, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:
    """As `_array`, for one that is written to."""
    if not array.flags.writeable:
        raise ValueError(f"{name}: a read-only array, expected one to write to")
    return _array(name, array, dtype, shape)


def _pointer(kind: str, array: npt.NDArray[Any]) -> Any:
    """A C pointer into a contiguous `array`; the caller keeps the array alive during the call."""
    return ffi.from_buffer(kind, array)


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix in tiles: `n` output rows of `k` inputs; `data` is uint8 [packed_bytes], 64-byte aligned.

    `shape` is the tensor's own shape; n is the product of all its dimensions but the last, which is k.
    """

    format: str
    n: int
    k: int
    data: Bytes
    shape: tuple[int, ...]
    native: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _array("packed matrix", self.data, np.uint8, (packed_bytes(self.format, self.n, self.k),))
        code = format_info(self.format).code
        pointer = _pointer("uint8_t[]", self.data)
        native = ffi.new("hetero_matrix *", [code, self.n, self.k, pointer, self.data.nbytes])
        object.__setattr__(self, "native", native)


ACTIVATIONS = ("silu", "gelu_tanh", "gpt_oss", "clamped_silu")
"""How an expert joins gate and up, in the order of their numbers in hetero.h."""


@dataclass(frozen=True)
class ExpertBank:
    """All experts of a layer: `data` is uint8 [n_experts * stride]; gate/up are [inter, hidden], down the reverse.

    `gate_bias` and `up_bias` are float32 [n_experts, inter], `down_bias` is [n_experts, hidden]; None: none.
    """

    n_experts: int
    hidden: int
    inter: int
    gate_format: str
    up_format: str
    down_format: str
    data: Bytes
    stride: int
    down_offset: int
    activation: str = "silu"
    gate_bias: Floats | None = None
    up_bias: Floats | None = None
    down_bias: Floats | None = None
    native: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _array("expert bank", self.data, np.uint8, (self.n_experts * self.stride,))
        native = _bank(self.gate_format, self.up_format, self.down_format, self.hidden, self.inter)
        if (self.stride, self.down_offset) != (native.stride, native.down_offset):
            raise ValueError(
                f"expert bank: stride {self.stride} and down at {self.down_offset}, "
                f"expected {native.stride} and {native.down_offset}"
            )
        native.n_experts = self.n_experts
        native.data = _pointer("uint8_t[]", self.data)
        native.bytes = self.data.nbytes
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {self.activation}: expected one of {', '.join(ACTIVATIONS)}")
        native.activation = ACTIVATIONS.index(self.activation)
        for part, width in (("gate", self.inter), ("up", self.inter), ("down", self.hidden)):
            bias = getattr(self, f"{part}_bias")
            if bias is not None:
                _array(f"{part} bias", bias, np.float32, (self.n_experts, width))
                setattr(native, f"{part}_bias", _pointer("float[]", bias))
                setattr(native, f"{part}_bias_bytes", bias.nbytes)
        object.__setattr__(self, "native", native)


def _bank(gate_fmt: str, up_fmt: str, down_fmt: str, hidden: int, inter: int) -> Any:
    """A `hetero_bank *` of one expert and no data."""
    codes = [format_info(fmt).code for fmt in (gate_fmt, up_fmt, down_fmt)]
    stride = expert_bytes(gate_fmt, up_fmt, down_fmt, hidden, inter)
    offset = down_offset(gate_fmt, up_fmt, hidden, inter)
    return ffi.new("hetero_bank *", [*codes, 1, hidden, inter, stride, offset, ffi.NULL, 0])


class Kernels:
    """One loaded tier library. Methods raise ValueError for wrong arguments and HardwareError for want of memory."""

    def __init__(self, tier: str) -> None:
        try:
            self._library = open_library(tier)
        except OSError as error:
            raise HardwareError(f"the {tier} kernels do not load: {error}", "run pip install again") from error
        self.tier = tier
        self._local = threading.local()  # the lock of Python is free during a call, so each thread has its message
        self._listener: Listener | None = None

    def call(self, function: str, *arguments: Any) -> None:
        """Call a C function that ends in (message, message_bytes) and raise what its code says."""
        try:
            message = self._local.message
        except AttributeError:
            message = self._local.message = ffi.new("char[]", MESSAGE_BYTES)
        code = getattr(self._library, function)(*arguments, message, MESSAGE_BYTES)
        if code == 0:
            if self._listener is not None:
                self._listener(function, arguments)
            return
        text = ffi.string(message).decode("ascii", "replace")
        if code == self._library.HETERO_BAD_ARGUMENT:
            raise ValueError(text)
        raise HardwareError(text, "close other programs, or choose a smaller model or context")

    @contextlib.contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """While it lasts, `listener` is told of every call that has been made, and of its arguments."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    def call_code(self, function: str) -> int | None:
        """The number that stands for a function in a list of calls; None: it cannot be in one."""
        return getattr(self._library, f"HETERO_CALL_{function.removeprefix('hetero_').upper()}", None)

    def pack(self, fmt: str, rows: Bytes, n: int, k: int, out: Bytes | None = None) -> Bytes:
        """Raw rows, uint8 [n, row_bytes] (or flat), to tiles, uint8 [packed_bytes]; into `out` where given."""
        size = packed_bytes(fmt, n, k)
        tiles = np.empty(size, np.uint8) if out is None else _target("out", out, np.uint8, (size,))
        rows = _array("rows", rows, np.uint8)
        self._move("hetero_pack", fmt, n, k, rows, tiles)
        return tiles

    def unpack(self, fmt: str, packed: Bytes, n: int, k: int) -> Bytes:
        """Tiles back to the very raw rows that were packed, uint8 [n, row_bytes]."""
        rows = np.zeros((n, row_bytes(fmt, k)), np.uint8)
        self._move("hetero_unpack", fmt, n, k, _array("packed", packed, np.uint8), rows)
        return rows

    def _move(self, function: str, fmt: str, n: int, k: int, source: npt.NDArray[Any], to: npt.NDArray[Any]) -> None:
        """Calls one of the functions of the form (format, n, k, source, bytes, target, bytes)."""
        kinds = {np.dtype(np.uint8): "uint8_t[]", np.dtype(np.float32): "float[]"}
        arguments = (_pointer(kinds[source.dtype], source), source.nbytes, _pointer(kinds[to.dtype], to), to.nbytes)
        self.call(function, format_info(fmt).code, n, k, *arguments)

    def pack_expert(
        self,
        gate_rows: Bytes,
        gate_fmt: str,
        up_rows: Bytes,
        up_fmt: str,
        down_rows: Bytes,
        down_fmt: str,
        hidden: int,
        inter: int,
        out: Bytes,
    ) -> None:
        """One expert's raw rows into `out`, uint8 [expert_bytes]: gate and up tiles in turn, then down tiles."""
        bank = _bank(gate_fmt, up_fmt, down_fmt, hidden, inter)
        arguments: list[Any] = []
        _target("out", out, np.uint8)
        for name, array in (("gate", gate_rows), ("up", up_rows), ("down", down_rows), ("out", out)):
            arguments += [_pointer("uint8_t[]", _array(name, array, np.uint8)), array.nbytes]
        self.call("hetero_pack_expert", bank, *arguments)

    def unpack_expert(
        self, packed: Bytes, gate_fmt: str, up_fmt: str, down_fmt: str, hidden: int, inter: int
    ) -> tuple[Bytes, Bytes, Bytes]:
        """The raw rows of gate, up and down that were packed into `packed`."""
        bank = _bank(gate_fmt, up_fmt, down_fmt, hidden, inter)
        gate = np.zeros((inter, row_bytes(gate_fmt, hidden)), np.uint8)
        up = np.zeros((inter, row_bytes(up_fmt, hidden)), np.uint8)
        down = np.zeros((hidden, row_bytes(down_fmt, inter)), np.uint8)
        arguments: list[Any] = []
        for array in (_array("packed", packed, np.uint8), gate, up, down):
            arguments += [_pointer("uint8_t[]", array), array.nbytes]
        self.call("hetero_unpack_expert", bank, *arguments)
        return gate, up, down

    def quantize(self, target: str, x: Floats, importance: Floats | None = None) -> Bytes:
        """float32 [n, k] to raw rows of F32, F16, BF16, Q8_0 or Q4_0 (least squared error), uint8 [n, row_bytes].

        `importance` float32 [k], all above 0, says how much the squared error of each input counts.
        """
        n, k = _array("x", x, np.float32).shape
        rows = np.zeros((n, row_bytes(target, k)), np.uint8)
        if n:
            weights: list[Any] = [ffi.NULL, 0]
            if importance is not None:
                weights = [_pointer("float[]", _array("importance", importance, np.float32, (k,))), importance.nbytes]
            source, to = (_pointer("float[]", x), x.nbytes), (_pointer("uint8_t[]", rows), rows.nbytes)
            self.call("hetero_quantize", format_info(target).code, n, k, *source, *weights, *to)
        return rows

    def dequantize(self, fmt: str, rows: Bytes, n: int, k: int) -> Floats:
        """Raw rows to float32 [n, k], to the bit as ggml's reference does it."""
        out = np.empty((n, k), np.float32)
        self._move("hetero_dequantize", fmt, n, k, _array("rows", rows, np.uint8), out)
        return out

    def dequantize_packed(self, matrix: PackedMatrix) -> Floats:
        """A packed matrix to float32 [n, k]."""
        return self.gather_rows(matrix, np.arange(matrix.n))

    def gather_rows(self, matrix: PackedMatrix, ids: Ints) -> Floats:
        """Rows `ids`, integer [T], of a packed matrix as float32 [T, k]."""
        wide = np.ascontiguousarray(ids, dtype=np.int64)
        out = np.empty((wide.size, matrix.k), np.float32)
        pointers = (_pointer("int64_t[]", wide), wide.size, _pointer("float[]", out), out.nbytes)
        self.call("hetero_gather_rows", matrix.native, *pointers)
        return out

    def check_scales(self, fmt: str, rows: Bytes, n: int, k: int) -> int:
        """Index (row-major) of the first block with a scale or plain value that is NaN or infinite, or -1."""
        block = ffi.new("int64_t *")
        rows = _array("rows", rows, np.uint8)
        pointer = _pointer("uint8_t[]", rows)
        self.call("hetero_check_scales", format_info(fmt).code, n, k, pointer, rows.nbytes, block)
        return int(block[0])

    def linear(self, pool: Pool, matrix: PackedMatrix, x: Floats, out: Floats, bias: Floats | None = None) -> None:
        """out[T, n] = x[T, k] @ matrix.T (+ bias[n]); `out` is overwritten."""
        biases = None if bias is None else [_array("bias", bias, np.float32, (matrix.n,))]
        self._linear(pool, [matrix], x, [out], biases)

    def linear_many(self, pool: Pool, matrices: Sequence[PackedMatrix], x: Floats, outs: Sequence[Floats]) -> None:
        """Several matrices on the same x[T, k], which is quantised once, in one fork-join: outs[i][T, n_i]."""
        self._linear(pool, matrices, x, outs, None)

    def _linear(
        self,
        pool: Pool,
        matrices: Sequence[PackedMatrix],
        x: Floats,
        outs: Sequence[Floats],
        biases: Sequence[Floats] | None,
    ) -> None:
        count = len(matrices)
        if not count or len(outs) != count:
            raise ValueError(f"linear: {count} matrices and {len(outs)} outputs")
        tokens = x.shape[0]
        _array("x", x, np.float32, (tokens, matrices[0].k))
        for matrix, out in zip(matrices, outs, strict=True):
            _target("out", out, np.float32, (tokens, matrix.n))
        self.call(
            "hetero_linear",
            pool.native,
            [matrix.native for matrix in matrices],
            count,
            _pointer("float[]", x),
            x.nbytes,
            tokens,
            ffi.NULL if biases is None else [_pointer("float[]", bias) for bias in biases],
            ffi.NULL if biases is None else [bias.nbytes for bias in biases],
            [_pointer("float[]", out) for out in outs],
            [out.nbytes for out in outs],
        )

    def moe(
        self, pool: Pool, bank: ExpertBank, x: Floats, ids: npt.NDArray[np.int32], weights: Floats, out: Floats
    ) -> None:
        """out[T, hidden] = sum over slots of weights[T, top_k] * expert(ids[T, top_k])(x[T, hidden]).

        An expert is down(activation(gate x, up x)); id -1 means no expert in that slot. `out` is overwritten.
        """
        tokens, top_k = ids.shape
        _array("ids", ids, np.int32)
        _array("x", x, np.float32, (tokens, bank.hidden))
        _array("weights", weights, np.float32, (tokens, top_k))
        _target("out", out, np.float32, (tokens, bank.hidden))
        self.call(
            "hetero_moe",
            pool.native,
            bank.native,
            _pointer("float[]", x),
            x.nbytes,
            tokens,
            _pointer("int32_t[]", ids),
            ids.nbytes,
            _pointer("float[]", weights),
            weights.nbytes,
            top_k,
            _pointer("float[]", out),
            out.nbytes,
        )

    def place(self, bank: ExpertBank, nodes: Sequence[int]) -> int:
        """Before `bank.data` is written: keep part i of each expert's rows on the system's memory node nodes[i].

        Returns the bytes that lie there; where the system refuses, pages lie where they are first written.
        """
        placed = ffi.new("int64_t *")
        self.call("hetero_bank_place", bank.native, list(nodes), len(nodes), placed)
        return int(placed[0])

    def _create_pool(self, cpus: Sequence[int], nodes: Sequence[int], pinned: bool) -> Any:
        handle = ffi.new("hetero_pool **")
        self.call("hetero_pool_create", list(cpus), list(nodes), len(cpus), handle)
        if pinned:
            self._library.hetero_pool_pin_kernels(handle[0])
        return ffi.gc(handle[0], self._library.hetero_pool_destroy)


class Pool:
    """Persistent threads for one tier's kernels: the caller is worker 0, worker i is bound to cpus[i].

    `nodes[i]` is the memory node of cpus[i], counted from 0 (empty: one node): each owns a part of every expert's rows.
    With `deterministic` a format has one kernel, whatever the number of tokens, as with HETERO_DETERMINISTIC=1. Use it
    with the Kernels it was made for. Asleep when idle; `close` ends the threads.
    """

    def __init__(
        self, cpus: Sequence[int], kernels: Kernels, nodes: Sequence[int] = (), deterministic: bool = False
    ) -> None:
        self.cpus = tuple(cpus)
        if nodes and len(nodes) != len(cpus):
            raise ValueError(f"{len(nodes)} nodes for {len(cpus)} CPUs")
        self._handle: Any = kernels._create_pool(self.cpus, nodes or [0] * len(self.cpus), deterministic)

    @property
    def threads(self) -> int:
        return len(self.cpus)

    @property
    def native(self) -> Any:
        """The pool's handle; ValueError after `close`."""
        if self._handle is None:
            raise ValueError("this thread pool is closed")
        return self._handle

    def close(self) -> None:
        """Ends the threads; a second call does nothing."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
