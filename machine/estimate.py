"""Tokens per second of a placement: bytes over rates and products over rates; constants are in `assumptions`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hetero.machine import assumptions as assumed
from hetero.machine.assumptions import Factor
from hetero.machine.speeds import Speed, Speeds
from hetero.machine.traffic import Traffic, Weights, attention_products, is_plain
from hetero.machine.types import Bound, Estimate, ModelIndex, Term
from hetero.native.widths import bits


@dataclass(frozen=True, slots=True)
class Load:
    """Everything that an estimate depends on besides the model and the rates."""

    on_gpu: bool
    packed_on_gpu: bool
    """Whether dense matrices keep their format on the GPU (this version unpacks them to bf16)."""
    kv_bytes: float
    """Bytes of a value in the KV cache."""
    missed: float
    """Share of the experts that memory does not hold, so that they come from the disk."""
    chunk: int


def term(
    name: str, device: str, amount: float, unit: str, rate: Speed, share: Factor, bound: Bound, note: str = ""
) -> Term:
    """The time of `amount` over what `share` leaves of `rate`; unmeasured rates widen the range."""
    slower, faster = (1.0, 1.0) if rate.source == "measured" else assumed.UNMEASURED
    low, likely, high = (share.low * slower, share.likely, share.high * faster)
    formula = f"{_number(amount)}{unit} / ({_number(rate.value)}{unit}/s [{rate.source}: {rate.origin}]"
    formula += f" x {share.likely:g} [{share.origin}])" + (f", {note}" if note else "")
    fast, usual, slow = (amount / (rate.value * factor) for factor in (high, likely, low))
    return Term(name, device, amount, unit, rate.value * share.likely, fast, usual, slow, bound, formula)


def fixed(name: str, device: str, count: float, unit: str, each: Factor) -> Term:
    """The time of `count` things that take `each` seconds."""
    formula = f"{count:g} {unit} x {each.likely * 1e6:g} us [{each.origin}]"
    fast, usual, slow = (count * seconds for seconds in (each.high, each.likely, each.low))
    return Term(name, device, count, f" {unit}", 1 / each.likely, fast, usual, slow, "overhead", formula)


def decode(index: ModelIndex, made: Traffic, load: Load, rates: Speeds, depth: int) -> Estimate:
    """One token after `depth` tokens of context."""
    routed = sum(w.bytes for w in made.experts.values()) * made.share
    whole = sum(w.bytes for part in (made.dense, made.head) for w in part.values())
    moved = routed or whole
    ceiling = rates.gather.value / moved if moved else math.inf
    cold = routed + whole > rates.cache_bytes
    if rates.kernels and not cold:
        rates = replace(rates, gather=_cached(rates.gather), stream=_cached(rates.stream))
    terms = [*_decode_experts(made, load, rates), *_decode_dense(made, load, rates)]
    terms += _decode_attention(index, made, load, rates, depth)
    terms += _decode_recurrent(index, load, rates)
    terms += [*_links(index, made, load, rates, 1), *_decode_overhead(index, made, load, cold)]
    return _estimate(terms, 1, ceiling)


def _cached(read: Speed) -> Speed:
    return replace(read, value=read.value * assumed.CACHED_READ, origin=f"{read.origin}, from cache")


def _decode_overhead(index: ModelIndex, made: Traffic, load: Load, cold: bool) -> list[Term]:
    """What a token's step takes outside of matrices and attention."""
    each = _layer_overhead(load, repeated=not index.recurrent_bytes)
    terms = [fixed("overhead", "cpu", index.n_layers, "layers", each)]
    if cold and not load.on_gpu:
        terms.append(fixed("cold caches", "cpu", index.n_layers, "layers", assumed.CPU_COLD_LAYER))
    if made.latent_layers and not load.on_gpu:
        terms.append(fixed("latent attention", "cpu", made.latent_layers, "layers", assumed.CPU_LATENT_LAYER))
    return [*terms, fixed("sampling", "cpu", 1, "token", assumed.CPU_STEP)]


