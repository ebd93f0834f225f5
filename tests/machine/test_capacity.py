"""Replayed traces against caches worked out by hand, recorded hit rates, and the count of nodes."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hetero.machine.capacity import AGENT_CURVE, Ask, capacity
from hetero.machine.plan import plan
from hetero.machine.traces import Request, Trace, read_trace, replay, tokens_for
from hetero.machine.types import PlanRequest, TierError, UsageError
from tests.machine.test_plan import MACHINE, MLA_KV, moe_index

ASK = Ask(agents=8, context=148_000, hit_rate=0.951, node_memory=1 << 40, node_network=25e9)


def trace_of(*prompts: tuple[int, ...]) -> Trace:
    """One request a prompt, each block of 10 tokens."""
    made = [Request(float(i), 10 * len(p), 5, tuple((0, b) for b in p)) for i, p in enumerate(prompts)]
    return Trace(tuple(made), 1, 10, 0.0)


def test_a_hit_is_the_prefix_up_to_the_first_absent_block() -> None:
    trace = trace_of((1, 2, 3), (1, 2, 9), (7, 2, 3))
    # 3 + 3 + 3 blocks; the second finds two, the third none, though it holds blocks that are there.
    assert replay(trace, None).rate == pytest.approx(2 / 9)


def test_the_ends_of_prefixes_are_dropped_first() -> None:
    trace = trace_of((1, 2, 3), (5, 6), (1, 2, 3))
    # Four blocks: 3 goes when 5 and 6 come, so the last request finds 1 and 2.
    assert replay(trace, 40).rate == pytest.approx(2 / 8)
    assert replay(trace, 30).rate == pytest.approx(1 / 8)
    assert replay(trace, 20).rate == 0


def test_a_partial_last_block_counts_no_more_than_its_tokens() -> None:
    full = trace_of((1, 2), (1, 2))
    short = replace(full, requests=tuple(replace(r, tokens_in=15) for r in full.requests))
    assert replay(short, None).rate == pytest.approx(15 / 30)


def test_the_smallest_cache_for_a_hit_rate_is_found() -> None:
    trace = trace_of(*[(i, 100 + i) for i in range(50)] * 4)
    found, best = tokens_for(trace, 0.7)
    assert best.rate == pytest.approx(0.75)
    assert best.tokens == 1000
    # The cyclic order makes a smaller cache useless.
    assert found.tokens == 1000
    with pytest.raises(UsageError, match=r"75\.0% with everything kept"):
        tokens_for(trace, 0.8)


def write(path: Path, *entries: Any) -> Path:
    text = "".join(json.dumps(e) + "\n" for e in entries)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def session(**changes: Any) -> dict[str, Any]:
    first = {"t": 0.0, "in": 1024, "out": 10, "hash_ids": list(range(1, 17))}
    inner = {"t": 1.0, "in": 512, "out": 5, "hash_ids": list(range(1, 9))}
    agent = {"t": 4.0, "type": "subagent", "requests": [inner]}
    last = {"t": 9.0, "in": 1536, "out": 20, "hash_ids": list(range(1, 25))}
    return {"block_size": 64, "requests": [first, agent, last]} | changes


def test_sessions_are_read_with_their_sub_agents_in_larger_blocks(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "s.jsonl.gz", session(), session()))
    assert trace.live_sessions == 2
    assert [r.at for r in trace.requests] == [0.0, 0.0, 5.0, 5.0, 9.0, 9.0]
    # Eight blocks of 64 make one of 512, named by its last; sessions share nothing.
    assert trace.requests[0].blocks == ((0, 8), (0, 16))
    assert trace.requests[1].blocks == ((1, 8), (1, 16))
    assert replay(trace, None).rate == pytest.approx((512 + 1024) / (1024 + 512 + 1536))
    assert trace.gap == pytest.approx(4.5)


def test_mooncake_lines_are_read_in_their_order(tmp_path: Path) -> None:
    line = {"timestamp": 500, "input_length": 600, "output_length": 7, "hash_ids": [3, 4]}
    trace = read_trace(write(tmp_path / "m.jsonl", line, line | {"timestamp": 400}))
    assert [r.at for r in trace.requests] == [0.5, 0.4]
    assert replay(trace, None).rate == pytest.approx(600 / 1200)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n",
        b"{}\n",
        b"[1]\n",
        b"{\n",
        b'{"timestamp": 1, "input_length": 2, "output_length": 3}\n',
        b'{"requests": [{"t": 0}], "block_size": 64}\n',
        b'{"requests": 5, "block_size": 64}\n',
        b'{"timestamp": "x", "input_length": 2, "output_length": 3, "hash_ids": []}\n',
        b'{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": []}\n{"requests": [], "block_size": 9}\n',
    ],
)
def test_what_is_no_trace_is_a_usage_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=r"t\.jsonl"):
        read_trace(path)


def test_a_damaged_archive_is_a_disk_failure_and_a_missing_file_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl.gz", session())
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(TierError):
        read_trace(path)
    with pytest.raises(UsageError, match="no such file"):
        read_trace(tmp_path / "absent")


def test_capacity_follows_the_recorded_curve() -> None:
    index = moe_index()
    made = plan(index, MACHINE, PlanRequest())
    found = capacity(index, made, ASK)
    assert found.kv_bytes_per_token == 2 * MLA_KV
    assert found.tokens_per_agent == 125_000
    assert found.bytes == 8 * 125_000 * 2 * MLA_KV
    assert found.dram_bytes < found.bytes
    assert found.leverage == pytest.approx(1 / (1 - 0.951))
    half = capacity(index, made, replace(ASK, context=74_000))
    assert half.tokens_per_agent == 62_500


def test_nodes_are_counted_from_work_and_memory() -> None:
    index = moe_index()
    made = plan(index, MACHINE, PlanRequest())
    ask = replace(ASK, prefill_tps=1000.0, decode_tps=44.0, node_memory=1 << 30)
    found = capacity(index, made, ask)
    seconds = 118_000 * (1 - 0.951) / 1000 + 440 / 44
    assert found.request_seconds == pytest.approx(seconds)
    assert found.agents_per_gpu_node == pytest.approx((seconds + 40) / seconds)
    ratio = found.agents_per_gpu_node * 125_000 * 2 * MLA_KV / (0.85 * (1 << 30))
    assert found.nodes_per_gpu_node == pytest.approx(ratio)
    assert found.bound == "memory"
    slow = capacity(index, made, replace(ask, node_network=1e3))
    assert slow.bound == "network"
    assert slow.nodes_per_gpu_node > ratio


@pytest.mark.parametrize("change", [{"agents": 0}, {"hit_rate": 1.0}, {"hit_rate": -0.1}, {"hit_rate": 0.99}])
def test_what_cannot_be_had_is_a_usage_error(change: dict[str, Any]) -> None:
    index = moe_index()
    with pytest.raises(UsageError):
        capacity(index, plan(index, MACHINE, PlanRequest()), replace(ASK, **change))
    with pytest.raises(UsageError, match="--node-prefill"):
        capacity(index, plan(index, MACHINE, PlanRequest()), replace(ASK, prefill_tps=-1.0))


def test_the_recorded_curve_rises() -> None:
    assert sorted(AGENT_CURVE) == list(AGENT_CURVE)
    assert [rate for _, rate in AGENT_CURVE] == sorted(rate for _, rate in AGENT_CURVE)
