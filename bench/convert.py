"""How fast `hetero convert` is against what bounds it, for each way that checkpoints store experts.

`make bench-convert` runs it. For each kind a checkpoint of random codes is made and converted in a process of its own.
Two bounds are measured in the same run: writing and syncing a file of the store's size, and copying the weights while
the kernels' `dequantize` decodes them, on all CPUs. A conversion should reach --share of the lower one and need no more
memory than two layers and 300 MB. Ends with 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetero.models.checkpoint import open_checkpoint
from hetero.native import Kernels, choose_tier

ROOT = Path(__file__).resolve().parent.parent
HIDDEN, INTER, EXPERTS, VOCAB = 2048, 1408, 16, 1024
ALLOWED = 300 << 20
_CHUNK = 16 << 20
_CHILD = """
import json, resource, sys, time
from pathlib import Path
from hetero.models.convert import convert
from hetero.native import Kernels
started = time.perf_counter()
report = convert(Path(sys.argv[1]), Path(sys.argv[2]), kernels=Kernels(sys.argv[3]), force=True)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
print(json.dumps({"seconds": seconds, "peak": peak, "store": report.store_bytes}))
"""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor to be written: what repeats in it, or None for random codes."""

    dtype: str
    shape: tuple[int, ...]
    pattern: bytes | None = None

    @property
    def n_bytes(self) -> int:
        size = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I64": 8}.get(self.dtype, 1)
        return int(np.prod(self.shape, dtype=np.int64)) * size


BF16 = b"\x23\x3c"  # 0.01
F16 = b"\x1f\x21"  # 0.01


def _plain(n: int, k: int) -> dict[str, Tensor]:
    return {"weight": Tensor("BF16", (n, k))}


