"""What a conversion does to weights: keep them, or quantise experts and dense matrices, some layers finer than others.

`mixed` chooses a format per layer of experts: all begin at the coarsest one, and the layer whose measured error falls
most for the bits it takes is made finer, as long as the average stays within the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hetero.machine.types import ModelIndex, TensorInfo, UsageError
from hetero.models.checkpoint import Checkpoint
from hetero.models.layout import EXPERT_PARTS, EXPERT_TARGETS, Layout, expert_name, make_layout
from hetero.models.progress import Meter, Progress
from hetero.native import FORMATS, Kernels
from hetero.native.widths import format_name, source_bytes

DENSE_TARGETS = ("F32", "F16", "BF16", "Q8_0", "Q4_0")
"""What the kernels can quantise to."""
MIXED = "mixed"
DEFAULT_BITS = 5.5
_STEPS = ("Q4_0", "Q8_0", "BF16")
_SAMPLE = 4
"""Experts of a layer whose error is measured; those of a layer are alike."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """`experts` is keep, q4, q8, bf16 or mixed; `dense` a format's name; `layers` what mixed has chosen."""

    experts: str = "keep"
    dense: str | None = None
    bits: float | None = None
    layers: Mapping[int, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The treatment in words; the same words and the same source give the same store."""
        budget = f" {self.bits:g}" if self.experts == MIXED else ""
        return f"{self.experts}{budget}" + (f", dense {self.dense}" if self.dense else "")

    def layout(self, source: Checkpoint) -> Layout:
        """Where every weight of `source` lies after the treatment. Raises UsageError where the shapes forbid it."""
        target = EXPERT_TARGETS.get(self.experts)
        layers = dict.fromkeys(range(source.config.n_layers), target) if target else self.layers
        return make_layout(source.index, layers, self.dense, source.mtp)


def treated_index(index: ModelIndex, layout: Layout) -> ModelIndex:
    """The index with the formats that its tensors have in the store."""
    formats = {slot.name: slot.format for slot in layout.dense}
    formats |= {name: f for slot in layout.layers for name, f in zip(slot.names, slot.formats, strict=True)}

    def treated(info: TensorInfo) -> TensorInfo:
        fmt = formats.get(info.name, info.format)
        return info if fmt == info.format else replace(info, format=fmt, n_bytes=source_bytes(fmt, info.shape))

    return replace(index, tensors=tuple(treated(info) for info in index.tensors))


def checked(experts: str, dense: str | None, bits: float | None) -> Treatment:
    """The treatment that a user asks for; `mixed` is not yet planned. Raises UsageError for what cannot be done."""
    if experts not in ("keep", MIXED, *EXPERT_TARGETS):
        raise UsageError(f"unknown treatment of experts {experts!r}", "use keep, q4, q8, bf16 or mixed")
    if bits is not None and experts != MIXED:
        raise UsageError(f"--bits is a budget of --experts mixed, not of {experts}", "add --experts mixed")
    if experts == MIXED:
        bits = DEFAULT_BITS if bits is None else bits
        low, high = (FORMATS[f].bits_per_weight for f in (_STEPS[0], _STEPS[-1]))
        if not low <= bits <= high:
            raise UsageError(f"--bits {bits:g} is no average of formats of {low:g} to {high:g} bits", "try --bits 5.5")
    return Treatment(experts, _dense_target(dense), bits)


def _dense_target(dense: str | None) -> str | None:
    if dense is None or dense == "keep":
        return None
    targets = f"one of keep, {', '.join(DENSE_TARGETS).lower()}"
    try:
        name = format_name(dense)
    except UsageError as problem:
        raise UsageError(problem.message, targets) from None
    if name not in DENSE_TARGETS:
        raise UsageError(f"dense matrices cannot be quantised to {name}", targets)
    return name


def planned(treatment: Treatment, source: Checkpoint, kernels: Kernels, progress: Progress) -> Treatment:
    """The treatment with a format for every layer. Reads some experts of each layer where it is `mixed`."""
    if treatment.experts != MIXED:
        return treatment
    assert treatment.bits is not None
    layers = [slot.layer for slot in make_layout(source.index).layers]
    meter = Meter(progress, _SAMPLE * len(layers), "measuring errors")
    errors: dict[int, list[float]] = {}
    for layer in layers:
        errors[layer] = measured_errors(source, layer, kernels)
        meter.tick(_SAMPLE)
    chosen = within_budget(errors, [FORMATS[f].bits_per_weight for f in _STEPS], treatment.bits)
    formats = {layer: _STEPS[step] for layer, step in chosen.items()}
    return Treatment(MIXED, treatment.dense, treatment.bits, formats)


def measured_errors(source: Checkpoint, layer: int, kernels: Kernels) -> list[float]:
    """Relative squared error of some of a layer's experts in each of the formats that mixed chooses from."""
    count = source.info(expert_name(layer, "gate")).shape[0]
    sample = sorted({round(i * (count - 1) / max(1, _SAMPLE - 1)) for i in range(_SAMPLE)})
    squares, norm = np.zeros(len(_STEPS)), 0.0
    for expert in sample:
        for part in EXPERT_PARTS:
            info = source.info(expert_name(layer, part))
            rows = source.read_rows(info.name, expert)
            exact = kernels.dequantize(info.format, rows, len(rows), info.shape[-1])
            norm += float(np.vdot(exact, exact))
            for step, format in enumerate(_STEPS):
                if info.shape[-1] % FORMATS[format].block_k:
                    what = f"layer {layer}: rows of {info.shape[-1]} weights cannot be {format}"
                    raise UsageError(what, "convert with --experts keep")
                delta = kernels.dequantize(format, kernels.quantize(format, exact), *exact.shape) - exact
                squares[step] += float(np.vdot(delta, delta))
    return [float(s) / norm if norm else 0.0 for s in squares]


def within_budget(errors: Mapping[int, list[float]], bits: list[float], budget: float) -> dict[int, int]:
    """A step for every layer, of which `bits` tells the width and `errors` the error, with `budget` bits on average."""
    chosen = dict.fromkeys(errors, 0)
    spare = (budget - bits[0]) * len(errors)
    while True:
        gains = [
            ((errors[layer][step] - errors[layer][finer]) / (bits[finer] - bits[step]), -layer, finer)
            for layer, step in chosen.items()
            for finer in range(step + 1, len(bits))
            if bits[finer] - bits[step] <= spare + 1e-9
        ]
        gain, layer, finer = max(gains, default=(0.0, 0, 0))
        if gain <= 0:
            return chosen
        spare -= bits[finer] - bits[chosen[-layer]]
        chosen[-layer] = finer
