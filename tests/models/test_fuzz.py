"""Damaged headers end in a HeteroError or in a model, never in anything else: a short form here, hours in make soak."""

import json
import os
import random
import time

import pytest

from hetero.machine.types import HeteroError
from hetero.models.checkpoint import open_checkpoint
from tests.models.test_quantised import KINDS, make
from tests.tiny import tiny_gguf, tiny_hf

SHORT = 400


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return tiny_gguf("deepseek2", tmp_path_factory.mktemp("gguf") / "m.gguf", type="Q8_0")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_hf("qwen3_moe", tmp_path_factory.mktemp("hf"), sharded=True)


def mutate(rng: random.Random, data: bytearray, limit: int) -> None:
    """A few random edits within the first `limit` bytes: flipped bits, extreme integers, cuts and repeats."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(limit, len(data)))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + 8] = rng.choice([0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1]).to_bytes(8, "little")
        elif kind == 2:
            del data[at : at + rng.randrange(1, 64)]
        elif kind == 3:
            data[at:at] = data[at : at + rng.randrange(1, 64)]
        else:
            data[at] = rng.randrange(256)
        if not data:
            data += b"G"


def attempt(path) -> None:
    try:
        open_checkpoint(path).close()
    except HeteroError as error:
        assert "\n" not in error.message, error.message
        assert error.hint


def fuzz_gguf(gguf, tmp_path, rounds, seed=0):
    original = gguf.read_bytes()
    target = tmp_path / "fuzzed.gguf"
    for i in range(rounds):
        data = bytearray(original)
        mutate(random.Random(seed + i), data, 40_000)
        target.write_bytes(data)
        attempt(target)


def fuzz_directory(directory, tmp_path, rounds, seed=0):
    names = [p.name for p in directory.iterdir()]
    for name in names:
        os.symlink(directory / name, tmp_path / name)
    headers = [n for n in names if n.endswith((".safetensors", "index.json")) or n == "config.json"]
    for i in range(rounds):
        rng = random.Random(seed + i)
        name = rng.choice(headers)
        data = bytearray((directory / name).read_bytes())
        mutate(rng, data, 6000)
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(data)
        attempt(tmp_path)
        (tmp_path / name).unlink()
        os.symlink(directory / name, tmp_path / name)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    root = tmp_path_factory.mktemp("quantised")
    kinds = ("fp8 128x128", "int4 group 32, zero points", "gptq group 32", "mxfp4 in int8")
    return [make(root / str(i), KINDS[kind][0], KINDS[kind][2])[0] for i, kind in enumerate(kinds)]


def test_damaged_headers_of_quantised_files_never_crash_the_reader(quantised, tmp_path):
    for i, path in enumerate(quantised):
        (tmp_path / str(i)).mkdir()
        fuzz_directory(path, tmp_path / str(i), SHORT // 4)


def test_damaged_gguf_headers_never_crash_the_reader(gguf, tmp_path):
    fuzz_gguf(gguf, tmp_path, SHORT)


def test_damaged_safetensors_and_configs_never_crash_the_reader(directory, tmp_path):
    fuzz_directory(directory, tmp_path, SHORT)


@pytest.mark.parametrize("value", [None, True, "x", [], {}, -1, 0, 1e308, 2**70, [1] * 1000, {"a": {"b": []}}])
def test_any_value_in_any_config_key_is_refused_or_understood(directory, tmp_path, value):
    config = json.loads((directory / "config.json").read_text())
    for name in (p.name for p in directory.iterdir() if p.name != "config.json"):
        os.symlink(directory / name, tmp_path / name)
    for key in config:
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        attempt(tmp_path)


@pytest.mark.soak
def test_ten_minutes_of_damaged_headers(gguf, directory, quantised, tmp_path):
    stop, seed = time.monotonic() + 600, SHORT
    while time.monotonic() < stop:
        quantised_ones = [(f"q{i}", fuzz_directory, path) for i, path in enumerate(quantised)]
        for name, fuzz, source in (("g", fuzz_gguf, gguf), ("d", fuzz_directory, directory), *quantised_ones):
            folder = tmp_path / f"{name}{seed}"
            folder.mkdir()
            fuzz(source, folder, 200, seed)
        seed += 200
