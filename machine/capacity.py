"""Agents and the memory of their contexts: how much KV to keep, where, and for how many GPUs' worth of work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetero.machine.ledger import KV_BYTES, kv_token_bytes
from hetero.machine.traces import Trace, tokens_for
from hetero.machine.types import ModelIndex, Plan, UsageError

AGENT_CURVE = (
    (12_500, 0.340),
    (31_250, 0.698),
    (62_500, 0.897),
    (125_000, 0.951),
    (312_500, 0.961),
    (1_250_000, 0.962),
)
"""Tokens kept for each live session and the hit rate: LRU over 692 recorded coding-agent sessions
(callanjfox/kv-cache-tester, Apache-2.0), 16 at a time."""
AGENT_CONTEXT = 148_000
"""Median of those sessions' longest contexts; other contexts scale the curve."""
AGENT_INPUT = 118_000
AGENT_OUTPUT = 440
AGENT_GAP = 40.0
"""Mean prompt and answer of a request there, and mean seconds to the next request, pauses over 10 minutes apart."""
NODE_SHARE = 0.85
"""Of a KV node's memory, what Mooncake can use for blocks."""

_NEAR = 0.9


@dataclass(frozen=True, slots=True)
class Ask:
    """What the user wants: agents, their context, the hit rate, and what a KV node has."""

    agents: int
    context: int
    hit_rate: float
    node_memory: int
    node_network: float
    prefill_tps: float | None = None
    decode_tps: float | None = None
    """Of a GPU node, where that is not the planned machine."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer. `nodes_per_gpu_node` is the number that it all comes to."""

    kv_bytes_per_token: int
    context_bytes: int
    """One agent's whole context."""
    tokens_per_agent: int
    """Tokens kept for each agent."""
    tokens: int
    bytes: int
    dram_bytes: int
    """Of those, what serves nine of ten hits; the rest may lie on SSDs."""
    hit_rate: float
    most_hit_rate: float
    """With everything kept."""
    leverage: float
    prompt_tokens: float
    new_tokens: float
    """Of a request's prompt, what must still be computed."""
    request_seconds: float
    agents_per_gpu_node: float
    gpu_nodes: int
    kv_nodes: int
    network: float
    """Bytes/s of hits that one GPU node's agents fetch."""
    nodes_per_gpu_node: float
    bound: str
    """`memory` or `network`: what the KV nodes run out of first."""
    source: str


@dataclass(frozen=True, slots=True)
class _Work:
    """One agent's requests: prompt and answer tokens, seconds between them, tokens to keep, hit rates."""

    prompt: float
    answer: float
    gap: float
    keep: float
    near: float
    """Tokens that serve nine of ten hits."""
    hit: float
    most: float
    source: str


def capacity(index: ModelIndex, made: Plan, ask: Ask, trace: Trace | None = None) -> Capacity:
    """Sizes the cache of `ask.agents` agents that work on machines like that of the plan.

    Raises UsageError for a hit rate that cannot be had.
    """
    _check(ask)
    work = _recorded(ask) if trace is None else _replayed(trace, ask)
    each = kv_token_bytes(index, made.kv_dtype)
    fixed = math.ceil(index.kv_fixed_elements * KV_BYTES[made.kv_dtype]) + index.recurrent_bytes
    seconds = _request_seconds(made, ask, work)
    per_gpu = max(1.0, (seconds + work.gap) / seconds)
    gpu_nodes = math.ceil(ask.agents / per_gpu)
    network = work.prompt * work.hit * each / seconds
    by_memory = per_gpu * (work.keep * each + fixed) / (ask.node_memory * NODE_SHARE)
    ratio = max(by_memory, network / ask.node_network)
    return Capacity(
        kv_bytes_per_token=each,
        context_bytes=ask.context * each + fixed,
        tokens_per_agent=round(work.keep),
        tokens=round(work.keep * ask.agents),
        bytes=round((work.keep * each + fixed) * ask.agents),
        dram_bytes=round((work.near * each + fixed) * ask.agents),
        hit_rate=work.hit,
        most_hit_rate=work.most,
        leverage=1 / (1 - work.hit),
        prompt_tokens=work.prompt,
        new_tokens=work.prompt * (1 - work.hit),
        request_seconds=seconds,
        agents_per_gpu_node=per_gpu,
        gpu_nodes=gpu_nodes,
        kv_nodes=math.ceil(ratio * gpu_nodes),
        network=network,
        nodes_per_gpu_node=ratio,
        bound="memory" if ratio == by_memory else "network",
        source=work.source,
    )


def _request_seconds(made: Plan, ask: Ask, work: _Work) -> float:
    """What a request keeps a GPU node busy: the part of its prompt that is not in the cache, and its answer."""
    assert made.prefill is not None
    assert made.decode is not None
    new = work.prompt * (1 - work.hit)
    return new / (ask.prefill_tps or made.prefill.likely) + work.answer / (ask.decode_tps or made.decode.likely)


def _check(ask: Ask) -> None:
    if ask.agents < 1:
        raise UsageError(f"--agents is {ask.agents}; expected a whole number above 0", "such as --agents 16")
    for name, rate in (("--node-prefill", ask.prefill_tps), ("--node-decode", ask.decode_tps)):
        if rate is not None and not 0 < rate < 1e9:
            raise UsageError(f"{name} is {rate:g}; expected tokens/s above 0", f"such as {name} 5000")
    if not 0 <= ask.hit_rate < 1:
        raise UsageError(f"--hit-rate is {ask.hit_rate:g}; expected 0 up to, but not, 1", "such as --hit-rate 0.95")


def _recorded(ask: Ask) -> _Work:
    """From the curve that was measured on recorded sessions, its tokens scaled to the wanted context."""
    most = AGENT_CURVE[-1][1]
    if ask.hit_rate > most:
        raise UsageError(
            f"--hit-rate {ask.hit_rate:g}: recorded agents hit {most:.1%} with everything kept",
            f"--hit-rate {most:.2f}, or --trace FILE with your own requests",
        )
    scale = ask.context / AGENT_CONTEXT
    origin = "692 recorded coding-agent sessions, their tokens scaled to the context"
    keep, near = _on_curve(ask.hit_rate) * scale, _on_curve(_NEAR * ask.hit_rate) * scale
    return _Work(AGENT_INPUT * scale, AGENT_OUTPUT, AGENT_GAP, keep, near, ask.hit_rate, most, origin)


def _on_curve(wanted: float) -> float:
    """Tokens of a session for a hit rate, between the measured points; below the first one, in proportion."""
    before = (0.0, 0.0)
    for tokens, rate in AGENT_CURVE:
        if wanted <= rate:
            part = (wanted - before[1]) / (rate - before[1])
            return before[0] + part * (tokens - before[0])
        before = (float(tokens), rate)
    return before[0]


def _replayed(trace: Trace, ask: Ask) -> _Work:
    found, best = tokens_for(trace, ask.hit_rate)
    count = len(trace.requests)
    return _Work(
        prompt=trace.tokens_in / count,
        answer=trace.tokens_out / count,
        gap=trace.gap,
        keep=found.tokens / trace.live_sessions,
        near=tokens_for(trace, _NEAR * ask.hit_rate)[0].tokens / trace.live_sessions,
        hit=found.rate,
        most=best.rate,
        source=f"{count:,} requests of the trace, {trace.live_sessions} sessions at once",
    )
