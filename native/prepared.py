"""Matrix products and norms that are called for every layer and token: the C arguments are made once and kept.

Inputs and outputs are plain addresses of contiguous float32 buffers whose shapes the caller vouches for; the byte
lengths that go with them are derived from those shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero.native.kernels import ACTIVATIONS, ExpertBank, Kernels, PackedMatrix, Pool
from hetero.native.library import ffi

_FLOATS, _INTS = ffi.typeof("float *"), ffi.typeof("int32_t *")


class PreparedLinear:
    """Several matrices on one x, with the addresses of their biases (0: none)."""

    def __init__(self, kernels: Kernels, matrices: Sequence[PackedMatrix], biases: Sequence[int]) -> None:
        self._kernels = kernels
        self.widths = [matrix.n for matrix in matrices]
        self._k = matrices[0].k
        self._matrices = ffi.new("hetero_matrix *[]", [matrix.native for matrix in matrices])
        self._kept = list(matrices)  # the C array does not keep what it points to
        self._biases: Any = ffi.NULL
        if any(biases):
            self._biases = ffi.new("float *[]", [ffi.cast(_FLOATS, bias) for bias in biases])
        self._bias_bytes = ffi.new("size_t[]", [4 * width for width in self.widths])
        self._outs = ffi.new("float *[]", len(matrices))
        self._bytes = ffi.new("size_t[]", len(matrices))

    def __call__(self, pool: Pool, tokens: int, x: int, outs: Sequence[int]) -> None:
        """outs[i] [tokens, widths[i]] = x [tokens, k] times matrix i transposed, plus its bias."""
        for i, out in enumerate(outs):
            self._outs[i] = ffi.cast(_FLOATS, out)
            self._bytes[i] = tokens * self.widths[i] * 4
        self._kernels.call(
            "hetero_linear",
            pool.native,
            self._matrices,
            len(outs),
            ffi.cast(_FLOATS, x),
            tokens * self._k * 4,
            tokens,
            self._biases,
            self._bias_bytes,
            self._outs,
            self._bytes,
        )


class PreparedNorm:
    """RMS norm of each head of x by the `weight` at an address [d] (0: none), then rotation of its first 2 * half."""

    def __init__(
        self, kernels: Kernels, heads: int, d: int, weight: int, eps: float, half: int = 0, interleaved: bool = False
    ) -> None:
        self._kernels, self._row = kernels, heads * d
        args = ffi.new("hetero_rope_args *")
        args.heads, args.d, args.half, args.interleaved, args.eps = heads, d, half, interleaved, eps
        args.weight, args.weight_bytes = ffi.cast(_FLOATS, weight), d * 4
        self._args: Any = args

    def __call__(self, pool: Pool, tokens: int, x: int, stride: int, out: int, cos: int = 0, sin: int = 0) -> None:
        """out [tokens, heads, d] from x, whose rows lie `stride` floats apart; cos and sin are [tokens, half]."""
        if not tokens:  # a chunk of a prompt that wants no logits: torch gives an empty tensor no address
            return
        args = self._args
        args.n_tokens, args.x_stride = tokens, stride
        args.x, args.x_bytes = ffi.cast(_FLOATS, x), ((tokens - 1) * stride + self._row) * 4 if tokens else 0
        args.cos, args.sin, args.table_bytes = ffi.cast(_FLOATS, cos), ffi.cast(_FLOATS, sin), tokens * args.half * 4
        args.out, args.out_bytes = ffi.cast(_FLOATS, out), tokens * self._row * 4
        self._kernels.call("hetero_norm_rope", pool.native, args)


class PreparedRouter:
    """The choice of `top_k` of `n_experts`; `bias` is the address of a correction of scores [n_experts] (0: none)."""

    def __init__(
        self,
        kernels: Kernels,
        n_experts: int,
        top_k: int,
        *,
        sigmoid: bool,
        norm_topk: bool,
        n_group: int,
        topk_group: int,
        group_top2: bool,
        scaling: float,
        bias: int,
    ) -> None:
        self._kernels, self._n_experts, self._top_k = kernels, n_experts, top_k
        router = ffi.new("hetero_router *")
        router.n_experts, router.top_k, router.n_group, router.topk_group = n_experts, top_k, n_group, topk_group
        router.sigmoid, router.norm_topk, router.group_top2, router.scaling = sigmoid, norm_topk, group_top2, scaling
        router.bias, router.bias_bytes = ffi.cast(_FLOATS, bias), n_experts * 4
        self._router: Any = router

    def __call__(self, pool: Pool, tokens: int, logits: int, ids: int, weights: int) -> None:
        """ids int32 and weights float32 [tokens, top_k] of logits float32 [tokens, n_experts]."""
        if not tokens:
            return
        slots = tokens * self._top_k * 4
        self._kernels.call(
            "hetero_route",
            pool.native,
            self._router,
            ffi.cast(_FLOATS, logits),
            tokens * self._n_experts * 4,
            tokens,
            ffi.cast(_INTS, ids),
            slots,
            ffi.cast(_FLOATS, weights),
            slots,
        )


def moe(
    kernels: Kernels, pool: Pool, bank: ExpertBank, tokens: int, top_k: int, x: int, ids: int, weights: int, out: int
) -> None:
    """Kernels.moe on addresses: x and out [tokens, hidden], ids int32 and weights float32 [tokens, top_k]."""
    size = tokens * bank.hidden * 4
    kernels.call(
        "hetero_moe",
        pool.native,
        bank.native,
        ffi.cast(_FLOATS, x),
        size,
        tokens,
        ffi.cast(_INTS, ids),
        tokens * top_k * 4,
        ffi.cast(_FLOATS, weights),
        tokens * top_k * 4,
        top_k,
        ffi.cast(_FLOATS, out),
        size,
    )


def linear_heads(kernels: Kernels, pool: Pool, matrix: PackedMatrix, heads: int, tokens: int, x: int, out: int) -> None:
    """Each of `heads` equal parts of a matrix times its own x [heads, tokens, k]: out [heads, tokens, n / heads].

    n / heads must be a multiple of 16: ValueError otherwise.
    """
    kernels.call(
        "hetero_linear_heads",
        pool.native,
        matrix.native,
        heads,
        ffi.cast(_FLOATS, x),
        heads * tokens * matrix.k * 4,
        tokens,
        ffi.cast(_FLOATS, out),
        tokens * matrix.n * 4,
    )


def add(kernels: Kernels, pool: Pool, count: int, a: int, b: int, out: int) -> None:
    """out = a + b, `count` values each; out may be a."""
    parts = (ffi.cast(_FLOATS, part) for part in (a, b, out))
    kernels.call("hetero_add", pool.native, *parts, 4 * count, count)


def gate(kernels: Kernels, pool: Pool, count: int, gate: int, up: int, out: int) -> None:
    """out = silu(gate) * up, `count` values each; out may be one of them."""
    parts = (ffi.cast(_FLOATS, part) for part in (gate, up, out))
    kernels.call("hetero_gate", pool.native, ACTIVATIONS.index("silu"), *parts, 4 * count, count)


Strides = tuple[int, int]


def balance(kernels: Kernels, count: int, n: int, iterations: int, eps: float, x: int) -> None:
    """Make `count` matrices [n, n] at the address x nearly doubly stochastic, in place; see hetero.h."""
    kernels.call("hetero_balance", ffi.cast(_FLOATS, x), 4 * count * n * n, count, n, iterations, eps)


def copy(kernels: Kernels, shape: tuple[int, int, int], source: int, strides: Strides, out: int, to: Strides) -> None:
    """Rows [n, m] of `width` values from one place to another; strides are in values."""
    args = ffi.new("hetero_copy_args *")
    args.n, args.m, args.width = n, m, width = shape
    (args.from_n, args.from_m), (args.to_n, args.to_m) = strides, to
    setattr(args, "from", ffi.cast(_FLOATS, source))
    args.to = ffi.cast(_FLOATS, out)
    args.from_bytes, args.to_bytes = (
        4 * ((n - 1) * first + (m - 1) * second + width) for first, second in (strides, to)
    )
    kernels.call("hetero_copy", args)
