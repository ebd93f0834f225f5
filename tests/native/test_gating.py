"""Activations and biases of routed experts against float64 formulae."""

import dataclasses

import numpy as np
import pytest

from hetero.native import ExpertBank, Kernels, Pool, down_offset, expert_bytes
from tests.native.test_moe import routes, run
from tests.native.weights import USABLE, as_read, bank, cpus, normal

EXPERTS, HIDDEN, TOP_K = 5, 256, 2


def sigmoid(t):
    return np.exp(-np.logaddexp(0, -t))


def join(activation, g, u):
    """gate and up as an expert joins them, float64; gpt-oss's as transformers' GptOssExperts has it."""
    if activation == "gpt_oss":
        g, u = np.minimum(g, 7), np.clip(u, -7, 7)
        return (u + 1) * g * sigmoid(1.702 * g)
    if activation == "clamped_silu":
        g, u = np.minimum(g, 10), np.clip(u, -10, 10)
    if activation == "gelu_tanh":
        return 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * u
    return g * sigmoid(g) * u


def expected(experts, dense, biases, x, ids, weights):
    gate, up, down = dense
    out = np.zeros(x.shape)
    for t, slot in np.ndindex(ids.shape):
        e = ids[t, slot]
        g = (as_read(experts.gate_format, x[t : t + 1]) @ gate[e].T)[0] + biases["gate"][e]
        u = (as_read(experts.up_format, x[t : t + 1]) @ up[e].T)[0] + biases["up"][e]
        h = join(experts.activation, g, u).astype(np.float32)
        y = (as_read(experts.down_format, h[None]) @ down[e].T)[0] + biases["down"][e]
        out[t] += float(weights[t, slot]) * y
    return out


@pytest.fixture(params=USABLE)
def kernels(request):
    return Kernels(request.param)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gpt_oss", "clamped_silu"])
@pytest.mark.parametrize("parts", [(), ("gate", "up", "down"), ("down",)])
@pytest.mark.parametrize(("formats", "inter"), [(("F32",) * 3, 88), (("Q4_0", "Q8_0", "Q4_0"), 96)])
def test_experts_agree_with_the_formula(kernels, activation, parts, formats, inter):
    rng = np.random.default_rng(1)
    plain, *dense = bank(kernels, formats, EXPERTS, HIDDEN, inter)
    widths = {"gate": inter, "up": inter, "down": HIDDEN}
    biases = {part: (3 if part in parts else 0) * normal(rng, EXPERTS, n) for part, n in widths.items()}
    given = {f"{part}_bias": biases[part] for part in parts}
    experts = dataclasses.replace(plain, activation=activation, **given)
    with Pool(cpus(2), kernels) as pool:
        for tokens in (1, 3, 40):
            x = normal(rng, tokens, HIDDEN)
            ids, weights = routes(tokens, tokens, EXPERTS, TOP_K)
            exact = expected(experts, dense, biases, x, ids, weights)
            error = np.abs(run(kernels, pool, experts, x, ids, weights) - exact).max()
            # a quantised intermediate may round one code the other way: one step of 127
            assert error <= (2e-5 if formats[2] == "F32" else 1e-2) * exact.std()


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gpt_oss", "clamped_silu"])
def test_activations_hold_over_the_whole_range_of_floats(kernels, activation):
    """An identity expert: gate and up are the inputs themselves, so any value can be asked for."""
    values = [0, -0.0, 1e-30, 0.5, -0.5, 3, -3, 6.99, 7, 7.01, -7.01, 20, -20, 88, -88, 90, -90, 1e4, -1e4]
    values += [3e38, -3e38]
    n = len(values)
    eye = np.eye(n, dtype=np.float32)
    rows = eye.view(np.uint8)
    formats = ("F32",) * 3
    stride = expert_bytes(*formats, n, n)
    data = np.zeros(stride, np.uint8)
    kernels.pack_expert(rows, "F32", rows, "F32", rows, "F32", n, n, data)
    ones = np.full((1, n), 1, np.float32)
    experts = ExpertBank(1, n, n, *formats, data, stride, down_offset("F32", "F32", n, n), activation, None, ones)
    x = np.diag(np.float32(values)).astype(np.float32)
    with Pool(cpus(1), kernels) as pool:
        out = run(kernels, pool, experts, x, np.zeros((n, 1), np.int32), np.ones((n, 1), np.float32))
    g = np.diag(x).astype(np.float64)
    with np.errstate(over="ignore"):
        exact = join(activation, g, g + 1)
    with np.errstate(invalid="ignore", over="ignore"):
        got, exact = np.diag(out).astype(np.float64), exact.astype(np.float32).astype(np.float64)
    close = np.isclose(got, exact, rtol=2e-6, atol=1e-12)  # tanh rounds to -1
    assert close.all(), (np.array(values)[~close], got[~close], exact[~close])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gpt_oss", "clamped_silu"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_activation_spoils_its_own_token_only(kernels, activation, bad):
    plain, *_ = bank(kernels, ("Q4_0",) * 3, EXPERTS, HIDDEN, 96)
    experts = dataclasses.replace(plain, activation=activation)
    x = normal(np.random.default_rng(6), 9, HIDDEN)
    ids, weights = routes(9, 0, EXPERTS, TOP_K)
    with Pool(cpus(2), kernels) as pool:
        clean = run(kernels, pool, experts, x, ids, weights)
        x[4, 30] = bad
        spoilt = run(kernels, pool, experts, x, ids, weights)
    assert np.isnan(spoilt[4]).all()
    kept = [t for t in range(9) if t != 4]
    assert np.array_equal(spoilt[kept], clean[kept])


def test_wrong_activations_and_biases_are_refused(kernels):
    experts, *_ = bank(kernels, ("F32",) * 3, EXPERTS, HIDDEN, 32)
    with pytest.raises(ValueError, match="unknown activation relu"):
        dataclasses.replace(experts, activation="relu")
    for part, shape in (("gate", (EXPERTS, 31)), ("up", (EXPERTS - 1, 32)), ("down", (EXPERTS, 32))):
        with pytest.raises(ValueError, match=f"{part} bias: shape"):
            dataclasses.replace(experts, **{f"{part}_bias": np.zeros(shape, np.float32)})
    with pytest.raises(ValueError, match="float64"):
        dataclasses.replace(experts, down_bias=np.zeros((EXPERTS, HIDDEN)))
