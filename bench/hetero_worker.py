"""hetero on one model, for bench.peers: python -m bench.hetero_worker MODEL --threads N

Also measures the machine's read bandwidth, and with --layer one mixture-of-experts layer instead of a model.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from bench.shapes import Layer
from bench.worker import serve
from hetero.engine import Engine, Sampling, Token
from hetero.machine.cpu import usable_cpus
from hetero.machine.measure_cpu import CpuMeter, Effort
from hetero.native import ExpertBank, Kernels, Pool, allocate, choose_tier, down_offset, expert_bytes

_SET_BYTES = 512 << 20
"""Memory that the bandwidth is measured over: far more than any cache."""
_BANKS = 4
"""Layers used in turn, so that no layer's weights stay in a cache."""


class Bandwidth:
    """Bytes per second of a linear read by all threads."""

    def __init__(self, cpus: tuple[int, ...], tier: str) -> None:
        self._threads = len(cpus)
        self._meter = CpuMeter(cpus, tier, Effort(set_bytes=_SET_BYTES, samples=3))

    def __call__(self) -> float:
        return self._meter.memory(self._threads)[0].rate.value


class Whole:
    """A loaded model."""

    def __init__(self, path: str, context: int, threads: int) -> None:
        self._engine = Engine.load(path, device="cpu", threads=threads, context=context)
        plan = self._engine.plan
        self.cpus, self.tier = plan.cpus, plan.isa_tier

    def prefill(self, ids: list[int]) -> float:
        """Seconds to read a prompt into an empty cache, up to the first token."""
        began = time.perf_counter()
        for _ in self._engine.generate(ids, Sampling(max_tokens=1, ignore_eos=True), reuse=False):
            pass
        return time.perf_counter() - began

    def decode(self, ids: list[int], tokens: int) -> float:
        """Seconds to write `tokens` greedy tokens after the one that the prompt `ids` yields."""
        times = []
        for event in self._engine.generate(ids, Sampling(max_tokens=tokens + 1, ignore_eos=True), reuse=False):
            if isinstance(event, Token):
                times.append(time.perf_counter())
        return times[-1] - times[0]

    def about(self) -> dict[str, Any]:
        """The tier, the model's name and its range of token ids."""
        index = self._engine.model.index
        return {"tier": self.tier, "model": index.name, "tokens": self._engine.text.n_tokens}


class OneLayer:
    """Routed experts of one shape, filled with a constant: products take the same time with any weights."""

    def __init__(self, layer: Layer, fmt: str, threads: int) -> None:
        self.tier = choose_tier(None)
        self.cpus = usable_cpus().cpus[:threads]
        self._layer, self._kernels = layer, Kernels(self.tier)
        self._pool = Pool(self.cpus, self._kernels)
        stride = expert_bytes(fmt, fmt, fmt, layer.hidden, layer.inter)
        offset = down_offset(fmt, fmt, layer.hidden, layer.inter)
        self._banks = []
        for _ in range(_BANKS):
            data = allocate(layer.experts * stride)
            data[:] = 0x11  # a normal number in every format
            self._banks.append(
                ExpertBank(layer.experts, layer.hidden, layer.inter, fmt, fmt, fmt, data, stride, offset)
            )

    def layer(self, tokens: int, seconds: float) -> float:
        """Median seconds of the layer for `tokens` tokens on random experts, over calls of at least `seconds`."""
        rng = np.random.default_rng(tokens)
        chosen = np.argsort(rng.random((tokens, self._layer.experts)), axis=1)[:, : self._layer.top_k]
        ids = np.ascontiguousarray(chosen, dtype=np.int32)
        weights = np.full(ids.shape, 1 / self._layer.top_k, np.float32)
        x = rng.standard_normal((tokens, self._layer.hidden), dtype=np.float32)
        out = np.empty_like(x)
        times: list[float] = []
        while sum(times) < seconds or len(times) < 2 * _BANKS:
            bank = self._banks[len(times) % _BANKS]
            began = time.perf_counter()
            self._kernels.moe(self._pool, bank, x, ids, weights, out)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def about(self) -> dict[str, Any]:
        """The tier."""
        return {"tier": self.tier}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a model, or with --layer a weight format")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--layer", type=Layer.parse, help="hidden,inter,experts,top_k")
    args = parser.parse_args()
    if args.layer:
        part = OneLayer(args.layer, args.model, args.threads)
        serve({"layer": part.layer, "about": part.about, "bandwidth": Bandwidth(part.cpus, part.tier)})
    else:
        whole = Whole(args.model, args.context, args.threads)
        bandwidth = Bandwidth(whole.cpus, whole.tier)
        serve({"prefill": whole.prefill, "decode": whole.decode, "about": whole.about, "bandwidth": bandwidth})


if __name__ == "__main__":
    main()
