"""Cards and config.json alone: the same numbers as the published models, and what cannot be planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetero.machine.traffic import active_parameters, total_parameters
from hetero.machine.types import HeteroError, ModelError, UsageError
from hetero.models.card import Card, cards, find_card
from hetero.models.config_formats import formats_of_config
from hetero.models.describe import describe
from hetero.models.outline import index_of_config
from tests.tiny import tiny_config, tiny_hf

WANTED = [
    "deepseek-r1",
    "deepseek-v3.2",
    "kimi-k2.6",
    "glm-5.1",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "qwen3.5-397b-a17b",
    "gpt-oss-120b",
    "minimax-m2",
    "llama-3.3-70b",
    "mixtral-8x22b",
]


def last_digit(value: float) -> float:
    """Half a unit of the last digit that a figure such as 37e9 or 5.1e9 is given with."""
    digits = f"{value / 1e9:g}"
    if value >= 1e12:
        return 0.05 * value  # "1T"
    return 0.5e9 * (0.1 if "." in digits else 1.0)


def test_the_named_models_have_cards_with_their_source() -> None:
    assert set(WANTED) <= set(cards())
    assert all(card.source and card.title for card in cards().values())


@pytest.mark.parametrize("card", cards().values(), ids=lambda card: card.name)
def test_parameters_are_the_published_ones(card: Card) -> None:
    total = total_parameters(card.index)
    assert total == pytest.approx(card.total, abs=max(0.02 * card.total, last_digit(card.total)))
    # Publishers differ on whether embedding and head count among the active parameters.
    shapes = {info.name: info.shape for info in card.index.tensors}
    vocabulary = shapes["model.embed_tokens.weight"][0] * shapes["model.embed_tokens.weight"][1]
    counts = [active_parameters(card.index) + part * vocabulary for part in (-1, 0, 1)]
    assert min(abs(count - card.active) for count in counts) <= max(0.025 * card.active, last_digit(card.active))


def test_latent_attention_keeps_one_latent_and_one_rope_key_a_layer() -> None:
    assert cards()["deepseek-r1"].index.kv_elements_per_token == 61 * (512 + 64)
    # The sparse attention's indexer keeps a key of its own.
    assert cards()["deepseek-v3.2"].index.kv_elements_per_token == 61 * (512 + 64 + 128)


def test_recurrent_states_do_not_grow_with_the_context_and_windows_do() -> None:
    index = cards()["gpt-oss-120b"].index
    assert index.kv_elements_per_token == 36 * 2 * 8 * 64  # windows limit what is read, not what is kept
    hybrid = cards()["qwen3.5-397b-a17b"].index
    assert hybrid.kv_elements_per_token == 15 * 2 * 2 * 256
    assert hybrid.recurrent_bytes == 45 * 4 * (64 * 128 * 128 + 3 * (2 * 16 * 128 + 64 * 128))


def test_cards_are_found_by_other_names_and_in_any_case() -> None:
    assert find_card("DeepSeek-V3") is cards()["deepseek-r1"]
    assert find_card("kimi-k2-thinking") is cards()["kimi-k2.6"]
    assert find_card("deepseek") is None


def test_every_native_format_of_a_card_is_the_models_own() -> None:
    def formats(name: str) -> set[str]:
        return {info.format for info in cards()[name].index.tensors if info.role == "expert"}

    assert formats("deepseek-r1") == formats("minimax-m2") == {"FP8_E4M3"}
    assert formats("kimi-k2.6") == {"I4_32"}
    assert formats("gpt-oss-120b") == {"MXFP4"}
    assert formats("qwen3-235b-a22b") == {"BF16"}


def test_a_config_alone_has_the_tensors_of_the_checkpoint_it_belongs_to(tmp_path: Path) -> None:
    qwen = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe")
    for family in ("llama", *qwen, "deepseek_v3", "deepseek_v2_lite"):
        whole = tiny_hf(family, tmp_path)
        bare = tmp_path / f"{family}-bare" / "config.json"
        bare.parent.mkdir()
        raw = json.loads((whole / "config.json").read_text())
        bare.write_text(json.dumps(raw | {"torch_dtype": "float32", "dtype": "float32"}))
        planned, real = describe(str(bare)), describe(str(whole))
        assert {(i.name, i.shape, i.role) for i in planned.tensors} == {(i.name, i.shape, i.role) for i in real.tensors}
        assert planned.kv_elements_per_token == real.kv_elements_per_token
        assert planned.name == f"{family}-bare"


def test_an_index_without_its_shards_is_planned_by_the_config_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}))
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        describe(str(path))
    (tmp_path / "config.json").write_text(json.dumps(cards()["qwen3-30b-a3b"].config))
    assert describe(str(path)).n_experts == 128


def test_a_folder_goes_before_a_card_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deepseek-r1").mkdir()
    (tmp_path / "deepseek-r1" / "config.json").write_text(json.dumps(cards()["qwen3-30b-a3b"].config))
    assert describe("deepseek-r1").n_layers == 48


def test_an_unknown_name_lists_the_cards() -> None:
    with pytest.raises(UsageError, match="no card of that name") as caught:
        describe("deepseek-r9")
    assert "deepseek-r1" in caught.value.hint


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "kv_lora_rank", "n_routed_experts", "vocab_size"])
@pytest.mark.parametrize("card", ["deepseek-v3.2", "kimi-k2.6"])
def test_a_config_with_a_missing_key_is_a_model_error_naming_it(card: str, key: str) -> None:
    raw: dict[str, Any] = json.loads(json.dumps(cards()[card].config))
    del raw.get("text_config", raw)[key]
    with pytest.raises(ModelError, match=key) as caught:
        index_of_config(raw, "x", "config.json")
    assert caught.value.code == 4


@pytest.mark.parametrize("value", [-1, 0, "many", 1e30, None, [], True])
def test_impossible_sizes_are_model_errors(value: object) -> None:
    for card in ("glm-5.1", "qwen3.5-397b-a17b"):
        raw: dict[str, Any] = json.loads(json.dumps(cards()[card].config))
        raw.get("text_config", raw)["hidden_size"] = value
        with pytest.raises(HeteroError) as caught:
            index_of_config(raw, "x", "config.json")
        assert caught.value.code == 4


def compressed(**weights: object) -> dict[str, object]:
    """A quantization_config of compressed-tensors with one group."""
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}


@pytest.mark.parametrize(
    ("quantization", "experts", "dense"),
    [
        ({"quant_method": "fp8"}, "FP8_E4M3", "FP8_E4M3"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "I4_64_F16", "I4_64_F16"),
        ({"quant_method": "awq", "bits": 4}, "U4_128_F16", "U4_128_F16"),
        ({"quant_method": "mxfp4"}, "MXFP4", "BF16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4}}}}, "I4_32", "BF16"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "I8_32_F16", "I8_32_F16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4_F32_64", "NVFP4_F32_64"),
        (compressed(num_bits=4, type="float", group_size=16), "NVFP4_F32_64", "NVFP4_F32_64"),
        (compressed(num_bits=8, type="float", strategy="channel"), "FP8_E4M3", "FP8_E4M3"),
        (compressed(num_bits=8, type="int", strategy="channel"), "I8_128", "I8_128"),
        (None, "BF16", "BF16"),
    ],
)
def test_native_formats_follow_the_quantization_config(quantization: object, experts: str, dense: str) -> None:
    found = formats_of_config({"quantization_config": quantization, "torch_dtype": "bfloat16"}, "config.json")
    assert (found.experts, found.dense, found.shell, found.note) == (experts, dense, "BF16", "")


_INT8 = {"weights": {"num_bits": 8, "type": "int"}}
_INT4 = {"weights": {"num_bits": 4, "type": "int"}}


@pytest.mark.parametrize(
    ("config", "experts", "said"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "FP8_E4M3", "does not read modelopt FP8"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "I4_128_F16", "counted as I4_128_F16"),
        ({"quant_method": "awq", "bits": 8}, "Q8_0", "does not read awq of 8 bits"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "Q4_0", "does not read bitsandbytes"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": _INT4, "b": _INT8}},
            "Q4_0",
            "2 groups: the first of them counts",
        ),
        (
            {"quant_method": "compressed-tensors", "num_bits": 8, "config_groups": {"g": _INT4}},
            "I4_32",
            "says 8 bits and, of its only group, 4",
        ),
    ],
)
def test_what_is_assumed_of_a_config_is_said(config: dict[str, object], experts: str, said: str) -> None:
    found = formats_of_config({"quantization_config": config}, "config.json")
    assert found.experts == experts
    assert said in found.note


def test_two_statements_on_quantisation_and_unknown_types_are_told() -> None:
    nested = {"text_config": {"quantization_config": {"quant_method": "mxfp4"}}, "torch_dtype": "float7"}
    found = formats_of_config(nested | {"quantization_config": {"quant_method": "fp8"}}, "config.json")
    assert found.experts == "FP8_E4M3"
    assert found.note.split("; ") == [
        "torch_dtype 'float7' is not known: unquantised weights are counted as BF16",
        "text_config has another quantization_config, which is passed over",
    ]


def test_an_unknown_quantisation_is_refused_with_a_way_out() -> None:
    with pytest.raises(ModelError, match="quant_method 'hqq'") as caught:
        formats_of_config({"quantization_config": {"quant_method": "hqq"}}, "config.json")
    assert "--experts" in caught.value.hint


def test_a_config_of_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny_config("qwen3moe") | {"architectures": ["NewForCausalLM"]}, default=str))
    with pytest.raises(ModelError, match="NewForCausalLM"):
        describe(str(path))


@pytest.mark.parametrize("odd", ["fp8", [{"quant_method": "fp8"}], 4, False])
def test_a_quantization_config_that_is_no_object_is_not_passed_over(odd: object) -> None:
    with pytest.raises(ModelError, match="expected an object"):
        formats_of_config({"text_config": {"quantization_config": odd}}, "config.json")
    assert formats_of_config({"quantization_config": None}, "config.json").note == ""