def prefill(index: ModelIndex, made: Traffic, load: Load, rates: Speeds, prompt: int) -> Estimate:
    """A prompt of `prompt` tokens, read in chunks."""
    chunks = -(-prompt // load.chunk)
    tokens = prompt / chunks
    per_chunk = [*_prefill_experts(index, made, load, rates, tokens), *_prefill_dense(made, load, rates, tokens)]
    terms = [_times(t, chunks) for t in per_chunk + _links(index, made, load, rates, tokens)]
    terms.append(_prefill_attention(index, made, load, rates, prompt))
    terms.append(fixed("overhead", "cpu", chunks * index.n_layers, "layers", _layer_overhead(load)))
    if not load.on_gpu:
        terms.append(fixed("norms", "cpu", prompt * index.n_layers, "layer tokens", assumed.CPU_CHUNK_TOKEN))
    routed = sum(w.parameters for w in made.experts.values()) * made.share
    used = 2 * (routed + sum(w.parameters for w in made.dense.values()))
    return _estimate(terms, prompt, rates.int8.value / used)


def _layer_overhead(load: Load, repeated: bool = False) -> Factor:
    """`repeated`: a token's step on the CPU, whose native calls are made again without Python."""
    if not load.on_gpu:
        return assumed.REPEATED_LAYER if repeated else assumed.CPU_LAYER
    return assumed.GRAPH_LAYER if load.packed_on_gpu else assumed.GPU_LAYER


def _estimate(terms: list[Term], tokens: int, ceiling: float) -> Estimate:
    fast, likely, slow = (sum(getattr(t, n) for t in terms) for n in ("fast", "likely", "slow"))
    bounds: dict[Bound, float] = {}
    for t in terms:
        bounds[t.bound] = bounds.get(t.bound, 0.0) + t.likely
    worst = max(bounds, key=lambda b: bounds[b])
    return Estimate(tokens / slow, tokens / likely, tokens / fast, worst, ceiling, tokens, tuple(terms))


def _slower(memory: Term, arithmetic: Term) -> Term:
    """The two overlap, so the longer one counts, for each column of the range."""
    longer = memory if memory.likely >= arithmetic.likely else arithmetic
    return replace(longer, fast=max(memory.fast, arithmetic.fast), slow=max(memory.slow, arithmetic.slow))


def _decode_experts(made: Traffic, load: Load, rates: Speeds) -> list[Term]:
    if not made.experts:
        return []
    n_bytes = sum(w.bytes for w in made.experts.values()) * made.share
    terms = [_one_token("experts", made.experts, made.share, rates, rates.gather, assumed.EXPERT_READ)]
    if load.missed:
        terms.append(term("experts from disk", "ssd", n_bytes * load.missed, "B", rates.ssd, assumed.SSD_SHARE, "SSD"))
    return terms


def _one_token(
    name: str, parts: Mapping[str, Weights], share: float, rates: Speeds, read: Speed, factor: Factor
) -> Term:
    """Matrices used once: their bytes from memory, or their products where those take longer.

    Where kernels were measured, a part of their products is known to be hidden by the reads, and the rest is added.
    """
    n_bytes = sum(w.bytes for w in parts.values()) * share
    if all(rates.product(fmt, 1) is not None for fmt in parts):
        memory = term(name, "cpu", n_bytes, "B", read, assumed.MEASURED_READ, "memory")
        work = _sum([_ops_term(name, fmt, 2 * w.parameters * share, rates) for fmt, w in parts.items()])
        return _both(memory, work)
    memory = term(name, "cpu", n_bytes, "B", read, factor, "memory")
    return _slower(memory, _sum([_ops_term(name, fmt, 2 * w.parameters * share, rates) for fmt, w in parts.items()]))


def _both(memory: Term, work: Term) -> Term:
    """What of the work no read hides comes on top of the reads."""
    longer = memory if memory.likely >= work.likely else work
    times = {n: getattr(memory, n) + getattr(work, n) for n in ("fast", "likely", "slow")}
    return replace(longer, **times, formula=f"{memory.formula} + {work.formula}")


def _ops_term(name: str, fmt: str, ops: float, rates: Speeds) -> Term:
    kernel = rates.product(fmt, 1)
    if kernel is not None:
        return term(name, "cpu", ops, "op", kernel, assumed.HIDDEN_OPS, "arithmetic")
    plain = is_plain(fmt)
    # Tiles do not serve single tokens: those run on the vector units, at about a fifth of the tiles' rate.
    rate = replace(rates.int8, value=rates.int8.value / 5) if rates.tiles else rates.int8
    factor = assumed.DECODE_OPS["plain" if plain else "quantised"]
    return term(name, "cpu", ops, "op", rates.f32 if plain else rate, factor, "arithmetic")


def _sum(terms: list[Term]) -> Term:
    if len(terms) == 1:
        return terms[0]
    fast, likely, slow, amount = (sum(getattr(t, n) for t in terms) for n in ("fast", "likely", "slow", "amount"))
    formula = " + ".join(t.formula for t in terms)
    return replace(terms[0], amount=amount, rate=amount / likely, fast=fast, likely=likely, slow=slow, formula=formula)


def _decode_dense(made: Traffic, load: Load, rates: Speeds) -> list[Term]:
    if load.on_gpu:
        n_bytes = _gpu_bytes(made.dense, load) + _gpu_bytes(made.head, load) + made.float32
        return [term("dense", "cuda", n_bytes, "B", rates.gpu_read, assumed.GPU_READ, "memory")]
    terms = [_one_token("dense", made.dense, 1.0, rates, rates.stream, assumed.DENSE_READ)]
    terms.append(_one_token("head", made.head, 1.0, rates, rates.stream, assumed.DENSE_READ))
    if made.float32:
        terms.append(term("float32", "cpu", made.float32, "B", rates.stream, assumed.CACHE_READ, "memory"))
    return terms


def _gpu_bytes(parts: Mapping[str, Weights], load: Load) -> int:
    return sum(w.bytes if load.packed_on_gpu else 2 * w.parameters for w in parts.values())


def _decode_attention(index: ModelIndex, made: Traffic, load: Load, rates: Speeds, depth: int) -> list[Term]:
    n_bytes = index.cache_read(depth) * load.kv_bytes
    if not n_bytes:
        return []
    note = f"{depth:,} tokens of context"
    if load.on_gpu:
        return [term("attention", "cuda", n_bytes, "B", rates.gpu_read, assumed.CACHE_READ, "memory", note)]
    memory = term("attention", "cpu", n_bytes, "B", rates.stream, assumed.CACHE_READ, "memory", note)
    ops = 2 * attention_products(index, made, depth - 1, 1)
    work = term("attention", "cpu", ops, "op", rates.f32, assumed.ATTENTION_ONE_OPS, "arithmetic", note)
    return [_slower(memory, work)]


def _decode_recurrent(index: ModelIndex, load: Load, rates: Speeds) -> list[Term]:
    """Recurrent states, which every token reads and writes."""
    if not index.recurrent_bytes:
        return []
    device, read = ("cuda", rates.gpu_read) if load.on_gpu else ("cpu", rates.stream)
    return [term("recurrent", device, 2 * index.recurrent_bytes, "B", read, assumed.CACHE_READ, "memory")]


def _links(index: ModelIndex, made: Traffic, load: Load, rates: Speeds, tokens: float) -> list[Term]:
    """To the CPU's experts and back, once a layer, where the dense part is on a GPU."""
    if not load.on_gpu or not made.expert_layers:
        return []
    n_bytes = 2 * 4 * tokens * index.hidden_size * made.expert_layers
    copies = fixed("PCIe", "pcie", 2 * made.expert_layers, "copies", assumed.TRANSFER)
    moved = term("PCIe", "pcie", n_bytes, "B", rates.pcie, assumed.PCIE_SHARE, "PCIe")
    return [replace(_sum([moved, copies]), amount=n_bytes, bound="PCIe")]


def _prefill_experts(index: ModelIndex, made: Traffic, load: Load, rates: Speeds, tokens: float) -> list[Term]:
    """A chunk's experts: those that any of its tokens chose are read once, and multiply their tokens.

    Not those of the last layer, which only sampled tokens need.
    """
    if not made.experts:
        return []
    layers = 1 - 1 / made.expert_layers
    touched = index.n_experts * (1 - (1 - made.share) ** tokens)
    fraction = touched / index.n_experts
    each = max(1.0, tokens * index.top_k / touched)
    n_bytes = sum(w.bytes for w in made.experts.values()) * fraction * layers
    note = f"{touched:.0f} of {index.n_experts} experts touched, {each:.0f} tokens each"
    known = all(rates.product(fmt, each) is not None for fmt in made.experts)
    share = assumed.HIDDEN_READ if known else assumed.EXPERT_READ
    memory = term("experts", "cpu", n_bytes, "B", rates.stream, share, "memory", note)
    work = [
        _panel_term("experts", fmt, 2 * w.parameters * made.share * tokens * layers, rates, each, note)
        for fmt, w in made.experts.items()
    ]
    terms = [(_both if known else _slower)(memory, _sum(work))]
    if load.missed:
        terms.append(term("experts from disk", "ssd", n_bytes * load.missed, "B", rates.ssd, assumed.SSD_SHARE, "SSD"))
    return terms


def _panel_term(name: str, fmt: str, ops: float, rates: Speeds, each: float, note: str = "") -> Term:
    """Products of a matrix with `each` tokens."""
    kernel = rates.product(fmt, each)
    if kernel is not None:
        return term(name, "cpu", ops, "op", kernel, assumed.KERNEL, "arithmetic", note)
    if rates.tiles:
        full = each / (assumed.FULL_TILE * math.ceil(each / assumed.FULL_TILE))
        # Below a fifth of a tile the vector units are faster.
        rate = replace(rates.int8, value=rates.int8.value * max(0.2, full))
        return term(name, "cpu", ops, "op", rate, assumed.TILE_OPS, "arithmetic", note)
    if is_plain(fmt):
        return term(name, "cpu", ops, "op", rates.f32, assumed.PREFILL_OPS[16], "arithmetic", note)
    factor = assumed.PREFILL_OPS[4 if bits(fmt) < 5 else 8]
    filled = min(1.0, 0.6 + 0.4 * each / assumed.FULL_TILE)
    rate = replace(rates.int8, value=rates.int8.value * filled)
    return term(name, "cpu", ops, "op", rate, factor, "arithmetic", note)


def _prefill_dense(made: Traffic, load: Load, rates: Speeds, tokens: float) -> list[Term]:
    if load.on_gpu:
        ops = 2 * sum(w.parameters for w in made.dense.values()) * tokens
        memory = term("dense", "cuda", _gpu_bytes(made.dense, load), "B", rates.gpu_read, assumed.GPU_READ, "memory")
        work = term("dense", "cuda", ops, "op", rates.gpu_ops, assumed.GPU_OPS, "arithmetic")
        return [_slower(memory, work)]
    n_bytes = sum(w.bytes for w in made.dense.values())
    memory = term("dense", "cpu", n_bytes, "B", rates.stream, assumed.DENSE_READ, "memory")
    work = _sum([_panel_term("dense", f, 2 * w.parameters * tokens, rates, tokens) for f, w in made.dense.items()])
    return [_slower(memory, work)]


def _prefill_attention(index: ModelIndex, made: Traffic, load: Load, rates: Speeds, prompt: int) -> Term:
    """Each token meets on average half of the prompt, or what indexers choose of it."""
    ops = 2 * attention_products(index, made, 0, prompt)
    note = f"{prompt:,} tokens against each other"
    if load.on_gpu:
        return term("attention", "cuda", ops, "op", rates.gpu_ops, assumed.GPU_ATTENTION_OPS, "arithmetic", note)
    share = assumed.LATENT_OPS if made.latent_layers else assumed.ATTENTION_OPS
    return term("attention", "cpu", ops, "op", rates.f32, share, "arithmetic", note)


def _times(t: Term, count: int) -> Term:
    if count == 1:
        return t
    scaled = {n: getattr(t, n) * count for n in ("amount", "fast", "likely", "slow")}
    return replace(t, **scaled, formula=f"{count} chunks x ({t.formula})")


def _number(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} "
