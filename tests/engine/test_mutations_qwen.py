"""Every term of the Qwen families matters: without any one of them the parity bound is broken.

Prompts are computed in chunks, so that states carried between chunks are terms too. What cannot be seen is the scale of
a delta net's queries: the norm after it divides by it again.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hetero.engine import Engine
from hetero.engine.recurrent import RecurrentStates
from hetero.models import delta
from hetero.models.families import qwen3_next
from hetero.models.load import Model
from tests.engine import mutations
from tests.engine.gguf_parity import greedy
from tests.engine.mutations import BOUND
from tests.engine.reference import hf_logits, relative
from tests.tiny import tiny_hf
from tests.tiny_qwen import QWEN_FAMILIES
from tests.tiny_tokenizer import tokens_and_merges

CHUNK = 40
Mutation = Callable[[Model, pytest.MonkeyPatch], Model]


def part(name, **changes) -> Mutation:
    """A change of a part of the configuration: moe, rope or delta."""
    return lambda model, _: mutations.part(name, **changes)(model)


def small(end: str, change: Callable[[np.ndarray], np.ndarray], but: str = "-") -> Mutation:
    """The small tensors whose names end so, changed."""

    def mutate(model, _):
        names = [name for name in model.small if name.endswith(end) and but not in name]
        assert names, f"there is no {end}"
        return replace(model, small=model.small | {name: change(model.small[name]) for name in names})

    return mutate


def patched(owner, name, make) -> Mutation:
    """A function of the code itself replaced by `make(it)`."""

    def mutate(model, monkeypatch):
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))
        return model

    return mutate


def ones(end: str) -> Mutation:
    return small(end, np.ones_like)


def lost_state(name: str) -> Mutation:
    """Changes of a recurrent state do not outlive the chunk."""

    def make(of):
        return lambda self, layer, slot: {n: s.clone() if n == name else s for n, s in of(self, layer, slot).items()}

    return patched(RecurrentStates, "of", make)


def without_silu(_):
    def convolve(state, x, taps):
        rows = torch.cat([state, x])
        state.copy_(rows[len(x) :])
        return sum(rows[i : i + len(x)] * tap for i, tap in enumerate(taps))

    return convolve


def without_erasing(_):
    """Gated linear attention: what the state holds for a key is not taken off before more is added."""

    def rule(state, q, k, v, decay, rate):
        outs = []
        for i in range(len(q)):
            state.mul_(decay[i].exp()[:, None, None]).add_(k[i][:, :, None] * (v[i] * rate[i][:, None])[:, None])
            outs.append((q[i][:, None] @ state)[:, 0])
        return torch.stack(outs)

    return rule


def projections(change):
    """The delta net's (mixed, z, b, a) changed."""
    return patched(delta, "_project", lambda project: lambda *args: change(*project(*args)))


def ungated(_):
    def attention(cfg, layer, x, ops):
        p = f"model.layers.{layer}.self_attn."
        both, k, v = ops.linears([p + "q_proj", p + "k_proj", p + "v_proj"], x)
        q = both.view(-1, cfg.n_heads, 2, cfg.head_dim)[:, :, 0].contiguous()
        k, v = (y.view(-1, cfg.n_kv_heads, cfg.head_dim) for y in (k, v))
        norms = (p + "q_norm.weight", p + "k_norm.weight")
        return ops.linear(p + "o_proj", ops.attention(layer, q, k, v, cfg.head_dim**-0.5, norms).flatten(1))

    return attention


def swapped_gate(_):
    """Gate and queries the other way round within a head."""

    def attention(cfg, layer, x, ops):
        p = f"model.layers.{layer}.self_attn."
        both, k, v = ops.linears([p + "q_proj", p + "k_proj", p + "v_proj"], x)
        gate, q = both.view(-1, cfg.n_heads, 2, cfg.head_dim).unbind(2)
        k, v = (y.view(-1, cfg.n_kv_heads, cfg.head_dim) for y in (k, v))
        norms = (p + "q_norm.weight", p + "k_norm.weight")
        out = ops.attention(layer, q.contiguous(), k, v, cfg.head_dim**-0.5, norms)
        return ops.linear(p + "o_proj", (out * gate.sigmoid()).flatten(1))

    return attention


