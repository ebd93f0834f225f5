"""The plain data that every room shares. Imports nothing of hetero, so any room may import it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Source = Literal["measured", "file", "assumed"]
"""Where a number comes from: a measurement on this machine, a file or system call, or an assumption."""

ExitCode = Literal[1, 2, 3, 4, 5]
Role = Literal["expert", "dense", "small"]


class HeteroError(Exception):
    """A failure the user can act on: one line of what was found and expected, one hint of what to try next."""

    code: ExitCode = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HeteroError):
    """The command line or the request is wrong (exit 2)."""

    code: ExitCode = 2


class HardwareError(HeteroError):
    """It does not fit, or this machine lacks the hardware or the kernels (exit 3)."""

    code: ExitCode = 3


class ModelError(HeteroError):
    """The model's files are damaged, incomplete or of a kind that is not supported (exit 4)."""

    code: ExitCode = 4


class TierError(HeteroError):
    """Disk, network or a cache tier failed (exit 5)."""

    code: ExitCode = 5


STATE_SLOTS = 4
"""Sets of recurrent states that a KV cache has: one for each running request, the others hold checkpoints."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint by its canonical name.

    `shape` is in row-major order (`[..., out, in]`); `format` is the source's type by ggml's name
    (`F32`, `BF16`, `Q4_0` ...); `n_bytes` is its size in the source.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    n_bytes: int
    role: Role


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """What a checkpoint's headers tell, without any weight: all that planning needs."""

    name: str
    architecture: str
    tensors: tuple[TensorInfo, ...]
    n_layers: int
    hidden_size: int
    vocab_size: int
    max_context: int
    n_experts: int
    top_k: int
    kv_elements_per_token: int
    """Values that one token keeps in the KV cache, over all layers."""
    kv_padding: int = 0
    """Values that an 8-bit cache holds besides, as its rows are whole blocks of 32."""
    kv_fixed_elements: int = 0
    """Values of the KV type that a request keeps whatever its length: sliding windows."""
    recurrent_bytes: int = 0
    """Bytes of a request's recurrent states, which are float32 whatever the KV type."""
    attended: int = 0
    """Positions that a token attends to at most, as indexers choose them; 0: all that it has."""
    index_elements: int = 0
    """Those of `kv_elements_per_token` that indexers keep, which are read for all positions once there are more."""
    notes: tuple[str, ...] = ()
    """What was assumed where headers do not tell."""

    def pairs(self, past: int, tokens: int) -> tuple[int, int]:
        """How many positions `tokens` new ones after `past` attend to in all, and how many their indexers score."""
        end, top = past + tokens, self.attended or past + tokens
        few = min(end, top), min(past, top)
        seen = _triangle(few[0]) - _triangle(few[1]) + top * (end - few[0] - (past - few[1]))
        return seen, _triangle(end) - _triangle(max(past, top)) if end > top else 0

    def cache_read(self, length: int) -> int:
        """Cached values that a token reads which is the last of `length`."""
        seen, scored = self.pairs(length - 1, 1)
        return (self.kv_elements_per_token - self.index_elements) * seen + self.index_elements * scored


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One ISA tier on this machine: whether its kernels are built, whether it can run, and why (not)."""

    name: str
    built: bool
    usable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One rate or time with its origin. `spread` is (largest - smallest) / median of its `samples`."""

    value: float
    unit: str
    source: Source = "measured"
    spread: float = 0.0
    samples: int = 1


@dataclass(frozen=True, slots=True)
class RateAt:
    """A memory read rate in bytes/s by that many threads, one on each core.

    `cpu_node` and `memory_node` are NUMA nodes, or None for all usable cores and memory spread over their nodes.
    """

    threads: int
    rate: Measured
    cpu_node: int | None = None
    memory_node: int | None = None


