"""The options of `hetero plan`, one type each. What they mean is decided in `planned.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def _option(name: str, metavar: str, text: str, *others: str) -> Any:
    return typer.Option(name, *others, metavar=metavar, help=text, show_default=False)


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A card (deepseek-r1), checkpoint, store, config.json, https://….gguf or hf:ORG/REPO.",
        show_default=False,
    ),
]
MachineFile = Annotated[Path | None, _option("--machine", "FILE", "A file of `hetero probe --json`.")]
Ram = Annotated[str | None, _option("--ram", "512G", "Memory that may be used.")]
Vram = Annotated[str | None, _option("--vram", "24G", "The GPU's memory; 0: no GPU.")]
GpuName = Annotated[str | None, _option("--gpu", "NAME", 'The GPU, such as "RTX 5090".')]
Bandwidth = Annotated[str | None, _option("--bandwidth", "400GB/s", "What all cores read of memory.")]
RamSpeed = Annotated[int | None, _option("--ram-speed", "4800", "Memory's MT/s, with --channels.")]
Channels = Annotated[int | None, _option("--channels", "8", "Memory channels of a socket.")]
Pcie = Annotated[str | None, _option("--pcie", "25GB/s", "Copies to the GPU.")]
Isa = Annotated[str | None, _option("--isa", "amx", "generic, avx2, avx512 or amx.")]
Cores = Annotated[int | None, _option("--cores", "36", "Cores of a socket.")]
Sockets = Annotated[int | None, _option("--sockets", "2", "CPU sockets.")]
Ssd = Annotated[str | None, _option("--ssd", "6GB/s", "Reads of the disk.")]
Context = Annotated[str | None, _option("--context", "N", "Tokens of context; 32k is fine.", "-c")]
Experts = Annotated[str | None, _option("--experts", "q4", "Format to count the experts in.")]
Dense = Annotated[str | None, _option("--dense", "q8", "Format to count the dense part in.")]
Reserve = Annotated[str | None, _option("--reserve", "2G", "Memory to leave alone on each device.")]
Depth = Annotated[str | None, _option("--depth", "N", "Decode after N tokens; by default half the context.")]
Prompt = Annotated[str | None, _option("--prompt", "N", "Prompt tokens to read; by default one chunk.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show every formula, its inputs and their origin.")]
TargetTps = Annotated[float | None, _option("--target-tps", "X", "Which change decodes X tokens/s?")]
Sweep = Annotated[str | None, _option("--sweep", "NAME=A..B", "A curve, such as context=4k..128k.")]
Agents = Annotated[int | None, _option("--agents", "N", "Size the KV memory of N agents.")]
HitRate = Annotated[float | None, _option("--hit-rate", "0.95", "Share of prompt tokens to find in the cache.")]
TraceFile = Annotated[Path | None, _option("--trace", "FILE", "Requests to replay, JSON lines.")]
NodeRam = Annotated[str | None, _option("--node-ram", "1T", "Memory of a KV node.")]
NodeNet = Annotated[str | None, _option("--node-net", "25GB/s", "Network of a KV node.")]
NodePrefill = Annotated[float | None, _option("--node-prefill", "X", "Tokens/s of a GPU node, if not this machine.")]
NodeDecode = Annotated[float | None, _option("--node-decode", "X", "The same for decode.")]
History = Annotated[bool, typer.Option("--history", help="Show predicted and measured of earlier runs.")]
NoCalibration = Annotated[bool, typer.Option("--no-calibration", help="Do not scale by what earlier runs here showed.")]
