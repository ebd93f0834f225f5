"""Stores with bf16, 8-bit and 4-bit experts against a float32 reference over the very weights in the store.

The reference is transformers with its experts replaced: it uses the dequantised codes, rounds activations per group
as the kernels do, and replays hetero's routes, which may differ from its own only where the router is undecided.
Which way an activation on the edge between two codes is rounded is replayed too: a last-bit difference decides it.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hetero.engine import Engine
from hetero.models.convert import convert
from hetero.native import ExpertBank, Kernels, Pool, allocate, choose_tier, down_offset, expert_bytes
from tests.engine.reference import relative
from tests.tiny import load_reference, tiny_hf

BOUND = 1e-3
GROUP = 32


class Recorder:
    """Stands before the engine's experts and keeps their routes and inputs by layer."""

    def __init__(self, experts):
        self.experts, self.routes = experts, {}

    def __call__(self, layer, x, ids, weights):
        self.routes[layer] = (ids.clone(), weights.clone(), x.clone())
        return self.experts(layer, x, ids, weights)


def rounded(x, fmt, edges=None):
    """Activations as a kernel of this format sees them: int8 per group of 32, or float32.

    `edges` are hetero's own activations, nearly equal to x: where x lies within 1e-3 of the edge between two codes,
    they decide.
    """
    if fmt in ("F32", "F16", "BF16"):
        return x
    edges = x if edges is None else edges
    groups, deciding = (a.reshape(*x.shape[:-1], -1, GROUP) for a in (x, edges))
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    code, other = groups / scale, deciding / (deciding.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127)
    assert (code - other).abs().max() < 1e-2, "the reference and hetero have different activations"
    undecided = (code - code.floor() - 0.5).abs() < 1e-3
    return (torch.where(undecided, other, code).round() * scale).reshape(x.shape)


class Middle:
    """What the kernels themselves have between gate/up and down: the experts with an identity for down."""

    def __init__(self, kernels, bank):
        self.kernels, self.pool = kernels, Pool([0], kernels)
        formats = (bank.gate_format, bank.up_format, bank.down_format)
        shape = (bank.hidden, bank.inter)
        size = expert_bytes(*formats[:2], "F32", *shape)
        data = allocate(bank.n_experts * size)
        identity = np.eye(*shape, dtype=np.float32).view(np.uint8)
        for e in range(bank.n_experts):
            gate, up, _ = kernels.unpack_expert(bank.data[e * bank.stride : (e + 1) * bank.stride], *formats, *shape)
            out = data[e * size : (e + 1) * size]
            kernels.pack_expert(gate, formats[0], up, formats[1], identity, "F32", *shape, out)
        offset = down_offset(*formats[:2], *shape)
        self.bank = ExpertBank(bank.n_experts, *shape, *formats[:2], "F32", data, size, offset)

    def __call__(self, x, expert):
        out = np.empty((1, self.bank.hidden), np.float32)
        ids, one = np.array([[expert]], np.int32), np.ones((1, 1), np.float32)
        self.kernels.moe(self.pool, self.bank, x[None].numpy(), ids, one, out)
        return torch.from_numpy(out[0, : self.bank.inter])


class ReferenceExperts(torch.nn.Module):
    """One layer's experts in float32 over the store's codes."""

    def __init__(self, kernels, bank, route):
        super().__init__()
        self.route, self.seen, self.input, self.middle = route, None, None, Middle(kernels, bank)
        self.formats = (bank.gate_format, bank.up_format, bank.down_format)
        shapes = [(bank.inter, bank.hidden), (bank.inter, bank.hidden), (bank.hidden, bank.inter)]
        self.experts = []
        for e in range(bank.n_experts):
            extent = bank.data[e * bank.stride : (e + 1) * bank.stride]
            rows = kernels.unpack_expert(extent, *self.formats, bank.hidden, bank.inter)
            triple = zip(self.formats, rows, shapes, strict=True)
            self.experts.append([torch.from_numpy(kernels.dequantize(f, r, *s)) for f, r, s in triple])

    def forward(self, x, ids, weights):
        self.seen, self.input = ids, x
        ids, weights, inputs = self.route
        out = torch.zeros_like(x)
        for t in range(len(x)):
            for slot, expert in enumerate(ids[t].tolist()):
                gate, up, down = self.experts[expert]
                hidden = rounded(x[t], self.formats[0], inputs[t])
                middle = F.silu(gate @ hidden) * (up @ hidden)
                edges = self.middle(inputs[t], expert)
                out[t] += weights[t, slot] * (down @ rounded(middle, self.formats[2], edges))
        return out


@torch.inference_mode()
def undecided(gate, x, moe):
    """Where the reference's router could as well choose otherwise: bool [T], gaps of scores below the bound."""
    logits = F.linear(x, gate.weight)
    scores = logits.sigmoid() if moe.scoring == "sigmoid" else logits.softmax(-1)
    choice = scores + gate.e_score_correction_bias if moe.correction_bias else scores
    close = torch.zeros(len(x), dtype=torch.bool)
    if moe.n_group > 1:
        grouped = choice.view(len(x), moe.n_group, -1)
        best = grouped.topk(2 if moe.group_score == "top2" else 1).values.sum(-1)
        close |= gap_after(best, moe.topk_group) < BOUND
        closed = best < best.sort(-1, descending=True).values[:, moe.topk_group - 1 : moe.topk_group]
        choice = grouped.masked_fill(closed[..., None], float("-inf")).flatten(1)
    return close | (gap_after(choice, moe.top_k) < BOUND)


def gap_after(scores, k):
    """How far the k-th best lies above the next one: [T]."""
    top = scores.topk(k + 1).values
    return top[:, k - 1] - top[:, k]


@pytest.mark.parametrize("experts", ["bf16", "q8", "q4"])
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v2", "deepseek_v3"])
def test_quantised_experts_agree_with_the_reference(family, experts, tmp_path):
    source = tiny_hf(family, tmp_path)
    kernels = Kernels(choose_tier(None))
    report = convert(source, tmp_path / "model.hetero", experts=experts, kernels=kernels)
    ids = np.random.default_rng(3).integers(0, 256, 90).tolist()
    engine = Engine.load(report.path, device="cpu", threads=2, context=128, kv_dtype="f32")
    try:
        recorder = engine._runtime.experts = Recorder(engine._runtime.experts)
        found = engine.logits(ids)
        model = load_reference(source)
        for layer, bank in engine.model.banks.items():
            model.model.layers[layer].mlp.experts = ReferenceExperts(kernels, bank, recorder.routes[layer])
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0].numpy()
    finally:
        engine.close()
    assert relative(found, expected) <= BOUND
    for layer, (chosen, _, _) in recorder.routes.items():
        mlp = model.model.layers[layer].mlp
        own = mlp.experts.seen.to(torch.int32)
        same = (chosen.sort(-1).values == own.sort(-1).values).all(-1)
        assert (same | undecided(mlp.gate, mlp.experts.input, engine.model.config.moe)).all()
        assert same.float().mean() > 0.97, "routes differ more often than an undecided router explains"


def test_rounding_of_activations_is_what_the_reference_needs(tmp_path):
    """Without it the reference is further away than the bound: the test above can fail."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    assert (rounded(x, "Q8_0") - x).abs().max() > 1e-3
    assert torch.equal(rounded(x, "BF16"), x)
