"""Bytes and operations of each stage against a model small enough to count by hand."""

from __future__ import annotations

import pytest

from hetero.machine.types import ModelIndex, TensorInfo
from hetero.models.config import MlaConfig, ModelConfig, MoeConfig, RopeConfig
from hetero.models.stages import STAGES, Step, demands, stage_of

HIDDEN, VOCAB, HEADS, DIM, EXPERTS, TOP_K, INTER = 64, 96, 4, 32, 8, 2, 32

# Gate and up [32, 64] have 2 tiles of 2 blocks each: 512 codes and 16 scales of 2 bytes a block. Down [64, 32] has
# 4 tiles of one block, padded to whole lines of 64 bytes.
EXPERT_BYTES = 2 * (2 * 2 * (512 + 32)) + 4 * (512 + 64)


def _config(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "family": "qwen3_moe",
        "model_type": "qwen3_moe",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "n_layers": 2,
        "n_heads": HEADS,
        "n_kv_heads": 1,
        "head_dim": DIM,
        "intermediate_size": 0,
        "rms_norm_eps": 1e-6,
        "max_context": 1000,
        "rope": RopeConfig(1e4, DIM),
        "moe": MoeConfig(EXPERTS, TOP_K, INTER),
    }
    return ModelConfig(**(values | changes))  # type: ignore[arg-type]


def _info(name: str, *shape: int, fmt: str = "F32", role: str = "dense") -> TensorInfo:
    return TensorInfo(name, shape, fmt, 0, role)  # type: ignore[arg-type]


def _tensors() -> list[TensorInfo]:
    out = [_info("model.embed_tokens.weight", VOCAB, HIDDEN), _info("lm_head.weight", VOCAB, HIDDEN)]
    out.append(_info("model.norm.weight", HIDDEN, role="small"))
    for layer in range(2):
        p = f"model.layers.{layer}."
        out += [_info(p + f"{name}.weight", HIDDEN, role="small") for name in ("input_layernorm", "self_attn.q_norm")]
        out.append(_info(p + "self_attn.q_proj.weight", HEADS * DIM, HIDDEN))
        out.append(_info(p + "self_attn.k_proj.weight", DIM, HIDDEN))
        out.append(_info(p + "mlp.gate.weight", EXPERTS, HIDDEN, role="small"))
        for part, shape in (("gate", (INTER, HIDDEN)), ("up", (INTER, HIDDEN)), ("down", (HIDDEN, INTER))):
            out.append(_info(p + f"mlp.experts.{part}.weight", EXPERTS, *shape, fmt="Q8_0", role="expert"))
    return out


def _index(tensors: list[TensorInfo]) -> ModelIndex:
    return ModelIndex("m", "qwen3_moe", tuple(tensors), 2, HIDDEN, VOCAB, 1000, EXPERTS, TOP_K, 2 * 2 * DIM)


def test_a_decode_step_reads_its_experts_all_dense_weights_and_the_cache() -> None:
    found = demands(_index(_tensors()), _config(), Step(1, 9, 1), 2)
    assert found["experts"].bytes == 2 * TOP_K * EXPERT_BYTES
    assert found["experts"].ops == {"Q8_0": 2 * 2 * TOP_K * 3 * INTER * HIDDEN}
    assert found["projections"].bytes == 2 * (HEADS + 1) * DIM * HIDDEN * 4
    assert found["projections"].ops == {"F32": 2 * 2 * (HEADS + 1) * DIM * HIDDEN}
    assert found["router"].bytes == 2 * 16 * HIDDEN * 4  # rows come in tiles of 16
    assert found["head"].bytes == VOCAB * HIDDEN * 4
    assert found["embedding"].bytes == HIDDEN * 4
    assert found["norms"].bytes == 5 * HIDDEN * 4
    assert found["attention"].bytes == 10 * (2 * 2 * DIM) * 2
    assert found["attention"].ops == {"F32": 2 * 10 * 2 * HEADS * 2 * DIM}
    assert found["dense mlp"].bytes == 0


def test_prefill_computes_only_the_sampled_row_past_the_last_attention() -> None:
    found = demands(_index(_tensors()), _config(), Step(10, 0, 1), 4)
    each = 2 * TOP_K * 3 * INTER * HIDDEN
    assert found["experts"].ops == {"Q8_0": 10 * each + each}
    assert found["projections"].ops == {"F32": 10 * 2 * 2 * (HEADS + 1) * DIM * HIDDEN}
    assert found["head"].ops == {"F32": 2 * VOCAB * HIDDEN}
    assert found["attention"].ops == {"F32": 2 * 55 * 2 * HEADS * 2 * DIM}
    met = EXPERTS * (1 - 0.75**10)
    assert found["experts"].bytes == pytest.approx((met + TOP_K) * EXPERT_BYTES)


def test_a_chunk_that_is_not_the_last_needs_no_head() -> None:
    found = demands(_index(_tensors()), _config(), Step(10, 0, 0), 4)
    assert (found["head"].bytes, found["head"].ops) == (0, {})


def test_a_tied_embedding_is_read_whole_as_the_head() -> None:
    tensors = [info for info in _tensors() if info.name != "lm_head.weight"]
    found = demands(_index(tensors), _config(tie_word_embeddings=True), Step(1, 0, 1), 2)
    assert found["head"].bytes == VOCAB * HIDDEN * 4
    assert found["embedding"].bytes == HIDDEN * 4


def test_latent_attention_reads_its_latent_and_the_two_halves() -> None:
    mla = MlaConfig(None, kv_lora_rank=64, nope_dim=32, rope_dim=16, v_dim=32)
    p = "model.layers.0.self_attn."
    halves = [_info(p + "k_b_proj.weight", HEADS, 64, 32), _info(p + "v_b_proj.weight", HEADS, 32, 64)]
    found = demands(_index(halves), _config(mla=mla), Step(1, 4, 1), 2)
    weights = HEADS * 64 * 32
    assert found["attention"].bytes == 2 * weights * 4 + 5 * 128 * 2
    assert found["attention"].ops["F32"] == 2 * 2 * weights + 2 * 5 * 2 * HEADS * (2 * 64 + 16)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("model.layers.3.self_attn.q_proj", "projections"),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", "projections"),
        ("model.layers.3.self_attn.kv_a_layernorm.weight", "norms"),
        ("model.layers.3.self_attn.q_norm.weight", "norms"),
        ("model.layers.3.self_attn.v_b_proj.weight", "attention"),
        ("model.layers.3.mlp.gate", "router"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "router"),
        ("model.layers.3.mlp.gate_proj", "dense mlp"),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", "dense mlp"),
        ("model.layers.3.mlp.experts.down.weight", "experts"),
        ("model.layers.3.post_attention_layernorm.weight", "norms"),
        ("model.norm.weight", "norms"),
        ("lm_head", "head"),
        ("model.embed_tokens.weight", "embedding"),
    ],
)
def test_every_tensor_belongs_to_a_stage(name: str, stage: str) -> None:
    assert stage_of(name) == stage
    assert stage in STAGES
