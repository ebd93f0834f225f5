"""Runs a model over a text to see which inputs of its experts count, and which layers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from hetero.engine.batch import Batch
from hetero.engine.engine import Engine
from hetero.engine.ops import Ops, Runtime
from hetero.machine.types import UsageError
from hetero.models.importance import Importance, LayerImportance, importance_of
from hetero.models.progress import Meter, Progress, silent
from hetero.native import ExpertBank, Kernels

WINDOW = 512
"""Tokens that are read as one text."""
_WINDOWS = 64
"""Windows that are read at most: statistics of 32,768 tokens do not get better by more."""
_NOISY = 4
"""Windows that each layer's sensitivity is measured on."""
_NOISE = 0.15
"""Noise of a layer's output, relative to it: about what 4-bit weights cause, well above that of rounded activations."""
_FEWEST = 64
_AT_ONCE = 32
"""Tokens whose answers are compared at a time."""

Watch = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]


class _WatchedOps(Ops):
    """Ops that show what goes into the experts."""

    def __init__(self, watch: Watch, runtime: Runtime, batch: Batch) -> None:
        super().__init__(runtime, batch)
        self._watch = watch

    def experts(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self._watch(layer, x.cpu(), ids.cpu(), weights.cpu())
        return super().experts(layer, x, ids, weights)


class _NoisyOps(Ops):
    """Ops that add noise to the experts' output of one layer, in proportion to each token's."""

    def __init__(self, layer: int, runtime: Runtime, batch: Batch) -> None:
        super().__init__(runtime, batch)
        self._layer = layer

    def experts(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = super().experts(layer, x, ids, weights)
        if layer != self._layer:
            return out
        noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(layer)).to(out.device)
        return out + noise * (_NOISE * out.square().mean(dim=1, keepdim=True).sqrt())


class _Sums:
    """Sums over the tokens that a layer's experts were given."""

    def __init__(self, bank: ExpertBank, kernels: Kernels) -> None:
        self._bank, self._kernels = bank, kernels
        self.inputs = np.zeros((bank.n_experts, bank.hidden), np.float32)
        self.hiddens = np.zeros((bank.n_experts, bank.inter), np.float32)
        self.weights = np.zeros(bank.n_experts, np.float32)
        self.visits = np.zeros(bank.n_experts, np.int64)

    def add(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """x [T, hidden], ids and weights [T, k] of one step."""
        for expert in ids.unique().tolist():
            rows, slots = (ids == expert).nonzero(as_tuple=True)
            squares = weights[rows, slots].square()
            self.inputs[expert] += (squares @ x[rows].square()).numpy()
            self.hiddens[expert] += (squares @ self._hidden(expert, x[rows]).square()).numpy()
            self.weights[expert] += float(squares.sum())
            self.visits[expert] += len(rows)

    def _hidden(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """What an expert's down matrix is given, [T, inter]."""
        bank = self._bank
        extent = bank.data[expert * bank.stride : (expert + 1) * bank.stride]
        formats = bank.gate_format, bank.up_format
        raw = self._kernels.unpack_expert(extent, *formats, bank.down_format, bank.hidden, bank.inter)
        outs = []
        for fmt, rows, bias in zip(formats, raw, (bank.gate_bias, bank.up_bias), strict=False):
            matrix = torch.from_numpy(self._kernels.dequantize(fmt, rows, bank.inter, bank.hidden))
            outs.append(F.linear(x, matrix, None if bias is None else torch.from_numpy(bias[expert])))
        return joined(bank.activation, *outs)

    def importance(self, sensitivity: float) -> LayerImportance:
        """What the sums say."""
        inputs, hiddens = (importance_of(s, self.weights, self.visits) for s in (self.inputs, self.hiddens))
        return LayerImportance(inputs, hiddens, self.weights / max(float(self.weights.sum()), 1e-30), sensitivity)


def joined(activation: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The two halves of an expert as its down matrix gets them; the activations of `hetero.native.ACTIVATIONS`."""
    if activation == "gpt_oss":
        gate, up = gate.clamp(max=7), up.clamp(-7, 7)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    if activation == "clamped_silu":
        return F.silu(gate.clamp(max=10)) * up.clamp(-10, 10)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


def windows(engine: Engine, text: str) -> list[list[int]]:
    """Token ids of the text, cut. Raises UsageError for one that is too short."""
    size = min(WINDOW, engine.plan.context)
    ids = engine.text.encode_text(text).ids
    if len(ids) < _FEWEST:
        raise UsageError(f"the text has {len(ids)} tokens", f"give {_FEWEST} at least, thousands are better")
    cut = [ids[i : i + size] for i in range(0, len(ids), size)]
    return [window for window in cut if len(window) >= min(len(ids), size) // 2][:_WINDOWS]


def calibrate(engine: Engine, text: str, progress: Progress = silent) -> Importance:
    """What the experts of `engine`'s model are given by `text`, and what errors of each layer's output would do.

    Raises UsageError for a model without experts and for a text that is too short.
    """
    model = engine.model
    if not model.banks:
        raise UsageError(f"{model.name} has no experts to calibrate", "leave --calibrate away")
    texts = windows(engine, text)
    noisy = texts[:_NOISY]
    meter = Meter(progress, _tokens(texts) + len(model.banks) * _tokens(noisy), "calibrating")
    sums = {layer: _Sums(bank, model.kernels) for layer, bank in model.banks.items()}

    def watch(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        sums[layer].add(x, ids, weights)

    lost: dict[int, list[npt.NDArray[np.float32]]] = {layer: [] for layer in sums}
    for number, ids in enumerate(texts):
        with engine.using(partial(_WatchedOps, watch)):
            answer = _answer(engine, ids, meter)
        for layer in sums if number < len(noisy) else ():
            with engine.using(partial(_NoisyOps, layer)):
                lost[layer].append(_divergence(answer, _answer(engine, ids, meter)))
    layers = {
        layer: found.importance(float(np.concatenate(lost[layer]).mean()) / _NOISE**2) for layer, found in sums.items()
    }
    return Importance(hashlib.blake2b(text.encode(), digest_size=4).hexdigest(), _tokens(texts), layers)


def _tokens(texts: Sequence[list[int]]) -> int:
    return sum(len(ids) for ids in texts)


def _answer(engine: Engine, ids: list[int], meter: Meter) -> torch.Tensor:
    """Logits [T, vocab]."""
    logits = torch.from_numpy(engine.logits(ids))
    meter.tick(len(ids))
    return logits


def _divergence(a: torch.Tensor, b: torch.Tensor) -> npt.NDArray[np.float32]:
    """KL(p || q) of each token, of the logits [T, vocab] of p and q, some tokens at a time to need little memory."""
    found = []
    for p, q in zip(a.split(_AT_ONCE), b.split(_AT_ONCE), strict=True):
        p, q = torch.log_softmax(p, dim=-1), torch.log_softmax(q, dim=-1)
        found.append((p.exp() * (p - q)).sum(dim=-1))
    all_of_them: npt.NDArray[np.float32] = torch.cat(found).numpy()
    return all_of_them