@dataclass(frozen=True, slots=True)
class KernelRate:
    """Multiplications plus additions per second of one packed format's matrix product, its weights in the cache.

    With one token that bounds decode where memory does not; with many it bounds prefill.
    """

    format: str
    tokens: int
    rate: Measured


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast this machine reads and computes; None or an empty tuple where nothing could be measured."""

    stream_read: tuple[RateAt, ...] = ()
    """One linear pass over memory, by thread count, ascending."""
    gather_read: tuple[RateAt, ...] = ()
    """Reads of pieces as large as an expert, at random in a set far larger than the caches, by thread count."""
    node_reads: tuple[RateAt, ...] = ()
    """Gather reads of each memory node by each CPU node, with all of its cores; empty with one node."""
    knee_threads: int = 0
    """The fewest threads that gather at 95 % of the best rate."""
    int8_ops: Measured | None = None
    """int8 multiplications plus additions per second of the tier in use, all threads."""
    f32_flops: Measured | None = None
    """float32 multiplications plus additions per second of the tier in use, all threads."""
    ssd_read: Measured | None = None
    """Direct reads, in pieces as large as an expert, of the disk that holds the cache; bytes/s."""
    ssd_write: Measured | None = None
    pcie: Measured | None = None
    """Copies from pinned memory to the first GPU; bytes/s."""
    kernels: tuple[KernelRate, ...] = ()
    """What the tier in use makes of its arithmetic, all threads, for one token and for many."""
    set_bytes: int = 0
    """Memory that was read over."""
    piece_bytes: int = 0
    """Bytes of one gathered piece."""
    notes: tuple[str, ...] = ()
    """What could not be measured and why."""


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node: its online CPUs as its cpulist says, and its memory; assumed where no file tells of nodes."""

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int
    source: Source = "file"


@dataclass(frozen=True, slots=True)
class HugePages:
    """`transparent`: the kernel's setting (`always`, `madvise`, `never`, empty: none); the pool of explicit pages."""

    transparent: str
    page_bytes: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, usable or not, in torch's order. Sizes are bytes; `reason` tells why it is not used."""

    name: str
    memory_total: int
    memory_free: int
    compute_capability: str
    pcie_bytes_per_s: Measured | None
    usable: bool
    reason: str
    source: Source


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts about this computer that a plan needs."""

    cpu_model: str
    cpus: tuple[int, ...]
    """Logical CPUs to pin workers to: one per usable core, after affinity and quota."""
    visible_cpus: int
    cpu_reason: str
    memory_bytes: int
    """Memory that hetero may use now."""
    memory_total_bytes: int
    memory_reason: str
    tiers: tuple[TierStatus, ...]
    isa_tier: str | None
    """The tier in use, or None where no kernels are built."""
    gpus: tuple[str, ...] = ()
    """GPUs that torch can use, in its order; a GPU that is present but unusable is told in `gpu_reason` and `notes`."""
    notes: tuple[str, ...] = ()
    disk_free_bytes: int = 0
    spare_cpus: tuple[int, ...] = ()
    """Allowed CPUs beyond `cpus`, best first (cores above the quota, efficiency cores, SMT siblings)."""
    isa_reason: str = ""
    """Why this tier is in use, or why none is."""
    gpu_reason: str = ""
    """What was found or looked for."""
    gpu_memory_bytes: tuple[int, ...] = ()
    """Free memory of each of `gpus`."""
    nodes: tuple[Node, ...] = ()
    sockets: int = 1
    clustering: str = ""
    """What splits a socket into several NUMA nodes, such as `4 NUMA nodes per socket (SNC4)`; empty: nothing."""
    physical_cores: int = 0
    """Online cores, usable or not."""
    performance_cores: int = 0
    """Those of them that are not efficiency cores."""
    threads_per_core: int = 1
    """Hardware threads of the largest core (2: SMT)."""
    cache_bytes: int = 0
    """All last-level caches together."""
    huge_pages: HugePages | None = None
    hypervisor: str = ""
    """The hypervisor's name, `unknown` for one without a name, empty on bare metal."""
    kernel: str = ""
    """The kernel's release."""
    devices: tuple[Gpu, ...] = ()
    """All GPUs found; `gpus` are the names of the usable ones."""
    torch_cuda: bool = False
    """Whether the installed torch is a build with CUDA's libraries, which take memory even where no GPU is used."""
    rates: Rates | None = None
    """Measured rates; None until `hetero probe` has measured."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """Bytes that one part of a model needs on one device."""

    device: str
    part: str
    bytes: int
    source: Source


@dataclass(frozen=True, slots=True)
class Placement:
    """Which device owns which part: a torch device name, or `cpu` for the native kernels."""

    dense: str = "cpu"
    experts: str = "cpu"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asks for; None means hetero chooses."""

    device: str = "auto"
    threads: int | None = None
    context: int | None = None
    kv_dtype: str = "auto"
    force: bool = False
    experts: str | None = None
    """The format to count the routed experts in; None: as the model has them."""
    dense: str | None = None
    """The format to count the dense matrices in, on whichever device; None: as the model has them."""
    reserve: int | None = None
    """Bytes of each device's memory to leave alone."""
    depth: int | None = None
    """Tokens already in the context when decoding is estimated; None: half of the context."""
    prompt: int | None = None
    """Prompt tokens for which prefill is estimated; None: one chunk."""
    calibration: tuple[float, float] = (1.0, 1.0)
    """Measured over predicted tokens/s of earlier runs here, for prefill and decode."""
    deterministic: bool = False
    """One kernel per format, so that a token's result does not depend on how many share its matrix or expert."""


