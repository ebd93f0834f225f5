"""What the rounding of activations costs: the demo model in every weight format, by hetero, llama.cpp and exactly.

`make bench-quality` runs it and writes docs/quality.md. For each format the demo model is quantised once. Windows of
held-out text go through hetero's kernels (each tier that runs here), through llama.cpp on the same file, and through an
exact float64 forward over the same dequantised weights. Differences are taken window by window, so that their standard
errors are those of pairs. Ends with 1 where hetero's perplexity or its divergence from the unquantised model is not
within --errors standard errors of the exact forward's, or where it diverges further from the exact forward than
llama.cpp does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import calibrated
from bench import demo_formats as made
from bench.paired import Paired, Values, divergence, log_softmax, loss
from hetero.models import demo
from hetero.models.checkpoint import open_checkpoint
from hetero.models.load import load_source_text
from hetero.native import cpu_tiers
from tests.engine.llamacpp import LlamaCpp

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = demo.path().parent / "heldout.json"
PEER = "llama.cpp"


def windows(count: int, length: int) -> list[list[int]]:
    """Token ids of `count` windows of `length` tokens, cut from the held-out chats in a fixed random order."""
    data = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    chats = list(data["dialogues"])
    for kind in ("questions", "sums", "outside"):
        pairs = ((case["question"], case["answer"]) for case in data[kind])
        chats += [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in pairs]
    random.Random(0).shuffle(chats)
    with open_checkpoint(demo.path()) as source:
        text = load_source_text(source)
    ids = [token for chat in chats for token in text.encode_chat(chat, add_generation_prompt=False).ids]
    cut = [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]
    if count > len(cut):
        raise SystemExit(f"the held-out text has {len(cut)} windows of {length} tokens, not {count}")
    return cut[:count]


@dataclass(frozen=True, slots=True)
class Run:
    """One engine on one format, a value per window: loss, KL from the unquantised model, KL from the exact forward."""

    loss: tuple[float, ...]
    from_original: tuple[float, ...]
    from_exact: tuple[float, ...]
    most: float
    """Mean KL from the exact forward of the nine tenths of all tokens with the least: those whose routers agree."""

    @property
    def perplexity(self) -> float:
        return float(np.exp(np.mean(self.loss)))


@dataclass(frozen=True, slots=True)
class Format:
    """What was measured of a format: the exact forward, and the engines by name."""

    name: str
    exact: Run
    engines: dict[str, Run]

    def failures(self, errors: float) -> list[str]:
        """What does not hold, in words."""
        found = []
        for name, run in self.engines.items():
            if name == PEER:
                continue
            where = f"{self.name} {name}"
            worse = Paired.of(run.loss, self.exact.loss)
            if abs(worse.mean) > errors * worse.error:
                found.append(f"{where}: loss differs from the exact forward's by {worse}")
            lost = Paired.of(run.from_original, self.exact.from_original)
            if lost.above(errors):
                found.append(f"{where}: KL from the original is above the exact forward's by {lost}")
            if peer := self.engines.get(PEER):
                further = Paired.of(run.from_exact, peer.from_exact)
                if further.above(errors):
                    found.append(f"{where}: KL from the exact forward is above llama.cpp's by {further}")
        return found


class Bench:
    """The original model's answers on the windows, against which formats are measured."""

    def __init__(self, texts: Sequence[list[int]], tiers: Sequence[str], folder: Path) -> None:
        self.texts, self.tiers, self.folder = texts, tiers, folder
        self.values = made.original()
        forward = made.exact(self.values, {})
        self.original = [log_softmax(forward(ids)) for ids in texts]

    def measure(self, fmt: str) -> Format:
        """One format, by every engine that computes with it."""
        matrices = made.coded(fmt, self.values)
        forward = made.exact(self.values, matrices)
        exact = [log_softmax(forward(ids)) for ids in self.texts]
        shared = fmt in made.GGML
        path = made.write(self.folder / f"{fmt}.gguf", self.values, matrices) if shared else None
        runs = {}
        for tier in self.tiers:
            with contextlib.closing(made.engine(path or made.checkpoint(matrices), tier, len(self.texts[0]))) as hetero:
                runs[tier] = self._run(hetero.logits, exact)
        if path:
            with contextlib.closing(LlamaCpp(path, len(self.texts[0]), threads=1)) as peer:
                runs[PEER] = self._run(peer.logits, exact)
            path.unlink()
        answers = iter(exact)
        return Format(fmt, self._run(lambda ids: next(answers), exact), runs)

    def _run(self, logits: made.Forward, exact: Sequence[Values]) -> Run:
        """One window's logits at a time, as those of many take gigabytes."""
        rows, tokens = [], []
        for ids, original, right in zip(self.texts, self.original, exact, strict=True):
            found = log_softmax(logits(ids))
            tokens.extend(divergence(right, found))
            lost = float(divergence(original, found).mean())
            rows.append((loss(found, ids), lost, float(np.mean(tokens[-len(ids) :]))))
        return Run(*zip(*rows, strict=True), most=float(np.mean(sorted(tokens)[: len(tokens) * 9 // 10])))


def table(formats: Sequence[Format]) -> str:
    """A Markdown table: a line for the exact forward of each format and one for each engine."""
    heads = "format | by | perplexity | loss over exact | KL from original | over exact | KL from exact | nine tenths"
    lines = [f"| {heads} |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    for f in formats:
        lines.append(f"| {f.name} | exact | {f.exact.perplexity:.4f} | | {np.mean(f.exact.from_original):.2e} | | | |")
        for name, run in f.engines.items():
            more = Paired.of(run.loss, f.exact.loss), Paired.of(run.from_original, f.exact.from_original)
            cells = ["", name, f"{run.perplexity:.4f}", str(more[0]), f"{np.mean(run.from_original):.2e}", str(more[1])]
            cells += [f"{np.mean(run.from_exact):.2e}", f"{run.most:.1e}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(
    formats: Sequence[Format], gains: Sequence[calibrated.Gain], texts: Sequence[list[int]], errors: float
) -> str:
    """docs/quality.md."""
    failures = [f"- {text}" for f in formats for text in f.failures(errors)]
    tokens = f"{len(texts)} windows of {len(texts[0])} tokens"
    body = _PAGE.format(tokens=tokens, errors=f"{errors:g}", table=table(formats), narrow=made.NARROW)
    verdict = ["What does not hold:", "", *failures] if failures else ["All of it holds for every format."]
    return "\n".join([body, *verdict, "", calibrated.section(gains)])


_PAGE = """# Quality of the formats

This file is written by `make bench-quality`; do not edit it. The demo model is quantised to each format (attention,
embedding and experts; rows of 128 inputs stay {narrow} under formats with blocks of 256) and reads {tokens} of
held-out chats, questions and stories in three ways over the same weights: *exact* is a float64 forward by the model's
training code, the tiers are hetero's kernels, which round activations, and llama.cpp reads the same file (attention and
cache in float32 in all three). *Original* is the model before it was quantised; the bundled weights lie on the grid of
Q8_0, so each is put somewhere within its cell first. *Loss* is the mean negative log likelihood, KL is in nats per
token. Differences are means over windows and their standard errors, pair by pair. KL from the exact forward is mostly
that of the few tokens for which a router that is nearly undecided goes the other way, and so varies much; *nine tenths*
is the mean of the nine tenths of all tokens that have the least.

Held against each format: loss, and KL from the original, within {errors} standard errors of the exact forward's, and
KL from the exact forward not above llama.cpp's by more than {errors} standard errors.

{table}
"""


def usable_tiers() -> list[str]:
    """The tiers that run here."""
    return [status.name for status in cpu_tiers() if status.usable]


def main(args: Sequence[str] | None = None) -> int:
    """Measure every format, print the table and what does not hold."""
    parser = argparse.ArgumentParser(prog="make bench-quality", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--length", type=int, default=256, help="tokens of a window")
    parser.add_argument("--formats", default="", help="some of them, separated by spaces")
    parser.add_argument("--tiers", default="", help="some of those that run here, separated by spaces")
    parser.add_argument("--errors", type=float, default=3.0, help="standard errors that pass")
    parser.add_argument("--publish", action="store_true", help="write docs/quality.md")
    asked = parser.parse_args(args)
    formats = asked.formats.split() or [*made.GGML, *made.OWN]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        tiers = asked.tiers.split() or usable_tiers()
        texts = windows(asked.windows, asked.length)
        bench = Bench(texts, tiers, Path(folder))
        for fmt in formats:
            print(f"measuring {fmt}", file=sys.stderr)
            results.append(bench.measure(fmt))
        print("calibrating", file=sys.stderr)
        budgets = () if asked.formats else calibrated.BUDGETS
        gains = calibrated.gains(bench.original, texts, tiers[-1], Path(folder), budgets)
    print(table(results), calibrated.section(gains), sep="\n\n")
    if asked.publish:
        (ROOT / "docs" / "quality.md").write_text(page(results, gains, texts, asked.errors), encoding="utf-8")
    failures = [text for result in results for text in result.failures(asked.errors)]
    for text in failures:
        print(text)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
