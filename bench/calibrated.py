"""What `hetero convert --calibrate` gains on the demo model: stores of equal size, made with and without a text."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import demo_formats as made
from bench.paired import Paired, Values, divergence, log_softmax, loss
from hetero.engine.calibration import calibrate
from hetero.models.convert import convert
from hetero.models.importance import Importance
from hetero.native import Kernels

BUDGETS: tuple[float | None, ...] = (None, 5.0, 5.5, 6.5)
"""Bits per weight of mixed experts; None: all of them Q4_0."""
_DIALOGUES = 120


def text(template: made.Engine) -> str:
    """Chats like those the demo model was trained on, none of which is held out."""
    from make_data import dialogues

    chats = dialogues(seed=11, count=_DIALOGUES)
    return "".join(template.text.encode_chat(chat, add_generation_prompt=False).text for chat in chats)


@dataclass(frozen=True, slots=True)
class Gain:
    """One size: KL from the original model in nats per token, window by window, and the perplexities."""

    budget: float | None
    plain: tuple[float, ...]
    calibrated: tuple[float, ...]
    perplexities: tuple[float, float]
    experts: tuple[int, int]
    """Bytes of the experts in the two stores."""

    @property
    def lost(self) -> Paired:
        """By how much the calibrated store diverges more."""
        return Paired.of(self.calibrated, self.plain)


def gains(
    original: Sequence[Values], texts: Sequence[list[int]], tier: str, folder: Path, budgets: Sequence[float | None]
) -> list[Gain]:
    """The demo model's experts quantised at each budget with and without calibration; the dense part stays as it is."""
    source = made.write(folder / "original.gguf", made.original(), {})
    with contextlib.closing(made.engine(source, tier, len(texts[0]))) as engine:
        importance = calibrate(engine, text(engine))

    def run(budget: float | None, known: Importance | None) -> tuple[list[float], float, int]:
        treatment = "q4" if budget is None else "mixed"
        path = folder / "store.hetero"
        convert(source, path, experts=treatment, bits=budget, importance=known, kernels=Kernels(tier), force=True)
        size = sum(file.stat().st_size for file in path.glob("experts-*.bin"))
        with contextlib.closing(made.engine(path, tier, len(texts[0]))) as engine:
            found = [log_softmax(engine.logits(ids)) for ids in texts]
        losses = [loss(p, ids) for p, ids in zip(found, texts, strict=True)]
        lost = [float(divergence(p, q).mean()) for p, q in zip(original, found, strict=True)]
        return lost, float(np.exp(np.mean(losses))), size

    out = []
    for budget in budgets:
        (plain, first, size), (calibrated, second, other) = run(budget, None), run(budget, importance)
        out.append(Gain(budget, tuple(plain), tuple(calibrated), (first, second), (size, other)))
    return out


def section(found: Sequence[Gain]) -> str:
    """A heading, what is shown, and a Markdown table."""
    lines = [_ABOUT, "| experts | MB | perplexity | calibrated | KL from original | calibrated | difference |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for g in found:
        name = "Q4_0" if g.budget is None else f"mixed, {g.budget:g} bits"
        sizes = " / ".join(f"{size / 1e6:.2f}" for size in dict.fromkeys(g.experts))
        numbers = f"{np.mean(g.plain):.2e} | {np.mean(g.calibrated):.2e} | {g.lost}"
        lines.append(f"| {name} | {sizes} | {g.perplexities[0]:.4f} | {g.perplexities[1]:.4f} | {numbers} |")
    return "\n".join([*lines, ""])


_ABOUT = """## Calibration

`hetero convert --calibrate TEXT` against the same command without it, at the same bits: the experts of the original
model quantised, the dense part left in float32, on the same windows. The text is chats like those of the training, none
of which is held out. A negative difference is a gain; perplexities as near to the original's as these differ by chance.
"""
