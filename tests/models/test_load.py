"""Weights survive packing bit for bit, and a store loads to the same model as its checkpoint."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

import numpy as np
import pytest

from hetero.machine.types import ModelError
from hetero.models.convert import convert
from hetero.models.iquants import kept_format, repack
from hetero.models.load import Model, load_model, open_model
from hetero.models.store import Store
from hetero.native import Kernels
from tests.models.gguf_maker import ALL_FORMATS, REPACKED, Shape, write
from tests.tiny import tiny_gguf, tiny_hf


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels("generic")


def load(path: Path, kernels: Kernels) -> Model:
    source = open_model(path)
    try:
        return load_model(source, kernels)
    finally:
        source.close()


def facts(model: Model) -> list[tuple[object, ...]]:
    return sorted((t.name, t.shape, t.format, t.role) for t in model.index.tensors)


def unpacked_expert(model: Model, layer: int, expert: int) -> tuple[np.ndarray, ...]:
    bank = model.banks[layer]
    data = bank.data[expert * bank.stride : (expert + 1) * bank.stride]
    formats = (bank.gate_format, bank.up_format, bank.down_format)
    return tuple(model.kernels.unpack_expert(data, *formats, bank.hidden, bank.inter))


@pytest.mark.parametrize("format", ALL_FORMATS)
def test_codes_come_back_out_of_a_store_bit_for_bit(tmp_path: Path, kernels: Kernels, format: str) -> None:
    shape = Shape(layers=1, experts=3, gate=format, up=format, down=format, dense=format)
    convert(write(tmp_path / "m.gguf", shape), experts="keep", kernels=kernels)
    model = load(tmp_path / "m.hetero", kernels)
    for expert in range(shape.experts):
        for part, rows in zip(("gate", "up", "down"), unpacked_expert(model, 0, expert), strict=True):
            raw = shape.raw[f"blk.0.ffn_{part}_exps.weight"].reshape(shape.experts, 256, -1)[expert]
            assert np.array_equal(rows, raw), (part, expert)
    for ours, theirs in (("model.embed_tokens", "token_embd"), ("model.layers.0.self_attn.k_proj", "blk.0.attn_k")):
        matrix = model.matrices[f"{ours}.weight"]
        rows = kernels.unpack(matrix.format, matrix.data, matrix.n, matrix.k)
        assert np.array_equal(rows, shape.raw[f"{theirs}.weight"])


@pytest.mark.parametrize("format", REPACKED)
def test_formats_that_kernels_lack_are_held_as_the_nearest_kept_one(
    tmp_path: Path, kernels: Kernels, format: str
) -> None:
    shape = Shape(layers=1, experts=2, gate=format, up="Q4_0", down=format, dense=format)
    report = convert(write(tmp_path / "m.gguf", shape), experts="keep", kernels=kernels)
    assert len(report.notes) == 1
    assert f"{format} weights are held as {kept_format(format)}" in report.notes[0]
    model = load(tmp_path / "m.hetero", kernels)
    for expert in range(shape.experts):
        down = shape.raw["blk.0.ffn_down_exps.weight"].reshape(shape.experts, 256, -1)[expert]
        assert np.array_equal(unpacked_expert(model, 0, expert)[2], repack(format, down)[1])
    same_after_conversion(tmp_path / "m.gguf", kernels)


def test_store_and_checkpoint_load_to_the_same_model(tmp_path: Path, kernels: Kernels) -> None:
    shape = Shape(gate="Q4_K", up="Q5_0", down="Q6_K")
    same_after_conversion(write(tmp_path / "m.gguf", shape), kernels)


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "deepseek2"])
def test_every_gguf_architecture_loads_alike_from_its_store(tmp_path: Path, kernels: Kernels, arch: str) -> None:
    same_after_conversion(tiny_gguf(arch, tmp_path / f"{arch}.gguf"), kernels)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe_plain_topk", "deepseek_v2_lite", "kimi_k2"])
def test_every_hub_family_loads_alike_from_its_store(tmp_path: Path, kernels: Kernels, family: str) -> None:
    same_after_conversion(tiny_hf(family, tmp_path, sharded=True, dtype="bfloat16"), kernels)


def same_after_conversion(path: Path, kernels: Kernels) -> None:
    """Asserts that the checkpoint and its store load to the same weights, configuration and text."""
    packed = load(path, kernels)
    stored = load(convert(path, kernels=kernels).path, kernels)
    assert packed.fingerprint == stored.fingerprint
    assert packed.config == stored.config
    assert facts(stored) == facts(packed)
    assert packed.matrices.keys() == stored.matrices.keys()
    for name, matrix in packed.matrices.items():
        assert np.array_equal(matrix.data, stored.matrices[name].data), name
        assert matrix.shape == stored.matrices[name].shape
    for layer, bank in packed.banks.items():
        assert np.array_equal(bank.data, stored.banks[layer].data)
    assert packed.small.keys() == stored.small.keys()
    for name, values in packed.small.items():
        assert np.array_equal(values, stored.small[name])
    assert packed.text.tokenizer.encode("the thing") == stored.text.tokenizer.encode("the thing")
    assert packed.text.stop_ids == stored.text.stop_ids
    assert packed.text.generation == stored.text.generation
    assert (packed.text.template is None) == (stored.text.template is None)


def test_tied_head_is_the_embedding(tmp_path: Path, kernels: Kernels) -> None:
    path = write(tmp_path / "m.gguf", Shape(layers=1, tied=True))
    convert(path, experts="keep", kernels=kernels)
    for source in (path, tmp_path / "m.hetero"):
        model = load(source, kernels)
        assert model.matrices["lm_head.weight"] is model.matrices["model.embed_tokens.weight"]


def test_fingerprint_tells_one_changed_weight(tmp_path: Path, kernels: Kernels) -> None:
    path = write(tmp_path / "m.gguf", Shape(layers=1))
    before = load(path, kernels).fingerprint
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the last code of the last down matrix
    path.write_bytes(data)
    assert load(path, kernels).fingerprint != before


def test_large_dense_matrix_packs_alike_in_pieces_and_whole(tmp_path: Path, kernels: Kernels) -> None:
    shape = Shape(layers=1, hidden=512, vocab=9001, dense="F32")  # 18 MB: three pieces, the last one ragged
    path = write(tmp_path / "m.gguf", shape)
    matrix = load(path, kernels).matrices["model.embed_tokens.weight"]
    whole = kernels.pack("F32", shape.raw["token_embd.weight"], 9001, 512)
    assert np.array_equal(matrix.data, whole)


def test_progress_counts_up_to_the_total(tmp_path: Path, kernels: Kernels) -> None:
    path = write(tmp_path / "m.gguf", Shape())
    convert(path, experts="keep", kernels=kernels)
    for source in (open_model(path), open_model(tmp_path / "m.hetero")):
        calls: list[tuple[int, int, str]] = []
        load_model(source, kernels, lambda *call, calls=calls: calls.append(call))
        done = [call[0] for call in calls]
        assert done == sorted(done)
        assert done[-1] == calls[-1][1]
        source.close()


@pytest.mark.parametrize(("format", "part"), [("Q4_0", "gate"), ("Q6_K", "down"), ("BF16", "up"), ("F32", "down")])
def test_not_a_number_is_refused_by_name_and_place(tmp_path: Path, kernels: Kernels, format: str, part: str) -> None:
    shape = Shape(layers=1, **{part: format})
    path = write(tmp_path / "m.gguf", shape)
    raw = shape.raw[f"blk.0.ffn_{part}_exps.weight"]
    place = path.read_bytes().index(raw.tobytes()) + 2 * 256 * raw.shape[1]  # expert 2, row 0, block 0
    place += {"Q6_K": 208, "F32": 2}.get(format, 0)
    data = bytearray(path.read_bytes())
    data[place : place + 2] = (0xFFFF).to_bytes(2, "little")
    path.write_bytes(data)
    with pytest.raises(ModelError, match=rf"model\.layers\.0\.mlp\.experts\.{part}\.weight \(expert 2\).*row 0"):
        load(path, kernels)
    with pytest.raises(ModelError, match=r"expert 2"):
        convert(path, experts="keep", kernels=kernels)
    assert not (tmp_path / "m.hetero").exists()


def test_unfinished_conversion_is_not_a_model(tmp_path: Path, kernels: Kernels) -> None:
    path = write(tmp_path / "m.gguf", Shape(layers=2))

    def stop(done: int, total: int, what: str) -> None:
        if "layer 1" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(path, experts="keep", kernels=kernels, progress=stop)
    with pytest.raises(ModelError, match="unfinished"):
        open_model(tmp_path / "m.hetero.tmp")
    assert isinstance(open_model(convert(path, experts="keep", kernels=kernels).path), Store)


@pytest.mark.parametrize("converted", [False, True])
def test_a_system_that_does_not_place_experts_on_their_nodes_is_told(
    tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch, converted: bool
) -> None:
    path = write(tmp_path / "m.gguf", Shape(layers=2, experts=3))
    if converted:
        convert(path, experts="keep", kernels=kernels)
        path = tmp_path / "m.hetero"
    whole = [bank.data.nbytes for bank in load(path, kernels).banks.values()]

    def notes(nodes: tuple[int, ...], placed: list[int]) -> tuple[str, ...]:
        left = list(placed)
        monkeypatch.setattr(Kernels, "place", lambda self, bank, places: left.pop(0))
        with contextlib.closing(open_model(path)) as source:
            return load_model(source, kernels, nodes=nodes).notes

    assert notes((0,), []) == ()
    assert notes((0, 1), [size - 2 * 3 * mmap.PAGESIZE for size in whole]) == ()
    (note,) = notes((0, 1), [whole[0], 0])
    assert note.startswith("only 50% of the experts' memory lies on its nodes 0, 1 as planned")
