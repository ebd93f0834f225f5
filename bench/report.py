"""docs/benchmarks.md and its JSON: what was measured against whom, as medians, ratios and their spread."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

SCHEMA = "hetero.bench-peers"
VERSION = 1

_INTRO = """# Benchmarks

This file is written by `make bench-peers`; do not edit it. The samples are in `{json}`.

hetero and each peer keep the same model loaded, in a process each, and run in turns: one run of hetero, one of the
peer, then the peer first, and so on. Whoever is not measured is stopped. The figures are medians; *ratio* is the
median of hetero over that of the peer (above 1: hetero is faster), in brackets the smallest and largest ratio of two
runs side by side. *read* is the machine's own memory bandwidth, measured between the runs with all threads. Prefill
reads random tokens into an empty context up to the first token; decode writes tokens greedily after a prompt of one.
Runs of the same commit are pooled.
"""


@dataclass(frozen=True)
class Record:
    """One comparison: samples of hetero and of a peer in the order they were taken, and the bandwidth before each pair.

    Samples are `unit`: tok/s, or ms where less is better. `setup` names machine, threads, tier and options.
    """

    setup: str
    commit: str
    model: str
    peer: str
    version: str
    what: str
    unit: str
    hetero: tuple[float, ...]
    other: tuple[float, ...]
    bandwidth: tuple[float, ...]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a later measurement adds to or replaces."""
        return (self.setup, self.model, self.peer, self.what)

    def same(self, other: Record) -> bool:
        """Whether both measured the same two programs."""
        return (self.commit, self.version, self.unit) == (other.commit, other.version, other.unit)

    def joined(self, later: Record) -> Record:
        """The samples of both."""
        hetero, other = self.hetero + later.hetero, self.other + later.other
        return replace(self, hetero=hetero, other=other, bandwidth=self.bandwidth + later.bandwidth)

    def ratio(self) -> float:
        """How many times faster hetero is, by medians."""
        return self._faster(statistics.median(self.hetero), statistics.median(self.other))

    def ratios(self) -> list[float]:
        """The same, run by run."""
        return [self._faster(own, other) for own, other in zip(self.hetero, self.other, strict=True)]

    def _faster(self, own: float, other: float) -> float:
        return other / own if self.unit == "ms" else own / other


def load(path: Path) -> list[Record]:
    """Records kept in `path`; none if it is missing. ValueError for a file of another kind."""
    if not path.exists():
        return []
    body = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(body, dict) or (body.get("schema"), body.get("version")) != (SCHEMA, VERSION):
        raise ValueError(f"{path} is not a file of {SCHEMA} version {VERSION}")
    lists = ("hetero", "other", "bandwidth")
    return [Record(**{k: tuple(v) if k in lists else v for k, v in one.items()}) for one in body["records"]]


def merge(kept: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """`kept` and `new`: samples of the same commit and peer are joined, those of another commit replaced."""
    merged = {record.key: record for record in kept}
    for record in new:
        before = merged.get(record.key)
        merged[record.key] = before.joined(record) if before and before.same(record) else record
    return list(merged.values())


def save(records: Sequence[Record], path: Path) -> None:
    """Write the JSON."""
    body = {"schema": SCHEMA, "version": VERSION, "records": [asdict(record) for record in records]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def render(records: Sequence[Record], json_name: str, notes: Sequence[str] = ()) -> str:
    """The page."""
    parts = [_INTRO.format(json=json_name)]
    parts += [note + "\n" for note in notes]
    for setup in dict.fromkeys(record.setup for record in records):
        parts.append(f"## {setup}\n")
        parts.append(_table([record for record in records if record.setup == setup]))
    return "\n".join(parts)


def _table(records: Sequence[Record]) -> str:
    lines = [
        "| model | run | peer | hetero | peer | ratio | read GB/s | runs | commit |",
        "|---|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for record in records:
        ratios = record.ratios()
        cells = [
            record.model,
            record.what,
            f"{record.peer} ({record.version})",
            _cell(record.hetero, record.unit),
            _cell(record.other, record.unit),
            f"**{record.ratio():.2f}** ({min(ratios):.2f} to {max(ratios):.2f})",
            _range([value / 1e9 for value in record.bandwidth]),
            str(len(record.hetero)),
            record.commit,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(samples: Sequence[float], unit: str) -> str:
    return f"{number(statistics.median(samples))} {unit}"


def _range(samples: Sequence[float]) -> str:
    return f"{min(samples):.0f} to {max(samples):.0f}" if samples else ""


def number(value: float) -> str:
    """With three digits that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
