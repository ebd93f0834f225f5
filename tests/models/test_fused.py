"""Experts stored in one tensor, in any of the three layouts, are the same model as experts stored one by one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from hetero.machine.types import ModelError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.families import qwen3_moe
from hetero.models.families.common import FusedExperts
from hetero.models.formats import StoredTensor
from hetero.models.fused import fused_biases
from tests import quantised as q
from tests.tiny import random_weights, tiny_config, tiny_gguf

SQUARE = tiny_config("qwen3moe", moe_intermediate_size=32)  # 2I = H: no layout can be told from the shapes
OBLONG = tiny_config("qwen3moe", moe_intermediate_size=48)
LAYOUTS = {
    "rows": FusedExperts(),
    "interleaved rows": FusedExperts(interleaved=True),
    "columns": FusedExperts(transposed=True),
    "interleaved columns": FusedExperts(transposed=True, interleaved=True),
}


def fused(weights: dict[str, Any], layout: FusedExperts, dtype: Any) -> dict[str, Any]:
    """The weights with the experts of each layer in two tensors."""
    out = {n: w for n, w in weights.items() if ".experts." not in n}
    for name in (n for n in weights if n.endswith("experts.gate.weight")):
        stem = name.removesuffix("gate.weight")
        gate, up, down = (weights[f"{stem}{p}.weight"] for p in ("gate", "up", "down"))
        both = np.stack([gate, up], axis=2 if layout.interleaved else 1)  # [E, I, 2, H] or [E, 2, I, H]
        both = both.reshape(gate.shape[0], -1, gate.shape[2])
        if layout.transposed:
            both, down = both.transpose(0, 2, 1), down.transpose(0, 2, 1)
        out[stem + "gate_up_proj"] = np.ascontiguousarray(both.astype(dtype))
        out[stem + "down_proj"] = np.ascontiguousarray(down.astype(dtype))
    return out


def write(path: Path, config: dict[str, Any], weights: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": ["Qwen3MoeForCausalLM"]} | config))
    save_file(weights, path / "model.safetensors")
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("config", [SQUARE, OBLONG], ids=["square", "oblong"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_each_expert_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, config: dict[str, Any], dtype: Any
) -> None:
    monkeypatch.setattr(qwen3_moe, "FUSED_EXPERTS", LAYOUTS[layout])
    weights = random_weights("qwen3moe", config)
    path = write(tmp_path / "m", config, fused(weights, LAYOUTS[layout], dtype))
    with open_checkpoint(path) as c:
        for layer in range(2):
            for part in ("gate", "up", "down"):
                name = f"model.layers.{layer}.mlp.experts.{part}.weight"
                truth = weights[name].astype(dtype)
                assert c.info(name).shape == truth.shape
                assert c.read_rows(name).tobytes() == truth.tobytes()
                for expert in (0, 3, 7):
                    assert c.read_rows(name, expert).tobytes() == truth[expert].tobytes()
                assert c.read_rows(name, 5, 3, 9).tobytes() == truth[5, 3:9].tobytes()
                flat = truth.reshape(-1, truth.shape[2])
                assert c.read_rows(name, start=30, stop=70).tobytes() == flat[30:70].tobytes()
                assert c.read_rows(name, 5, 4, 4).shape[0] == 0


def counted(inner: Any, sizes: list[int], tensor: StoredTensor, skip: int, out: Any) -> None:
    sizes.append(out.nbytes)
    inner(tensor, skip, out)


def test_one_expert_is_read_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for layout in LAYOUTS:
        monkeypatch.setattr(qwen3_moe, "FUSED_EXPERTS", LAYOUTS[layout])
        path = write(tmp_path / layout, OBLONG, fused(random_weights("qwen3moe", OBLONG), LAYOUTS[layout], np.float32))
        with open_checkpoint(path) as c:
            sizes: list[int] = []
            monkeypatch.setattr(c, "read_stored", partial(counted, c.read_stored, sizes))
            rows = c.read_rows("model.layers.0.mlp.experts.gate.weight", 2)
            assert rows.nbytes <= sum(sizes) < 2 * rows.nbytes


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_a_layout_that_the_family_has_not_declared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    other = "columns" if layout == "rows" else "rows"
    monkeypatch.setattr(qwen3_moe, "FUSED_EXPERTS", LAYOUTS[other])
    path = write(tmp_path / "m", OBLONG, fused(random_weights("qwen3moe", OBLONG), LAYOUTS[layout], np.float32))
    with pytest.raises(ModelError, match=r"gate_up_proj' of shape .* gives .* expected \[8, 48, 64\]"):
        open_checkpoint(path)
    monkeypatch.setattr(qwen3_moe, "FUSED_EXPERTS", None)
    with pytest.raises(ModelError, match=r"no place in this architecture: .*'model.layers.0.mlp.experts.gate_up_proj'"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("shape", "words"),
    [((8, 97, 64), "97 rows of gate and up; expected an even"), ((8, 64), r"expected \[experts, rows, columns\]")],
)
def test_impossible_stacks_are_named(tmp_path: Path, shape: tuple[int, ...], words: str) -> None:
    weights = fused(random_weights("qwen3moe", OBLONG), FusedExperts(), np.float32)
    weights["model.layers.1.mlp.experts.gate_up_proj"] = np.zeros(shape, np.float32)
    with pytest.raises(ModelError, match=words) as caught:
        open_checkpoint(write(tmp_path / "m", OBLONG, weights))
    assert "'model.layers.1.mlp.experts.gate_up_proj'" in caught.value.message


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"": "F8_E4M3"}, "has 0 tensors of scales; expected one"),
        ({"": "F8_E4M3", "_scale": "F32", "_scale_inv": "F32"}, "has 2 tensors of scales; expected one"),
        ({"": "I8", "_scale": "F8_E8M0"}, "gate_up_proj' (I8) and '"),
        ({"": "F64"}, "gate_up_proj' (F64); this version reads F32, F16, BF16, FP8"),
        ({"": "BF16", "_scale": "F32"}, "(BF16) and '"),
    ],
)
def test_stacks_of_other_codes_are_named(tmp_path: Path, parts: dict[str, str], words: str) -> None:
    size = {"F8_E4M3": 1, "I8": 1, "F64": 8, "BF16": 2, "F32": 4, "F8_E8M0": 1}
    tensors = {n: q.stored(w) for n, w in random_weights("qwen3moe", OBLONG).items() if ".experts." not in n}
    for suffix, dtype in parts.items():
        shape = (8, 1, 1) if suffix else (8, 96, 64)
        data = bytes(size[dtype] * shape[0] * shape[1] * shape[2])
        tensors[f"model.layers.0.mlp.experts.gate_up_proj{suffix}"] = q.Stored(dtype, shape, data)
    path = write(tmp_path / "m", OBLONG, {"x": np.zeros(1, np.float32)})
    q.write_safetensors(path / "model.safetensors", tensors)
    with pytest.raises(ModelError) as caught:
        open_checkpoint(path)
    assert words in caught.value.message
    assert "model.safetensors" in caught.value.message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_biases_follow_their_rows(layout: str) -> None:
    gate, up = np.arange(15, dtype=np.float32).reshape(3, 5), 100 + np.arange(15, dtype=np.float32).reshape(3, 5)
    both = np.stack([gate, up], axis=2 if LAYOUTS[layout].interleaved else 1).reshape(3, 10)
    stored = StoredTensor("gate_up_proj_bias", (3, 10), "F32", 0, 0, both.nbytes)
    raw = both.reshape(-1).view(np.uint8)

    def read(tensor: StoredTensor, skip: int, out: Any) -> None:
        out.reshape(-1)[:] = raw[skip : skip + out.nbytes]

    parts = fused_biases(stored, "gate_up", LAYOUTS[layout], Path("m"))
    for name, truth in (("gate", gate), ("up", up)):
        shape, (matrix,) = parts[name]
        assert shape == (3, 5)
        assert matrix.rows(read, 0, 3).tobytes() == truth.tobytes()
        assert matrix.rows(read, 1, 2).tobytes() == truth[1:2].tobytes()


def test_renamed_tensors_are_found_and_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = ((r"^language_model\.", ""), (r"\.block_sparse_moe\.", ".mlp."), (r"\.w3\.", ".up_proj."))
    rules += ((r"(\.experts\.\d+)\.w1\.", r"\1.gate_proj."), (r"(\.experts\.\d+)\.w2\.", r"\1.down_proj."))
    monkeypatch.setattr(qwen3_moe, "RENAME_HF", rules)
    weights = random_weights("qwen3moe", OBLONG)
    stored = {}
    for name, w in weights.items():
        if ".experts." in name:
            stem, part, _ = name.replace(".mlp.", ".block_sparse_moe.").rsplit(".", 2)
            w_name = {"gate": "w1", "up": "w3", "down": "w2"}[part]
            stored |= {f"language_model.{stem}.{e}.{w_name}.weight": np.ascontiguousarray(w[e]) for e in range(8)}
        else:
            stored["language_model." + name] = w
    path = write(tmp_path / "m", OBLONG, stored)
    with open_checkpoint(path) as c:
        for name, w in weights.items():
            assert c.read_rows(name).tobytes() == w.tobytes()
    stored["model.norm.weight"] = stored["language_model.model.norm.weight"]
    save_file(stored, path / "model.safetensors")
    with pytest.raises(ModelError, match=r"'(language_model\.)?model.norm.weight' are the same tensor"):
        open_checkpoint(path)


def test_experts_both_stacked_and_single_are_refused(tmp_path: Path) -> None:
    weights = fused(random_weights("qwen3moe", OBLONG), FusedExperts(), np.float32)
    weights["model.layers.0.mlp.experts.3.up_proj.weight"] = np.zeros((48, 64), np.float32)
    with pytest.raises(ModelError, match=r"experts.3.up_proj.weight' and .*gate_up_proj' are the same"):
        open_checkpoint(write(tmp_path / "m", OBLONG, weights))


def test_gguf_with_gate_and_up_in_one_tensor(tmp_path: Path) -> None:
    plain = tiny_gguf("qwen3moe", tmp_path / "a.gguf", type="Q8_0")
    path = tmp_path / "b.gguf"
    reader, writer = gguf.GGUFReader(plain), gguf.GGUFWriter(path, "qwen3moe")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    tensors = {t.name: t for t in reader.tensors}
    for name, t in tensors.items():
        if "ffn_gate_exps" in name:
            both = np.concatenate([t.data, tensors[name.replace("gate", "up")].data], axis=1)
            writer.add_tensor(name.replace("gate", "gate_up"), both, raw_dtype=t.tensor_type)
        elif "ffn_up_exps" not in name:
            writer.add_tensor(name, t.data, raw_dtype=t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(plain) as a, open_checkpoint(path) as b:
        assert [t.name for t in a.index.tensors] == [t.name for t in b.index.tensors]
        for t in a.index.tensors:
            assert a.read_rows(t.name).tobytes() == b.read_rows(t.name).tobytes()
