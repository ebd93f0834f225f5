"""What a conversion does to weights: keep them, or quantise experts and dense matrices, some parts finer than others.

`mixed` chooses a format for two parts of each layer of experts, down and the two that are computed in one pass, gate
and up: all begin at the coarsest one, and the part whose measured error falls most for the bits it takes is made finer,
as long as the average stays within the budget. Experts of a layer share their formats: a store gives them one layout.

The error of a part is the relative squared error of its weights, a sum over its matrices, as a product's relative
errors add up. With an `Importance` each input's error counts by how large that input is, as the error of the matrix's
output does, and each layer's by what an error of its output does to the model's answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hetero.machine.types import ModelIndex, TensorInfo, UsageError
from hetero.models.checkpoint import Checkpoint
from hetero.models.importance import Floats, Importance, LayerImportance
from hetero.models.layout import EXPERT_TARGETS, Formats, LayerSlot, Layout, expert_name, make_layout
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
PARTS: dict[str, tuple[str, ...]] = {"gate and up": ("gate", "up"), "down": ("down",)}
Part = tuple[int, str]
"""A layer and one of `PARTS`."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """`experts` is keep, q4, q8, bf16 or mixed; `dense` a format's name; `layers` what mixed has chosen."""

    experts: str = "keep"
    dense: str | None = None
    bits: float | None = None
    layers: Mapping[int, Formats] = field(default_factory=dict)
    importance: Importance | None = None

    @property
    def label(self) -> str:
        """The treatment in words; the same words and the same source give the same store."""
        budget = f" {self.bits:g}" if self.experts == MIXED else ""
        text = f", calibrated {self.importance.name}" if self.importance else ""
        return f"{self.experts}{budget}{text}" + (f", dense {self.dense}" if self.dense else "")

    def layout(self, source: Checkpoint) -> Layout:
        """Where every weight of `source` lies after the treatment. Raises UsageError where the shapes forbid it."""
        target = EXPERT_TARGETS.get(self.experts)
        layers = self.layers
        if target:
            layers = dict.fromkeys(range(source.config.n_layers), (target, target, target))
        return make_layout(source.index, layers, self.dense, source.mtp)


def treated_index(index: ModelIndex, layout: Layout) -> ModelIndex:
    """The index with the formats that its tensors have in the store."""
    formats = {slot.name: slot.format for slot in layout.dense}
    formats |= {name: f for slot in layout.layers for name, f in zip(slot.names, slot.formats, strict=True)}

    def treated(info: TensorInfo) -> TensorInfo:
        fmt = formats.get(info.name, info.format)
        return info if fmt == info.format else replace(info, format=fmt, n_bytes=source_bytes(fmt, info.shape))

    return replace(index, tensors=tuple(treated(info) for info in index.tensors))


def checked(experts: str, dense: str | None, bits: float | None, calibrated: bool = False) -> Treatment:
    """The treatment that a user asks for; `mixed` is not yet planned. Raises UsageError for what cannot be done."""
    if experts not in ("keep", MIXED, *EXPERT_TARGETS):
        raise UsageError(f"unknown treatment of experts {experts!r}", "use keep, q4, q8, bf16 or mixed")
    if bits is not None and experts != MIXED:
        raise UsageError(f"--bits is a budget of --experts mixed, not of {experts}", "add --experts mixed")
    if calibrated and experts not in (MIXED, "q4", "q8"):
        raise UsageError(f"--calibrate is of no use to --experts {experts}", "add --experts mixed, q4 or q8")
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
    """The treatment with formats for every layer. Reads some experts of each layer where it is `mixed`."""
    if treatment.experts != MIXED:
        return treatment
    assert treatment.bits is not None
    slots = make_layout(source.index).layers
    meter = Meter(progress, _SAMPLE * len(slots), "measuring errors")
    errors: dict[Part, list[float]] = {}
    sizes: dict[Part, int] = {}
    for slot in slots:
        known = treatment.importance.layers[slot.layer] if treatment.importance else None
        for part, found in measured_errors(source, slot, kernels, known).items():
            errors[slot.layer, part] = found
            sizes[slot.layer, part] = len(PARTS[part]) * slot.n_experts * slot.hidden * slot.inter
        meter.tick(_SAMPLE)
    chosen = within_budget(errors, sizes, [FORMATS[f].bits_per_weight for f in _STEPS], treatment.bits)

    def formats(layer: int) -> Formats:
        first, down = (_STEPS[chosen[layer, part]] for part in PARTS)
        return first, first, down

    return replace(treatment, layers={slot.layer: formats(slot.layer) for slot in slots})


