"""Every number of the estimate that is not measured on this machine, with its origin. docs/planning.md lists them.

A factor turns the bare rate of a bus or unit into what a step gets out of it: low, likely and high.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Factor:
    """Three shares of a rate (or three times), worst first, and where they come from."""

    low: float
    likely: float
    high: float
    origin: str


# Decode: one token, bound by reads.
EXPERT_READ = Factor(0.60, 0.85, 0.92, "measured elsewhere: 83 to 85 % by a 4-bit kernel on two Zen 1 cores")
DENSE_READ = Factor(0.50, 0.80, 0.90, "measured elsewhere: many small matrices a layer, two Zen 5 cores")
MEASURED_READ = Factor(0.80, 0.93, 1.00, "measured elsewhere: kernels' reads against bare ones, two Zen 5 cores")
HIDDEN_OPS = Factor(1.30, 2.50, 6.00, "measured elsewhere: reads hide 0.6 of the products, two Zen 5 cores")
CACHED_READ = 2.5
"""How much faster a model is read that fits in the last-level caches (measured on two Zen 5 cores)."""
CACHE_READ = Factor(0.30, 0.60, 0.85, "assumed: attention reads the KV cache in short runs")
DECODE_OPS = {"quantised": Factor(0.60, 1.00, 1.30, "measured elsewhere: one token's products from cache, Zen 1")}
DECODE_OPS["plain"] = Factor(0.25, 0.45, 0.80, "assumed: one token's 16-bit products from cache")

# Prefill: many tokens, bound by arithmetic. Shares of the int8 rate as `hetero probe` measures it.
PREFILL_OPS = {
    4: Factor(0.70, 1.15, 1.40, "measured elsewhere: 4-bit panels on two Zen 1 cores, against the int8 rate"),
    8: Factor(0.40, 0.65, 0.80, "measured elsewhere: 8-bit panels on two Zen 1 cores, against the int8 rate"),
    16: Factor(0.50, 0.75, 0.88, "measured elsewhere: float32 panels on two Zen 1 cores"),
}
TILE_OPS = Factor(0.25, 0.50, 0.65, "published: 21.3 of 73.7 TFLOPS (29 %) by KTransformers' AMX kernels; goal 60 %")
HIDDEN_READ = Factor(0.90, 1.60, 5.00, "measured elsewhere: products hide 0.4 of a chunk's reads, two Zen 5 cores")
ATTENTION_OPS = Factor(0.30, 0.50, 0.65, "measured elsewhere: native attention of 512 tokens, Zen 5 (0.48 to 0.53)")
LATENT_OPS = Factor(0.22, 0.38, 0.50, "measured elsewhere: native latent attention of 512 tokens, Zen 5")
ATTENTION_ONE_OPS = Factor(0.10, 0.30, 0.60, "assumed: float32 attention of one token")
KERNEL = Factor(0.70, 0.84, 1.00, "measured elsewhere: whole prompts against products alone, two Zen 5 cores")
FULL_TILE = 16
"""Tokens that an expert needs before tiles or panels are full; fewer use a part of them."""

# One layer's work outside the matrices: Python, torch, thread starts. Seconds for one token.
CPU_LAYER = Factor(200e-6, 47e-6, 32e-6, "measured elsewhere: tiny models whose steps Python makes, Zen 5")
REPEATED_LAYER = Factor(50e-6, 4e-6, 1e-6, "measured elsewhere: tiny models whose steps are repeated natively, Zen 5")
GPU_LAYER = Factor(900e-6, 450e-6, 150e-6, "assumed: some thirty kernel launches a layer, without graphs")
GRAPH_LAYER = Factor(150e-6, 30e-6, 15e-6, "assumed: a layer's launches recorded in a CUDA graph")
CPU_COLD_LAYER = Factor(300e-6, 55e-6, 25e-6, "measured elsewhere: layers that the weights drove out, Zen 5")
CPU_LATENT_LAYER = Factor(200e-6, 48e-6, 20e-6, "measured elsewhere: a DeepSeek layer beside a Qwen3 one, Zen 5")
CPU_STEP = Factor(0.3e-3, 0.03e-3, 0.01e-3, "measured elsewhere: decoding of tiny models, Zen 5")
CPU_CHUNK_TOKEN = Factor(5e-6, 1.8e-6, 0.6e-6, "measured elsewhere: prompts of tiny models, Zen 5")
TRANSFER = Factor(60e-6, 12e-6, 6e-6, "assumed: one synchronous copy over PCIe, without its bytes")
PCIE_SHARE = Factor(0.60, 0.80, 0.95, "assumed: share of the link's rate that copies get")
SSD_SHARE = Factor(0.50, 0.80, 0.95, "assumed: share of the disk's rate when each expert is one read")

# GPUs.
GPU_READ = Factor(0.50, 0.80, 0.90, "assumed: matrix-vector products against the memory's rate")
GPU_ATTENTION_OPS = Factor(0.15, 0.45, 0.65, "assumed: flash attention of a chunk against the peak")
GPU_OPS = Factor(0.25, 0.50, 0.70, "assumed: bf16 products of a chunk against the peak")
GPUS: dict[str, tuple[float, float]] = {
    "B200": (8000e9, 2250e12),
    "H200": (4800e9, 989e12),
    "H100": (3350e9, 989e12),
    "A100": (1935e9, 312e12),
    "RTX PRO 6000": (1792e9, 252e12),
    "5090": (1792e9, 209e12),
    "5080": (960e9, 112e12),
    "4090": (1008e9, 165e12),
    "4080": (717e9, 97e12),
    "3090": (936e9, 71e12),
    "L40": (864e9, 181e12),
    "L20": (864e9, 119e12),
    "A6000": (768e9, 155e12),
    "3060": (360e9, 25e12),
}
"""Vendors' data sheets: bytes/s of the memory, dense bf16 operations/s."""
CONSUMER_GPU = (1008e9, 165e12)
"""A GPU without a known name: as an RTX 4090."""
CONSUMER_PCIE = 25e9
"""PCIe 4.0 x16 as copies reach it."""

# A CPU that nobody measured.
SPEC_SHARE = 0.80
"""Of channels x MT/s x 8 bytes, what all cores together read."""
GATHER_SHARE = 0.60
"""Of linear reads, what the experts of a server reach that is known by its data sheet; fitted to the seven published
decode rates in docs/planning.md, which it meets within a third."""
SECOND_SOCKET = 0.60
"""What another socket adds to the rate of the first: published 8.7 tokens/s on one and 12.2 on two (KTransformers,
2 x Xeon 6454S, DeepSeek-R1 at 4 bits)."""
CACHE_BYTES = 32 << 20
READ_PER_CORE = 9e9
READ_MOST = 200e9
SSD_READ = 3e9
CLOCK = 2.5e9
TILE_CLOCK = 2.0e9
INT8_PER_CYCLE = {"generic": 8.0, "avx2": 48.0, "avx512": 200.0, "amx": 1024.0}
"""Operations (two to a multiply-add) of a core and cycle; amx: bf16 tiles, which serve every format."""
F32_PER_CYCLE = {"generic": 8.0, "avx2": 32.0, "avx512": 64.0, "amx": 64.0}
UNMEASURED = (0.75, 1.10)
"""How much slower and faster a rate that nobody measured may turn out."""