def _fp8(n: int, k: int) -> dict[str, Tensor]:
    scale = Tensor("F32", (-(-n // 128), -(-k // 128)), struct.pack("<f", 1e-3))
    return {"weight": Tensor("F8_E4M3", (n, k)), "weight_scale_inv": scale}


def _int4(n: int, k: int, group: int = 32, zeros: bool = False) -> dict[str, Tensor]:
    out = {"weight_packed": Tensor("I32", (n, k // 8)), "weight_scale": Tensor("BF16", (n, k // group), BF16)}
    out["weight_shape"] = Tensor("I64", (2,), struct.pack("<2q", n, k))
    return out | ({"weight_zero_point": Tensor("I32", (n // 8, k // group))} if zeros else {})


def _mxfp4(n: int, k: int) -> dict[str, Tensor]:
    return {"weight": Tensor("I8", (n, k // 2)), "scale": Tensor("F8_E8M0", (n, k // 32), b"\x70")}


def _gptq(n: int, k: int) -> dict[str, Tensor]:
    return {"qweight": Tensor("I32", (k // 8, n)), **_scales(n, k)}


def _awq(n: int, k: int) -> dict[str, Tensor]:
    return {"qweight": Tensor("I32", (k, n // 8)), **_scales(n, k)}


def _scales(n: int, k: int) -> dict[str, Tensor]:
    return {"qzeros": Tensor("I32", (k // 128, n // 8)), "scales": Tensor("F16", (k // 128, n), F16)}


KINDS: dict[str, Callable[[int, int], dict[str, Tensor]]] = {
    "BF16": _plain,
    "FP8 128 x 128": _fp8,
    "INT4 group 32": _int4,
    "INT4 group 128, zero points": lambda n, k: _int4(n, k, 128, True),
    "MXFP4": _mxfp4,
    "GPTQ": _gptq,
    "AWQ": _awq,
}


def tensors(kind: str, layers: int) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a Qwen3-MoE with `layers` layers whose experts are stored as `kind`."""
    yield "model.embed_tokens.weight", Tensor("BF16", (VOCAB, HIDDEN), BF16)
    yield "lm_head.weight", Tensor("BF16", (VOCAB, HIDDEN), BF16)
    yield "model.norm.weight", Tensor("BF16", (HIDDEN,), BF16)
    for layer in range(layers):
        p = f"model.layers.{layer}."
        for norm, size in (("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN)):
            yield f"{p}{norm}.weight", Tensor("BF16", (size,), BF16)
        for norm in ("q_norm", "k_norm"):
            yield f"{p}self_attn.{norm}.weight", Tensor("BF16", (128,), BF16)
        for name, shape in (("q", (512, HIDDEN)), ("k", (128, HIDDEN)), ("v", (128, HIDDEN)), ("o", (HIDDEN, 512))):
            yield f"{p}self_attn.{name}_proj.weight", Tensor("BF16", shape, BF16)
        yield f"{p}mlp.gate.weight", Tensor("BF16", (EXPERTS, HIDDEN), BF16)
        for e in range(EXPERTS):
            for part, (n, k) in (("gate", (INTER, HIDDEN)), ("up", (INTER, HIDDEN)), ("down", (HIDDEN, INTER))):
                for name, t in KINDS[kind](n, k).items():
                    yield f"{p}mlp.experts.{e}.{part}_proj.{name}", t


def layer_bytes(kind: str) -> int:
    """Bytes of the experts of one layer in the file."""
    return sum(t.n_bytes for name, t in tensors(kind, 1) if ".experts." in name)


def make(kind: str, size: int, folder: Path) -> Path:
    """A checkpoint of about `size` bytes in `folder`."""
    layers = max(2, round(size / layer_bytes(kind)))
    folder.mkdir()
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN}
    config |= {"vocab_size": VOCAB, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 1}
    config |= {"head_dim": 128, "intermediate_size": INTER, "moe_intermediate_size": INTER, "num_experts": EXPERTS}
    config |= {"num_experts_per_tok": 2, "max_position_embeddings": 1024, "quantization_config": {"bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    from tests.tiny_tokenizer import save_tokenizer

    save_tokenizer(folder)
    # No e4m3 NaN, no infinite bfloat16: the highest bit of the exponent stays clear.
    noise = (np.random.default_rng(0).integers(0, 256, 64 << 20, dtype=np.uint8) & 0xBF).tobytes()
    header, offset = {}, 0
    for name, t in tensors(kind, layers):
        header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": (offset, offset + t.n_bytes)}
        offset += t.n_bytes
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw)
        for _, t in tensors(kind, layers):
            f.write(noise[: t.n_bytes] if t.pattern is None else t.pattern * (t.n_bytes // len(t.pattern)))
        f.flush()
        os.fsync(f.fileno())
    return folder


def write_rate(folder: Path, size: int) -> float:
    """Bytes per second of writing and syncing a file of `size` bytes."""
    data = np.random.default_rng(0).integers(0, 256, _CHUNK, dtype=np.uint8)
    path, done, started = folder / "write.bin", 0, time.perf_counter()
    with path.open("wb") as f:
        while done < size:
            done += f.write(data.data)
        f.flush()
        os.fsync(f.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return done / seconds


def decode_rate(source: Path, kernels: Kernels) -> float:
    """Bytes of raw rows per second that all CPUs copy and dequantise together."""
    with open_checkpoint(source) as c:
        info = c.info("model.layers.0.mlp.experts.up.weight")
        rows = [c.read_rows(info.name, e) for e in range(EXPERTS)]

    def work(raw: np.ndarray) -> int:  # type: ignore[type-arg]
        kernels.dequantize(info.format, raw.copy(), len(raw), HIDDEN)
        return raw.nbytes

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = time.perf_counter()
        done = sum(pool.map(work, rows * 2))
        return done / (time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class Row:
    """One kind: bytes of its checkpoint and store, rates in bytes of the checkpoint per second, memory."""

    kind: str
    source: int
    store: int
    rate: float
    write: float
    decode: float
    peak: int
    allowed: int

    @property
    def share(self) -> float:
        """How much of the lower bound was reached."""
        return self.rate / min(self.write, self.decode)


def measure(kind: str, size: int, folder: Path, tier: str) -> Row:
    """Make, convert and bound one kind; nothing is left."""
    source = make(kind, size, folder / "source")
    weights = (source / "model.safetensors").stat().st_size
    command = [sys.executable, "-c", _CHILD, str(source), str(folder / "store.hetero"), tier]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"converting {kind}: {done.stderr}")
        made = json.loads(done.stdout)
        shutil.rmtree(folder / "store.hetero")
        writes = write_rate(folder, made["store"]) * weights / made["store"]
        return Row(
            kind,
            weights,
            made["store"],
            weights / made["seconds"],
            writes,
            decode_rate(source, Kernels(tier)),
            made["peak"],
            2 * layer_bytes(kind) + ALLOWED,
        )
    finally:
        shutil.rmtree(source)


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = ["| experts | checkpoint GB | convert MB/s | disk MB/s | decode MB/s | share | peak MB | allowed MB |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|--:|")
    for r in rows:
        rates = " | ".join(f"{rate / 1e6:,.0f}" for rate in (r.rate, r.write, r.decode))
        memory = f"{r.peak / 1e6:,.0f} | {r.allowed / 1e6:,.0f}"
        lines.append(f"| {r.kind} | {r.source / 1e9:.1f} | {rates} | {r.share:.0%} | {memory} |")
    return "\n".join(lines)


def page(rows: Sequence[Row], tier: str) -> str:
    """docs/benchmarks-convert.md."""
    setup = f"{platform.machine()}, {os.cpu_count()} CPUs, tier {tier}"
    about = f"This file is written by `make bench-convert`; do not edit it. {setup}. Rates are bytes of the checkpoint"
    return "\n".join(
        (
            "# Conversion",
            "",
            about,
            "per second. *disk* is writing and syncing a file of the store's size, *decode* copying the weights while",
            "the kernels' `dequantize` decodes them on all CPUs; *share* is of the lower one. The checkpoint is in the",
            "page cache.",
            "",
            table(rows),
            "",
        )
    )


def main(args: Sequence[str] | None = None) -> int:
    """Measure every kind and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-convert", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--size", type=float, default=8.0, help="GB of a checkpoint")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where to write")
    parser.add_argument("--kinds", default="", help=f"some of {', '.join(KINDS)}; separated by semicolons")
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--publish", action="store_true", help="write docs/benchmarks-convert.md")
    asked = parser.parse_args(args)
    tier = choose_tier(None)
    rows = []
    asked.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for kind in asked.kinds.split(";") if asked.kinds else KINDS:
            print(f"measuring {kind}", file=sys.stderr)
            rows.append(measure(kind, int(asked.size * 1e9), Path(folder), tier))
    print(table(rows))
    if asked.publish:
        (ROOT / "docs" / "benchmarks-convert.md").write_text(page(rows, tier), encoding="utf-8")
    return int(any(r.share < asked.share or r.peak > r.allowed for r in rows))


if __name__ == "__main__":
    sys.exit(main())
