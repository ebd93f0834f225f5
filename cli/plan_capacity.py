"""`hetero plan --agents`: the memory that many agents' contexts need, in tokens, bytes and nodes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hetero.cli import output, wording
from hetero.cli.plan_view import lines
from hetero.cli.planned import Asked
from hetero.machine import quantities
from hetero.machine.advice import Case
from hetero.machine.units import size_text

if TYPE_CHECKING:
    from hetero.machine.capacity import Ask, Capacity

_HIT = 0.95
_NODE_MEMORY = 1 << 40
_NODE_NETWORK = 25e9


def show(case: Case, asked: Asked, as_json: bool) -> None:
    """Print the capacity, or one JSON object. Raises UsageError for what cannot be had."""
    from hetero.machine.capacity import Ask, capacity
    from hetero.machine.traces import read_trace, replay

    made = case.plan()
    trace = None if asked.trace is None else read_trace(asked.trace)
    hit = asked.hit_rate
    if hit is None:
        # A trace has a best of its own; a hundredth below it is the knee of every curve that was seen.
        hit = _HIT if trace is None else round(max(0.0, replay(trace, None).rate - 0.01), 3)
    ram = _NODE_MEMORY if asked.node_ram is None else quantities.parse_bytes(asked.node_ram, "--node-ram")
    net = _NODE_NETWORK if asked.node_net is None else quantities.parse_rate(asked.node_net, "--node-net")
    agents = 1 if asked.agents is None else asked.agents
    ask = Ask(agents, made.context, hit, ram, net, asked.node_prefill, asked.node_decode)
    found = capacity(case.index, made, ask, trace)
    if as_json:
        body = {"model": case.index.name, "agents": ask.agents, "context": made.context}
        output.json_result("hetero.plan.capacity", body | dataclasses.asdict(found))
        return
    output.table(_rows(found, ask))
    output.result("")
    lines("answer", f"{found.nodes_per_gpu_node:.2g} CPU KV nodes per GPU node")
    output.note(f"work of an agent: {found.source}")
    for text in made.notes:
        output.note(text)


def _rows(found: Capacity, ask: Ask) -> list[tuple[str, str]]:
    agents = wording.plural(ask.agents, "agent")
    return [
        ("KV cache", f"{size_text(found.kv_bytes_per_token)} a token, {size_text(found.context_bytes)} a context"),
        ("to keep", f"{found.tokens_per_agent:,} tokens an agent for a hit rate of {found.hit_rate:.1%}"),
        ("", f"{size_text(found.bytes)} for {agents}: {size_text(found.dram_bytes)} of DRAM, the rest on SSDs"),
        ("everything", f"kept would hit {found.most_hit_rate:.1%}"),
        ("prefill", f"{found.new_tokens:,.0f} of {found.prompt_tokens:,.0f} tokens a request are computed"),
        ("leverage", f"{found.leverage:.0f} times less prefill work than without a cache"),
        ("a request", f"{found.request_seconds:.3g} s of a GPU node"),
        ("GPU nodes", f"{found.gpu_nodes:,}, each for {found.agents_per_gpu_node:.1f} agents"),
        ("KV nodes", f"{found.kv_nodes:,} of {size_text(ask.node_memory)} (Mooncake), bound by {found.bound}"),
        ("network", f"{found.network / 1e9:.2f} GB/s of hits for one GPU node at work"),
    ]
