"""Rotary positions against the formulae in float64, at positions inside and far beyond the original context."""

import math

import numpy as np
import pytest
import torch

from hetero.models.config import RopeConfig
from hetero.models.rope import inverse_frequencies, rotate, rotation_scale, softmax_mscale


def yarn_reference(rope):
    """Inverse frequencies by the YaRN paper, pair by pair, in float64."""

    def pair_of(turns):
        return rope.dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_of(rope.beta_fast)), 0)
    high = min(math.ceil(pair_of(rope.beta_slow)), rope.dim - 1)
    out = []
    for i in range(rope.dim // 2):
        plain = rope.theta ** (-2 * i / rope.dim)
        ramp = min(max((i - low) / (high - low if high != low else 0.001), 0), 1)
        out.append(plain / rope.factor * ramp + plain * (1 - ramp))
    return np.array(out)


@pytest.mark.parametrize(("theta", "dim", "factor", "fast"), [(1e4, 64, 40, 32), (5e4, 64, 32, 1), (1e6, 128, 4, 32)])
def test_yarn_frequencies_equal_the_paper(theta, dim, factor, fast):
    rope = RopeConfig(theta, dim, kind="yarn", factor=factor, original_context=4096, beta_fast=fast, beta_slow=1)
    assert np.allclose(inverse_frequencies(rope).numpy(), yarn_reference(rope), rtol=2e-6)


def test_linear_scaling_divides_and_default_does_not():
    plain = inverse_frequencies(RopeConfig(1e4, 32))
    assert torch.equal(inverse_frequencies(RopeConfig(1e4, 32, kind="linear", factor=4.0)), plain / 4)


def test_llama3_leaves_short_waves_and_divides_long_ones():
    rope = RopeConfig(5e5, 128, kind="llama3", factor=8, original_context=8192, low_freq_factor=1, high_freq_factor=4)
    plain, scaled = inverse_frequencies(RopeConfig(5e5, 128)), inverse_frequencies(rope)
    waves = 2 * math.pi / plain
    assert torch.equal(scaled[waves < 8192 / 4], plain[waves < 8192 / 4])
    assert torch.allclose(scaled[waves > 8192], plain[waves > 8192] / 8)
    middle = (waves >= 8192 / 4) & (waves <= 8192)
    assert ((scaled < plain) & (scaled > plain / 8))[middle].all()


def test_the_two_yarn_corrections_are_different_things():
    both = RopeConfig(1e4, 64, kind="yarn", factor=40, original_context=4096, mscale=0.707, mscale_all_dim=0.707)
    assert rotation_scale(both) == 1.0
    assert softmax_mscale(both) == pytest.approx((0.1 * 0.707 * math.log(40) + 1) ** 2)
    plain = RopeConfig(1e4, 64, kind="yarn", factor=40, original_context=4096)
    assert rotation_scale(plain) == pytest.approx(0.1 * math.log(40) + 1)
    assert softmax_mscale(plain) == 1.0
    assert softmax_mscale(RopeConfig(1e4, 64)) == rotation_scale(RopeConfig(1e4, 64)) == 1.0


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("position", [0, 1, 100, 4095, 4096, 9000])
def test_rotation_turns_each_pair_by_its_angle(interleaved, position):
    rope = RopeConfig(1e4, 8)
    x = torch.randn(1, 2, 12, generator=torch.Generator().manual_seed(0))
    angle = torch.tensor([float(position)])[:, None, None] * inverse_frequencies(rope)
    got = rotate(x, angle.cos(), angle.sin(), interleaved).double().numpy()
    exact = position * 1e4 ** (-np.arange(4) / 4)
    data = x.double().numpy()
    pairs = (data[..., 0:8:2], data[..., 1:8:2]) if interleaved else (data[..., :4], data[..., 4:8])
    a = pairs[0] * np.cos(exact) - pairs[1] * np.sin(exact)
    b = pairs[1] * np.cos(exact) + pairs[0] * np.sin(exact)
    assert np.abs(got[..., :8] - np.concatenate([a, b], -1)).max() < 1e-5 + position * 2e-7
    assert np.array_equal(got[..., 8:], data[..., 8:]), "the part that is not rotated passes through"
