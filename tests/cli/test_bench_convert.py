"""`hetero bench` and `hetero convert` on real files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hetero.cli import bench
from hetero.cli.runs import Sizes
from tests.cli.harness import Run
from tests.tiny import random_weights, tiny_config, tiny_gguf, tiny_hf, write_gguf


def test_bench_json_has_stable_keys(run: Run, model: Path) -> None:
    body = run.json("bench", model, "--prefill", "20", "--decode", "5", "--depth", "10", "--repeat", "3")
    assert (body["schema"], body["version"]) == ("hetero.bench", 1)
    assert (body["prefill"], body["decode"], body["depth"]) == (20, 5, 10)
    for key in ("prefill_tps", "decode_tps"):
        samples = body[key]["samples"]
        assert len(samples) == 3
        assert body[key]["median"] == sorted(samples)[1] > 0
    assert body["peak_rss_bytes"] > 50 << 20
    memory = {part["part"]: part for part in body["memory"]}
    for part in ("experts", "dense", "small", "kv cache"):
        assert memory[part]["measured_bytes"] == pytest.approx(memory[part]["predicted_bytes"], rel=0.05)
    assert memory["framework"]["measured_bytes"] > 50 << 20
    assert body["isa_tier"] in ("generic", "avx2", "avx512", "amx")
    assert body["threads"] >= 1
    assert body["device"] == "cpu"


def test_bench_skips_what_is_zero(run: Run, model: Path) -> None:
    body = run.json("bench", model, "--prefill", "0", "--decode", "3", "--repeat", "1")
    assert body["prefill_tps"] is None
    assert len(body["decode_tps"]["samples"]) == 1
    code, out, _ = run("bench", model, "--prefill", "9", "--decode", "0", "--repeat", "1")
    assert code == 0
    assert "prefill 9" in out
    assert "decode" not in out
    assert "peak memory" in out


def test_every_prefill_run_reads_its_whole_prompt(model: Path) -> None:
    from hetero.engine import Engine, Prefill

    seen: list[int] = []

    class Watched:
        """The engine, noting what each run found in the cache."""

        def __init__(self, engine: Engine) -> None:
            self._engine, self.text = engine, engine.text

        def generate(self, ids, sampling, *, reuse=True):  # type: ignore[no-untyped-def]
            for event in self._engine.generate(ids, sampling, reuse=reuse):
                if isinstance(event, Prefill) and len(ids) == 200:
                    seen.append(event.cached)
                yield event

    engine = Engine.load(model, context=300)
    try:
        runs = bench._measure(Watched(engine), Sizes(200, 4, 100), 2)  # type: ignore[arg-type]
    finally:
        engine.close()
    assert len(runs.prefill) == len(runs.decode) == 2
    assert seen
    assert set(seen) == {0}


def test_convert_writes_a_store_that_chats_the_same(run: Run, model: Path, tmp_path: Path) -> None:
    store = tmp_path / "tiny.hetero"
    code, out, err = run("convert", model, store, "--verify")
    assert (code, out) == (0, f"{store}\n")
    assert "converted and verified" in err
    assert f"hetero chat {store}" in err
    assert re.search(rf"both copies take [\d.]+ \w+; the store is whole, so {model} may be deleted\n", out + err)
    before = run.json("chat", model, "-p", "hello", "-n", "6")
    after = run.json("chat", store, "-p", "hello", "-n", "6")
    assert before["answer"] == after["answer"]
    assert run("convert", model, store)[0] == 0


def test_quantising_prints_the_error_of_every_layer(run: Run, model: Path, tmp_path: Path) -> None:
    body = run.json("convert", model, tmp_path / "q4.hetero", "--experts", "q4")
    assert body["schema"] == "hetero.convert"
    layers = tiny_config("qwen3moe")["num_hidden_layers"]
    assert [line["layer"] for line in body["errors"]] == list(range(layers))
    assert all(0.01 < line["relative_rms"] < 0.2 for line in body["errors"])
    code, out, err = run("convert", model, tmp_path / "q8.hetero", "--experts", "q8", "--verify")
    assert code == 0
    assert "error of q8 experts" in out
    assert out.count("%") == layers
    kept = "may be deleted unless you want its weights as they were before q8"
    assert kept in " ".join(err.split())
    assert kept in " ".join(run("convert", tmp_path / "q8.hetero", "--verify")[2].split())
    code, _, err = run("convert", tmp_path / "q8.hetero", "--verify", "--dense", "q8")
    assert (code, "takes no formats" in err) == (2, True)


def test_mixed_experts_and_dense_matrices_are_shown_and_planned_as_they_are_written(
    run: Run, model: Path, tmp_path: Path
) -> None:
    store, options = tmp_path / "m.hetero", ("--experts", "mixed", "--bits", "9", "--dense", "q8")
    planned = run.json("convert", model, store, *options, "--dry-run")
    body = run.json("convert", model, store, *options)
    chosen = {fmt.removeprefix("down ") for shown in body["formats"].values() for fmt in shown.split(", ")}
    assert chosen <= {"Q4_0", "Q8_0", "BF16"}
    assert len(body["formats"]) == tiny_config("qwen3moe")["num_hidden_layers"]
    assert 0.001 < body["dense_error"] < 0.02
    assert planned["experts"] == body["experts"] == "mixed 9, dense Q8_0"
    assert planned["dense_bytes"] == (store / "dense.bin").stat().st_size
    assert planned["expert_bytes"] == sum(f.stat().st_size for f in store.glob("experts-*.bin"))
    assert run.json("chat", store, "-p", "hello", "-n", "4")["answer"]
    code, out, err = run("convert", model, tmp_path / "n.hetero", *options)
    assert code == 0
    assert "Q8_0" in out
    assert "error of mixed 9 experts" in out  # what became of the dense matrices is told apart
    assert "error of the dense matrices" in out + err
    assert "--verify says whether the source may be deleted" in out + err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--bits", "5"), "budget of --experts mixed"),
        (("--experts", "mixed", "--bits", "3"), "no average"),
        (("--calibrate", "README.md"), "no use to --experts keep"),
        (("--experts", "bf16", "--calibrate", "README.md"), "no use to --experts bf16"),
        (("--experts", "q4", "--calibrate", "/nowhere/text"), "cannot be read"),
        (("--experts", "q4", "--calibrate", " "), "TEXT is empty"),
        (("--dense", "q4_k"), "cannot be quantised to Q4_K"),
        (("--dense", "zebra"), "unknown weight format"),
    ],
)
def test_treatments_that_cannot_be_are_usage_errors(
    run: Run, model: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    code, out, err = run("convert", model, tmp_path / "x.hetero", *options)
    assert (code, out) == (2, "")
    assert words in err
    assert "IQ4_XS" not in err  # a format that no dense matrix can become is no advice
    assert not list(tmp_path.glob("x*"))


def test_a_text_calibrates_what_is_quantised(run: Run, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the three thieves thought that the weather there " * 12)
    options = ("--experts", "mixed", "--calibrate", text)
    planned = run.json("convert", model, tmp_path / "m.hetero", *options, "--dry-run")
    code, _, err = run("convert", model, tmp_path / "m.hetero", *options)
    assert code == 0, err
    assert "calibrated on " in err
    assert run.json("convert", model, tmp_path / "m.hetero", *options)["already_converted"]
    assert planned["experts"].startswith("mixed 5.5, calibrated ")
    assert planned["expert_bytes"] == sum(f.stat().st_size for f in (tmp_path / "m.hetero").glob("experts-*.bin"))
    plain = run.json("convert", model, tmp_path / "p.hetero", *options[:2])
    assert plain["errors"] != run.json("convert", model, tmp_path / "c.hetero", *options)["errors"]
    refused = [(b"too short", "tokens"), (bytes(range(256)), "is not a text"), (b" \n", f"{text} is empty")]
    for content, words in refused:
        text.write_bytes(content)
        code, _, err = run("convert", model, tmp_path / "x.hetero", *options)
        assert code == 2
        assert words in err


def test_a_text_is_run_in_the_context_of_the_model_and_not_for_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    small = tiny_gguf("qwen3moe", tmp_path / "small.gguf", max_position_embeddings=128)
    text = tmp_path / "text.txt"
    text.write_text("the three thieves thought that the weather there " * 12)
    options = ("--experts", "q4", "--calibrate", text)
    code, _, err = run("convert", small, tmp_path / "s.hetero", *options)
    assert code == 0, err
    targets = (tmp_path / "s.hetero", tmp_path / "x.hetero"), (small, tmp_path / "none" / "x.hetero")
    for (source, target), words in zip(targets, ("is a store already", "is not a folder"), strict=True):
        code, _, err = run("convert", source, target, *options)
        assert code == 2
        assert words in err
        assert "calibrated" not in err


def test_verify_finds_a_flipped_byte(run: Run, model: Path, tmp_path: Path) -> None:
    store = tmp_path / "tiny.hetero"
    assert run("convert", model, store)[0] == 0
    assert run.json("convert", store, "--verify")["verified"] is True
    dense = store / "dense.bin"
    data = bytearray(dense.read_bytes())
    data[len(data) // 2] ^= 1
    dense.write_bytes(data)
    code, out, err = run("convert", store, "--verify")
    assert (code, out) == (4, "")
    assert "dense.bin" in err


def test_dry_run_of_convert_writes_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    store = tmp_path / "tiny.hetero"
    body = run.json("convert", model, store, "--experts", "q4", "--dry-run")
    assert (body["path"], body["dry_run"]) == (str(store), True)
    full = run.json("convert", model, store, "--dry-run")
    assert 0 < body["expert_bytes"] < full["expert_bytes"]
    assert body["free_bytes"] > 0
    assert list(tmp_path.glob("tiny*")) == []


def test_dry_run_of_a_dense_model_has_no_line_of_experts(run: Run, model: Path, tmp_path: Path) -> None:
    config = tiny_config("llama")
    dense = write_gguf(tmp_path / "dense.gguf", "llama", config, random_weights("llama", config))
    assert "experts  " not in run("convert", dense, "--dry-run")[1].partition("verdict")[0]
    assert "experts  " in run("convert", model, "--dry-run")[1].partition("verdict")[0]


def test_dry_run_of_convert_refuses_a_folder_that_does_not_exist(run: Run, model: Path, tmp_path: Path) -> None:
    code, out, err = run("convert", model, tmp_path / "nowhere" / "tiny.hetero", "--dry-run")
    assert (code, out) == (2, "")
    assert "nowhere is not a folder" in err


def test_a_different_store_is_replaced_only_by_force(run: Run, model: Path, tmp_path: Path) -> None:
    store = tmp_path / "tiny.hetero"
    assert run("convert", model, store)[0] == 0
    code, _, err = run("convert", model, store, "--experts", "q8")
    assert code == 2
    assert "--force" in err
    assert run("convert", model, store, "--experts", "q8", "--force")[0] == 0


def test_peak_memory_is_this_process_own() -> None:
    before = bench.peak_rss_bytes()
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    assert bench.peak_rss_bytes() >= before
    assert bench.peak_rss_bytes() >= 64 << 20
    del block


@pytest.mark.parametrize("flag", ["--prefill", "--decode"])
def test_a_run_longer_than_the_model_s_context_is_refused(flag: str, run: Run, model: Path) -> None:
    code, out, err = run("bench", model, flag, "40000")
    assert (code, out) == (2, "")
    assert "32768" in err


def test_convert_says_where_answers_end(run: Run, model: Path, tmp_path: Path) -> None:
    code, out, err = run("convert", model, tmp_path / "s.hetero")
    assert (code, out.strip()) == (0, str(tmp_path / "s.hetero"))
    assert "answers end at" in err
    assert "<|im_end|>" in err


def test_what_was_ignored_of_a_checkpoint_is_told(run: Run, tmp_path: Path) -> None:
    source = tiny_hf("llama", tmp_path)
    (source / "extra.safetensors").write_bytes(b"not looked at")
    code, _, err = run("bench", source, "--prefill", "5", "--decode", "2", "--repeat", "1")
    assert code == 0
    assert "extra.safetensors" in err