SHELL = {
    "input norm": ones("input_layernorm.weight"),
    "second norm": ones("post_attention_layernorm.weight"),
    "last norm": ones("model.norm.weight"),
    "rope": part("rope", theta=2e4),
}
BIASES = {f"{p} bias": small(f"{p}_proj.bias", np.zeros_like) for p in "qkv"}
NORMS = {"q norm": ones("q_norm.weight"), "k norm": ones("k_norm.weight")}
SHARED = {
    "shared expert": part("moe", shared_intermediate_size=0),
    "shared expert's gate": part("moe", shared_gate=False),
    "top-k": part("moe", top_k=3),
}
HYBRID = (
    NORMS
    | SHARED
    | {
        "renormalisation": part("moe", norm_topk=False),
        "one of the norms": small("norm.weight", lambda w: w - 1, but="linear_attn"),
        "partial rope": part("rope", dim=16),
        "output gate of attention": patched(qwen3_next, "gated_attention", ungated),
        "order of q and gate": patched(qwen3_next, "gated_attention", swapped_gate),
        "decay": small("linear_attn.A", np.zeros_like),
        "decay's bias": small("linear_attn.dt_bias", np.zeros_like),
        "decay by token": projections(lambda mixed, z, b, a: (mixed, z, b, torch.zeros_like(a))),
        "rate": projections(lambda mixed, z, b, a: (mixed, z, b + 100, a)),
        "gate after the norm": projections(lambda mixed, z, b, a: (mixed, torch.full_like(z, 1.2785), b, a)),
        "norm of the output": ones("linear_attn.norm.weight"),
        "convolution": small("conv1d.weight", lambda taps: np.stack([*np.zeros_like(taps[1:]), np.ones_like(taps[0])])),
        "silu of the convolution": patched(delta, "_convolve", without_silu),
        "length of keys and queries": patched(delta, "l2_norm", lambda _: lambda x: x),
        "key head of a value head": part("delta", tiled=True),
        "erasing": patched(delta, "many_tokens", without_erasing),
        "state of the convolution": lost_state("conv"),
        "state of the rule": lost_state("delta"),
    }
)
MUTATIONS: dict[str, dict[str, Mutation]] = {
    "qwen2": BIASES,
    "qwen3": NORMS,
    "qwen2_moe": BIASES | SHARED | {"no renormalisation": part("moe", norm_topk=True)},
    "qwen3_next": HYBRID,
    "qwen3_5": {name: HYBRID[name] for name in ("decay", "rate", "key head of a value head", *NORMS)},
    "qwen3_5_moe": {name: HYBRID[name] for name in ("decay", "rate", "key head of a value head", *SHARED, *NORMS)},
}


@pytest.fixture(scope="module", params=sorted(QWEN_FAMILIES))
def case(request, tmp_path_factory):
    vocab = len(tokens_and_merges()[0])  # not padded: transformers would choose ids that are no tokens
    directory = tiny_hf(request.param, tmp_path_factory.mktemp(request.param), vocab_size=vocab)
    ids = np.random.default_rng(3).integers(0, 400, 100).tolist()
    whole = Engine.load(directory, device="cpu", threads=2, context=256, kv_dtype="f32")
    whole._schedule._chunk = CHUNK
    expected = hf_logits(directory, ids)
    assert relative(whole.logits(ids), expected) <= BOUND
    yield request.param, whole, ids, expected, directory
    whole.close()


def test_without_any_one_term_the_bound_is_broken(case, monkeypatch):
    family, whole, ids, expected, _ = case
    survived = {}
    for name, mutate in (SHELL | MUTATIONS[family]).items():
        with monkeypatch.context() as patch:
            engine = Engine(mutate(whole.model, patch), whole.plan)
            engine._schedule._chunk = CHUNK
            distance = relative(engine.logits(ids), expected)
            engine.close()
        if distance <= BOUND:
            survived[name] = distance
    assert not survived


def test_greedy_text_of_64_tokens_is_transformers(case):
    """Each token is the likeliest after all before it, which makes the text that which transformers would make."""
    _, engine, ids, _, directory = case
    found = greedy(engine, ids, 64)
    assert len(found) == 64
    assert found == hf_logits(directory, ids + found)[len(ids) - 1 : -1].argmax(1).tolist()


def test_many_tokens_are_as_one_after_the_other_in_double_precision():
    g = torch.Generator().manual_seed(1)
    n, heads, dk, dv = 150, 3, 16, 8
    q, k = (F.normalize(torch.randn(n, heads, dk, generator=g), dim=-1) for _ in range(2))
    v, decay = torch.randn(n, heads, dv, generator=g), -4 * torch.rand(n, heads, generator=g)
    rate, start = torch.rand(n, heads, generator=g), torch.randn(heads, dk, dv, generator=g)
    exact, outs = start.double(), []
    for i in range(n):
        exact = exact * decay[i].double().exp()[:, None, None]
        change = (v[i].double() - torch.einsum("hkv,hk->hv", exact, k[i].double())) * rate[i].double()[:, None]
        exact = exact + torch.einsum("hk,hv->hkv", k[i].double(), change)
        outs.append(torch.einsum("hkv,hk->hv", exact, q[i].double()))
    for cuts in ([n], [1, 64, 85], [63, 1, 1, 85]):
        state, found = start.clone(), []
        for x in zip(*(t.split(cuts) for t in (q, k, v, decay, rate)), strict=True):
            rule = delta.one_token if len(x[0]) == 1 else delta.many_tokens
            found.append(rule(state, *x))
        assert (torch.cat(found) - torch.stack(outs)).abs().max() < 1e-5
        assert (state - exact).abs().max() < 1e-5