Bound = Literal["memory", "arithmetic", "PCIe", "SSD", "overhead"]


@dataclass(frozen=True, slots=True)
class Term:
    """One part of the time of a step: `amount` of `unit` (B, op, layer) over `rate` per second on a device."""

    name: str
    device: str
    amount: float
    unit: str
    rate: float
    fast: float
    likely: float
    slow: float
    bound: Bound
    formula: str
    """How the time was counted, with the origin of every input."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens per second: a range, the bound that sets it, the seconds it is made of, and what no change of
    software could exceed (`ceiling`: the largest term alone at the bare rate of its bus)."""

    low: float
    likely: float
    high: float
    bound: Bound
    ceiling: float
    tokens: int
    """Tokens that the terms' seconds are for: 1 when decoding, a prompt's when reading it."""
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class HotExperts:
    """Experts that would fit into a GPU's spare memory: how many of all, their bytes, and their share of reads."""

    count: int
    of: int
    bytes: int
    share: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each part of a model goes and what it needs; the loader keeps to it."""

    placement: Placement
    isa_tier: str
    cpus: tuple[int, ...]
    context: int
    kv_dtype: str
    prefill_chunk: int
    ledger: tuple[LedgerLine, ...]
    memory_bytes: int
    fits: bool
    notes: tuple[str, ...] = field(default=())
    prefill: Estimate | None = None
    decode: Estimate | None = None
    hot_experts: HotExperts | None = None
    missing: tuple[tuple[str, int], ...] = ()
    """Devices whose memory falls short, with the bytes missing."""
    cpu_nodes: tuple[int, ...] = ()
    """The NUMA node of each of `cpus`; empty: one node. Each node holds an equal part of every expert."""
    deterministic: bool = False
    """As in the request."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that `cpus` lie on."""
        return tuple(sorted(set(self.cpu_nodes)))

    @property
    def node_places(self) -> tuple[int, ...]:
        """The place among `nodes` of each of `cpus`."""
        return tuple(self.nodes.index(node) for node in self.cpu_nodes)

    @property
    def threads(self) -> int:
        return len(self.cpus)

    @property
    def total_bytes(self) -> int:
        return sum(line.bytes for line in self.ledger)