def measured_errors(
    source: Checkpoint, slot: LayerSlot, kernels: Kernels, importance: LayerImportance | None = None
) -> dict[str, list[float]]:
    """What each of the formats that mixed chooses from costs each part of a layer, by some of its experts."""
    if importance is None:
        sample = sorted({round(i * (slot.n_experts - 1) / max(1, _SAMPLE - 1)) for i in range(_SAMPLE)})
    else:
        sample = np.argsort(-importance.usage, kind="stable")[:_SAMPLE].tolist()
    weight = 1.0 if importance is None else importance.sensitivity
    out = {}
    for part, matrices in PARTS.items():
        found = [_matrix_errors(source, slot.layer, matrix, kernels, sample, importance) for matrix in matrices]
        out[part] = [weight * sum(errors) for errors in zip(*found, strict=True)]
    return out


def _matrix_errors(
    source: Checkpoint,
    layer: int,
    matrix: str,
    kernels: Kernels,
    sample: list[int],
    importance: LayerImportance | None,
) -> list[float]:
    """Relative squared errors of the gate, up or down matrices of the `sample`, in each format."""
    info = source.info(expert_name(layer, matrix))
    k = info.shape[-1]
    squares, norm = np.zeros(len(_STEPS)), 0.0
    for expert in sample:
        rows = source.read_rows(info.name, expert)
        exact = kernels.dequantize(info.format, rows, len(rows), k)
        counts = None if importance is None else importance.of(matrix, expert)
        share = 1.0 if importance is None else float(importance.usage[expert])
        norm += share * _squared(exact, counts)
        for step, format in enumerate(_STEPS):
            if k % FORMATS[format].block_k:
                what = f"layer {layer}: rows of {k} weights cannot be {format}"
                raise UsageError(what, "convert with --experts keep")
            coded = kernels.quantize(format, exact, counts)
            squares[step] += share * _squared(kernels.dequantize(format, coded, *exact.shape) - exact, counts)
    return [float(s) / norm if norm else 0.0 for s in squares]


def _squared(x: Floats, counts: Floats | None) -> float:
    """The sum of the squares of x [n, k], where column i counts `counts[i]` times."""
    columns = np.einsum("nk,nk->k", x, x, dtype=np.float64)
    return float(columns.sum() if counts is None else columns @ counts)


def within_budget(
    errors: Mapping[Part, list[float]], sizes: Mapping[Part, int], bits: list[float], budget: float
) -> dict[Part, int]:
    """A step for every part, with `budget` bits per weight on average.

    `bits` tells the width of each step, `errors` what each costs a part, `sizes` the weights of each part.
    """
    chosen = dict.fromkeys(errors, 0)
    spare = (budget - bits[0]) * sum(sizes.values()) * (1 + 1e-12)

    def gain(part: Part, finer: int) -> float:
        step = chosen[part]
        return (errors[part][step] - errors[part][finer]) / ((bits[finer] - bits[step]) * sizes[part])

    while True:
        moves = [
            (part, finer)
            for part, step in chosen.items()
            for finer in range(step + 1, len(bits))
            if (bits[finer] - bits[step]) * sizes[part] <= spare
        ]
        part, finer = max(moves, key=lambda move: gain(*move), default=((0, ""), 0))
        if not moves or gain(part, finer) <= 0:
            return chosen
        spare -= (bits[finer] - bits[chosen[part]]) * sizes[part]
        chosen[part] = finer
