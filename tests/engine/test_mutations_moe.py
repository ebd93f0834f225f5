"""Every term of the families in `tests.tiny_moe` matters: without any one of them the parity bound is broken."""

import numpy as np
import pytest

from hetero.engine import Engine
from tests.engine.mutations import BOUND, Mutation, bank, config, part, small, survivors
from tests.engine.reference import hf_logits, relative
from tests.tiny import tiny_hf

NORMS = {"q norm": small("q_norm.weight", 1), "k norm": small("k_norm.weight", 1)}
SHELL = {
    "input norm": small("input_layernorm.weight", 1),
    "second norm": small("post_attention_layernorm.weight", 1),
    "last norm": small("model.norm.weight", 1),
    "rope": part("rope", theta=2e4),
}
NO_SHARED = part("moe", shared_intermediate_size=0)
RENORM, NO_RENORM = part("moe", norm_topk=True), part("moe", norm_topk=False)
NO_BIAS = small("e_score_correction_bias", 0)
GRANITE = {
    "embedding multiplier": part("multipliers", embedding=1.0),
    "residual multiplier": part("multipliers", residual=1.0),
    "logits scaling": part("multipliers", logits=1.0),
    "attention multiplier": part("multipliers", attention=None),
    "renormalisation": NO_RENORM,
}
LLAMA4 = {
    "temperature": part("chunked", floor=0),
    "layer without rope": part("chunked", global_layers=()),
    "input weighting": part("moe", weighs_input=False),
    "sigmoid": part("moe", scoring="softmax"),
    "shared expert": NO_SHARED,
    "pairs": part("rope", interleaved=False),
}
MUTATIONS: dict[str, dict[str, Mutation]] = {
    "mixtral": {"renormalisation": NO_RENORM, "top-k": part("moe", top_k=2)},
    "olmoe": NORMS | {"clip": config(clip_qkv=None), "no renormalisation": RENORM},
    "minimax_m2": NORMS
    | {"correction bias": NO_BIAS, "sigmoid": part("moe", scoring="softmax"), "renormalisation": NO_RENORM}
    | {"partial rope": part("rope", dim=32)},
    "gpt_oss": {
        "sinks": small("sinks", -1e30),
        "window": config(windows=()),
        "width of the window": config(windows=(25, 0, 25)),
        "alternation": config(windows=(24, 24, 24)),
        "q bias": small("q_proj.bias", 0),
        "k bias": small("k_proj.bias", 0),
        "v bias": small("v_proj.bias", 0),
        "o bias": small("o_proj.bias", 0),
        "router bias": small("mlp.gate.bias", 0),
        "gate bias": bank(gate_bias=None),
        "up bias": bank(up_bias=None),
        "down bias": bank(down_bias=None),
        "activation": bank(activation="silu"),
        "exact YaRN range": part("rope", truncate=True),
        "YaRN": part("rope", kind="default"),
        "YaRN's factor": part("rope", attention_factor=1.0),
        "softmax over the chosen": NO_RENORM,
    },
    "granite_moe": GRANITE,
    "granite_moe_shared": GRANITE | {"shared expert": NO_SHARED},
    "hunyuan_moe": NORMS
    | {"shared MLP": NO_SHARED, "alpha": part("rope", theta=1e4), "renormalisation": NO_RENORM}
    | {"norms after rope": config(family="mixtral", qk_norm=True)},
    "bailing_moe": {
        "shared experts": NO_SHARED,
        "renormalisation": NO_RENORM,
        "normed head": config(norm_head=False),
    },
    "bailing_moe_v2": NORMS
    | {"correction bias": NO_BIAS, "groups": part("moe", n_group=1), "scaling": part("moe", scaling=1.0)}
    | {"group score": part("moe", group_score="max"), "renormalisation": NO_RENORM, "shared expert": NO_SHARED}
    | {"partial rope": part("rope", dim=16)},
    "hy_v3": NORMS
    | {"correction bias": NO_BIAS, "scaling": part("moe", scaling=1.0), "renormalisation": NO_RENORM}
    | {"sigmoid": part("moe", scoring="softmax"), "shared experts": NO_SHARED},
    "ernie4_5_moe": {
        "correction bias": NO_BIAS,
        "renormalisation": NO_RENORM,
        "softmax": part("moe", scoring="sigmoid"),
        "shared experts": NO_SHARED,
        "pairs": part("rope", interleaved=False),
    },
    "llama4": LLAMA4
    | {"chunk": part("chunked", chunk=0), "width of the chunk": part("chunked", chunk=41)}
    | {"q/k norm": config(qk_norm=False), "rope scaling": part("rope", kind="default")},
    "llama4_maverick": LLAMA4 | {"no q/k norm": config(qk_norm=True)},
}


@pytest.fixture(scope="module", params=sorted(MUTATIONS))
def case(request, tmp_path_factory):
    directory = tiny_hf(request.param, tmp_path_factory.mktemp(request.param))
    ids = np.random.default_rng(3).integers(0, 400, 150).tolist()
    whole = Engine.load(directory, device="cpu", threads=2, context=256, kv_dtype="f32")
    expected = hf_logits(directory, ids)
    assert relative(whole.logits(ids), expected) <= BOUND
    yield request.param, whole, ids, expected
    whole.close()


def test_without_any_one_term_the_bound_is_broken(case):
    family, whole, ids, expected = case
    assert not survivors(whole, SHELL | MUTATIONS[family], ids, expected)


def test_every_family_is_mutated():
    from tests.tiny_moe import MOE_FAMILIES

    assert set(MUTATIONS) == set(MOE_FAMILIES)
