"""One step's work: tokens of several requests side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hetero.engine.pages import Sequence


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `start` .. `stop` of a batch: consecutive tokens of one sequence, the first at position `first`.

    `table` int32 [pages] are the sequence's pages during this step.
    """

    sequence: Sequence
    start: int
    stop: int
    first: int
    table: npt.NDArray[np.int32]

    @property
    def length(self) -> int:
        """Positions of the sequence that exist after this step."""
        return self.first + self.stop - self.start

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The rows cut where a checkpoint of the recurrent states is to be made: (start, stop) of one or two parts."""
        cut = self.start + self.sequence.mark - self.first
        return [(self.start, cut), (cut, self.stop)] if self.start < cut < self.stop else [(self.start, self.stop)]


@dataclass(frozen=True, slots=True)
class Batch:
    """A ragged batch: `token_ids` and `positions` int64 [T], the spans that cut it into requests, and the rows
    `sample_rows` int64 [S] whose logits are wanted."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    spans: tuple[Span, ...]
    sample_rows: torch.Tensor


def make_batch(parts: list[tuple[Sequence, list[int], list[int]]], device: torch.device) -> Batch:
    """Lay (sequence, new token ids, wanted rows among them) side by side; each starts where its sequence ends."""
    ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    rows: list[int] = []
    for sequence, new, wanted in parts:
        start, first = len(ids), sequence.length
        ids += new
        positions += range(first, first + len(new))
        spans.append(Span(sequence, start, len(ids), first, np.array(sequence.pages, dtype=np.int32)))
        rows += [start + row for row in wanted]

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return Batch(tensor(ids), tensor(positions), tuple(spans), tensor(rows))
