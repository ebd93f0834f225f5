"""kt-kernel's GGUF expert layer on the CPU, for bench.peers: python -m bench.kt_worker Q4_K --threads N --layer H,I,E,K

Runs in a virtual environment of its own that holds PyPI's kt-kernel and torch. kt-kernel's Python interface wants a
GPU, so its extension is driven directly, as kt-kernel's own tests do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib import metadata
from typing import Any

import torch
from kt_kernel import kt_kernel_ext as kt

from bench.shapes import Layer
from bench.worker import serve

_BLOCKS = {"Q4_0": (32, 18), "Q8_0": (32, 34), "Q4_K": (256, 144)}
_LAYERS = 4
"""Layers used in turn, so that no layer's weights stay in a cache."""
_MAX_TOKENS = 512


class ExpertLayer:
    """A few equal layers of random weights in one format of GGUF."""

    def __init__(self, fmt: str, layer: Layer, threads: int) -> None:
        self._layer = layer
        self._cpu = kt.CPUInfer(threads)
        size = layer.experts * layer.hidden * layer.inter
        self._weights = [_rows(fmt, size) for _ in ("gate", "up", "down")]
        self._moes = [self._load(fmt, index) for index in range(_LAYERS)]

    def _load(self, fmt: str, index: int) -> Any:
        layer = self._layer
        config = kt.moe.MOEConfig(layer.experts, layer.top_k, layer.hidden, layer.inter, 0)
        config.layer_idx, config.max_len, config.pool = index, _MAX_TOKENS, self._cpu.backend_
        config.gate_proj, config.up_proj, config.down_proj = (part.data_ptr() for part in self._weights)
        # The values of kt-kernel's own LlamafileMoEWrapper.
        config.m_block, config.group_min_len, config.group_max_len = 32, 10, _MAX_TOKENS
        kinds = kt.kvcache.ggml_type
        config.gate_type = config.up_type = config.down_type = getattr(kinds, fmt)
        config.hidden_type = kinds.BF16
        moe = kt.moe.MOE(config)
        order = torch.arange(layer.experts, dtype=torch.int64)
        self._cpu.submit(moe.load_weights_task(order.data_ptr()))
        self._cpu.sync()
        return moe

    def layer(self, tokens: int, seconds: float) -> float:
        """Median seconds of the layer for `tokens` tokens on random experts, over calls of at least `seconds`."""
        shape, top_k = self._layer, self._layer.top_k
        draw = torch.Generator().manual_seed(tokens)
        ids = torch.rand(tokens, shape.experts, generator=draw).topk(top_k, 1).indices.contiguous()
        weights = torch.full((tokens, top_k), 1 / top_k)
        x = torch.randn(tokens, shape.hidden, generator=draw).bfloat16()
        out, count = torch.zeros_like(x), torch.tensor([tokens], dtype=torch.int32)
        pointers = (count.data_ptr(), top_k, ids.data_ptr(), weights.data_ptr(), x.data_ptr(), out.data_ptr())
        times: list[float] = []
        while sum(times) < seconds or len(times) < 2 * _LAYERS:
            moe = self._moes[len(times) % _LAYERS]
            began = time.perf_counter()
            self._cpu.submit(moe.forward_task(*pointers, False))
            self._cpu.sync()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def about(self) -> dict[str, Any]:
        """Version of what is measured."""
        return {"version": metadata.version("kt-kernel")}


def _rows(fmt: str, values: int) -> torch.Tensor:
    """Random codes with small constant scales, uint8 [blocks, block bytes]."""
    block, size = _BLOCKS[fmt]
    raw = torch.randint(0, 256, (values // block, size), dtype=torch.uint8)
    raw[:, 0:2] = torch.full((1, 1), 2e-4, dtype=torch.float16).view(torch.uint8)
    if fmt == "Q4_K":
        raw[:, 2:4] = torch.full((1, 1), 1.5e-3, dtype=torch.float16).view(torch.uint8)
    return raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=list(_BLOCKS))
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--layer", type=Layer.parse, required=True)
    args = parser.parse_args()
    part = ExpertLayer(args.format, args.layer, args.threads)
    serve({"layer": part.layer, "about": part.about})


if __name__ == "__main__":
    main()
