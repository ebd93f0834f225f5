"""Damaged headers end in a HeteroError or in a model, never in anything else; make soak tries it for ten minutes.

What opens in spite of its damage is read as well: a row of every matrix, and all small tensors.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.machine.types import HeteroError
from hetero.models.checkpoint import Checkpoint, open_checkpoint
from tests import quantised as q
from tests.models import damage, gguf_maker
from tests.models.test_quantised import KINDS, ODD, make, write
from tests.tiny import FAMILIES, random_weights, tiny_config, tiny_gguf, tiny_hf

SHORT = 400
CPU_SECONDS = 5.0
MEMORY = 500 << 20
HINTS: dict[str, Any] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "ignore": ["lm_head", "re:.*norm"]},
    "int4": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group"}}},
    },
    "gptq": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"},
    "awq": {"quant_method": "awq", "bits": 4, "zero_point": True},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip
Fuzz = Callable[[Path, int, int], None]


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """No attempt may take seconds of CPU time, nor all of them together much memory."""

    def stop(*_: object) -> None:
        raise AssertionError(f"a header takes more than {CPU_SECONDS:g} s of CPU time")

    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = memory("VmRSS")
    old = signal.signal(signal.SIGVTALRM, stop)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
    assert memory("VmHWM") - before < MEMORY


def memory(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what + ":"))


def attempt(path: Path) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        with open_checkpoint(path) as c:
            read_a_little(c)
    except HeteroError as error:
        assert error.message.isprintable(), error.message
        assert error.hint


def read_a_little(c: Checkpoint) -> None:
    for info in c.index.tensors:
        if info.role == "small":
            c.read_f32(info.name)
        else:
            c.read_rows(info.name, 0 if info.role == "expert" else None, 0, 1)


def fuzz_gguf(original: Path, folder: Path, rounds: int, seed: int) -> None:
    data = original.read_bytes()
    for i in range(rounds):
        damaged = bytearray(data)
        damage.in_bytes(random.Random(seed + i), damaged, 40_000)
        (folder / "fuzzed.gguf").write_bytes(damaged)
        attempt(folder / "fuzzed.gguf")


def fuzz_directory(original: Path, folder: Path, rounds: int, seed: int) -> None:
    names = [p.name for p in original.iterdir()]
    for name in names:
        os.symlink(original / name, folder / name)
    headers = [n for n in names if n.endswith((".safetensors", "index.json")) or n == "config.json"]
    for i in range(rounds):
        rng = random.Random(seed + i)
        name = rng.choice(headers)
        (folder / name).unlink()
        (folder / name).write_bytes(damaged_file(rng, (original / name).read_bytes(), name))
        attempt(folder)
        (folder / name).unlink()
        os.symlink(original / name, folder / name)


def damaged_file(rng: random.Random, data: bytes, name: str) -> bytes:
    if rng.random() < 0.3:
        damaged = bytearray(data)
        damage.in_bytes(rng, damaged, 6000)
        return bytes(damaged)
    if name.endswith(".json"):
        return json.dumps(damage.in_json(rng, json.loads(data))).encode()
    return damage.in_tensors(rng, data)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf("deepseek2", tmp_path_factory.mktemp("gguf") / "m.gguf", type="Q8_0")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hf("qwen3_moe", tmp_path_factory.mktemp("hf"), sharded=True)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    few = ("fp8 128x128", "int4 group 32, zero points", "gptq group 32", "awq group 32", "mxfp4 in int8")
    return quantised_of(few, tmp_path_factory.mktemp("quantised"))


def quantised_of(kinds: Iterable[str], root: Path) -> dict[str, Path]:
    """Quantised safetensors one by one, and in stacks, with what a config.json says of them."""
    found = {}
    for i, kind in enumerate(kinds):
        maker, _, sizes = KINDS[kind]
        said = next((hint for name, hint in HINTS.items() if kind.startswith(name)), {})
        found[kind] = make(root / str(i), maker, sizes, {"quantization_config": dict(said)} if said else None)[0]
    for stack in (q.fused_mxfp4, q.fused_fp8):
        found[stack.__name__] = stacked(root / stack.__name__, stack)
    return found


def stacked(path: Path, stack: q.Make) -> Path:
    config = tiny_config("qwen3moe", **ODD)
    tensors = {n: q.stored(w) for n, w in random_weights("qwen3moe", config).items() if ".experts." not in n}
    for layer in range(2):
        parts = stack(np.random.default_rng(layer), 8, 96, 160)[0]  # type: ignore[call-arg,index]
        tensors |= {f"model.layers.{layer}.mlp.experts.{name}": t for name, t in parts.items()}
    write(path, config, tensors)
    return path


def test_the_undamaged_files_are_read(gguf: Path, directory: Path, quantised: dict[str, Path]) -> None:
    for path in (gguf, directory, *quantised.values()):
        with open_checkpoint(path) as c:
            read_a_little(c)


def test_damaged_headers_of_quantised_files_never_crash_the_reader(
    quantised: dict[str, Path], tmp_path: Path
) -> None:
    with bounded():
        for i, path in enumerate(quantised.values()):
            (tmp_path / str(i)).mkdir()
            fuzz_directory(path, tmp_path / str(i), SHORT // len(quantised), i * SHORT)


def test_damaged_gguf_headers_never_crash_the_reader(gguf: Path, tmp_path: Path) -> None:
    with bounded():
        fuzz_gguf(gguf, tmp_path, SHORT, 0)


def test_damaged_safetensors_and_configs_never_crash_the_reader(directory: Path, tmp_path: Path) -> None:
    with bounded():
        fuzz_directory(directory, tmp_path, SHORT, 0)


@pytest.mark.parametrize("value", [None, True, "x", [], {}, -1, 0, 1e308, 2**70, [1] * 1000, {"a": {"b": []}}])
def test_any_value_in_any_config_key_is_refused_or_understood(directory: Path, tmp_path: Path, value: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    for name in (p.name for p in directory.iterdir() if p.name != "config.json"):
        os.symlink(directory / name, tmp_path / name)
    with bounded():
        for key in config:
            (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
            attempt(tmp_path)


def sources(tmp_path: Path) -> dict[str, Fuzz]:
    """Every family's directory, every quantised kind, and GGUF files of several architectures and types."""
    (tmp_path / "quantised").mkdir()
    quantised = quantised_of(KINDS, tmp_path / "quantised")
    found: dict[str, Fuzz] = {f"quantised {kind}": partial(fuzz_directory, path) for kind, path in quantised.items()}
    for name in FAMILIES:
        found[name] = partial(fuzz_directory, tiny_hf(name, tmp_path / "families", sharded=name.startswith("q")))
    for arch in ("llama", "qwen3moe", "deepseek2"):
        found[f"gguf {arch}"] = partial(fuzz_gguf, tiny_gguf(arch, tmp_path / f"{arch}.gguf", type="Q8_0"))
    for kind in ("Q4_K", "MXFP4", "IQ2_XXS", "NVFP4"):
        shape = gguf_maker.Shape(gate=kind, up=kind, down="Q6_K")
        found[f"gguf {kind}"] = partial(fuzz_gguf, gguf_maker.write(tmp_path / f"{kind}.gguf", shape))
    return found


@pytest.mark.soak
def test_ten_minutes_of_damaged_headers(tmp_path: Path) -> None:
    fuzzers = sources(tmp_path)
    stop, seed, count = time.monotonic() + 600, SHORT, 0
    with bounded():
        while time.monotonic() < stop:
            for name, fuzz in fuzzers.items():
                folder = tmp_path / f"{name} {seed}"
                folder.mkdir()
                fuzz(folder, 50, seed)
                shutil.rmtree(folder)
                count += 50
            seed += 50
    print(f"{count} damaged headers of {len(fuzzers)} files")
