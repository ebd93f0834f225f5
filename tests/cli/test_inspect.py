"""`hetero inspect`: what headers tell, on screens of any width, and what is wrong with a model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hetero.models.convert import convert
from hetero.native import Kernels
from tests.cli.harness import Run, terminal
from tests.tiny import random_weights, tiny_config, write_gguf
from tests.tiny_tokenizer import save_tokenizer


def test_it_names_family_types_bytes_and_text(run: Run, model: Path) -> None:
    code, out, err = run("inspect", model)
    assert (code, err) == (0, "")
    assert re.search(r"^family +qwen3_moe", out, re.M)
    assert re.search(r"^experts +\d+ in a layer, \d+ used by a token", out, re.M)
    assert re.search(r"^experts +F32 +\d+ ", out, re.M)
    assert re.search(r"^tokenizer +\d+ tokens", out, re.M)
    body = run.json("inspect", model)
    sizes = {(group["role"], group["format"]): group for group in body["tensors"]}
    experts = sizes["expert", "F32"]
    assert experts["active_bytes"] == experts["bytes"] * body["top_k"] // body["n_experts"]
    assert body["file_bytes"] == model.stat().st_size
    assert sum(group["bytes"] for group in body["tensors"]) < body["file_bytes"]
    assert body["active_bytes"] < sum(group["bytes"] for group in body["tensors"])
    assert body["problems"] == []


def test_a_token_reads_one_row_of_an_embedding_and_all_of_a_tied_one(run: Run, tmp_path: Path) -> None:
    read = {}
    for tied in (False, True):
        config = tiny_config("llama", tie_word_embeddings=tied)
        weights = random_weights("llama", config)
        if tied:
            weights.pop("lm_head.weight", None)
        body = run.json("inspect", write_gguf(tmp_path / f"{tied}.gguf", "llama", config, weights))
        read[tied] = body["active_bytes"]
        table = config["vocab_size"] * config["hidden_size"] * 4
        total = sum(group["bytes"] for group in body["tensors"])
        assert read[tied] == (total if tied else total - table + table // config["vocab_size"])


def test_a_store_says_how_its_experts_were_treated(run: Run, model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "m.hetero", experts="q8", kernels=Kernels("generic"))
    body = run.json("inspect", tmp_path / "m.hetero")
    assert (body["kind"], body["experts_converted"], body["family"]) == ("store", "q8", "qwen3_moe")
    assert {group["format"] for group in body["tensors"] if group["role"] == "expert"} == {"Q8_0"}
    assert "a hetero store, experts q8" in run("inspect", tmp_path / "m.hetero")[1]


def test_a_missing_tensor_is_told_beside_what_is_there(run: Run, tmp_path: Path) -> None:
    config = tiny_config("qwen3moe")
    weights = random_weights("qwen3moe", config)
    del weights["model.layers.1.input_layernorm.weight"]
    path = write_gguf(tmp_path / "m.gguf", "qwen3moe", config, weights)
    code, out, err = run("inspect", path)
    assert code == 4
    assert re.search(r"^tensors +F32 +\d+ ", out, re.M)
    assert "1 tensor of the model is missing" in err
    code, out, err = run("inspect", path, "--json")
    body = json.loads(out)
    assert (code, err) == (4, "")
    assert body["problems"][0]["code"] == 4
    assert body["active_bytes"] is None


def test_an_unknown_architecture_still_shows_its_tensors(run: Run, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = tmp_path / "m"
    folder.mkdir()
    import numpy as np

    save_file({"a.weight": np.zeros((4, 4), np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["NewForCausalLM"]}))
    code, out, err = run("inspect", folder)
    assert code == 4
    assert re.search(r"^architecture +NewForCausalLM", out, re.M)
    assert re.search(r"^tensors +F32 +1 +64 B", out, re.M)
    assert "'NewForCausalLM' is not supported" in err


def test_a_model_without_tokenizer_is_shown_with_the_reason(run: Run, tmp_path: Path) -> None:
    from tests.tiny import tiny_hf

    folder = tiny_hf("llama", tmp_path)
    (folder / "tokenizer.json").unlink()
    code, out, err = run("inspect", folder)
    assert code == 0
    assert "missing or not usable" in out
    assert "no tokenizer.json" in err
    save_tokenizer(folder)
    assert "missing" not in run("inspect", folder)[1]


@pytest.mark.parametrize(("path", "code"), [("nosuch.gguf", 2), ("", 2)])
def test_what_is_no_model_is_refused(run: Run, path: str, code: int) -> None:
    found, out, err = run("inspect", path)
    assert (found, out) == (code, "")
    assert err.startswith("error: ")


@pytest.mark.parametrize("columns", [12, 30, 80])
def test_no_line_is_wider_than_the_terminal(columns: int, env: dict[str, str]) -> None:
    with terminal("inspect", "models/demo/hetero-demo.gguf", env=env, columns=columns) as screen:
        assert screen.wait() == 0
        lines = screen.text.splitlines()
        assert max(len(line) for line in lines) <= columns
        assert any(line.startswith("experts  Q8_0") for line in lines) or columns < 30
        assert any(line.rstrip() == "tokenizer" or line.startswith("tokenizer ") for line in lines)


def test_it_imports_no_torch(env: dict[str, str]) -> None:
    code = "import sys; from hetero.cli.main import main; main(['inspect', 'models/demo/hetero-demo.gguf', '--json'])"
    code += "; print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, check=True)
    assert done.stderr.split()[-1] == b"False"


def test_control_characters_of_a_file_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    config = tiny_config("llama")
    path = write_gguf(tmp_path / "a\x1b[31m.gguf", "llama", config, random_weights("llama", config))
    assert "\x1b" not in run("inspect", path)[1]
