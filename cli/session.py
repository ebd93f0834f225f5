"""From MODEL on the command line to a loaded engine: what `chat` and `bench` share."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hetero.cli import history, known, output, plan_view, wording
from hetero.machine.types import Machine, ModelIndex, Plan, PlanRequest, UsageError
from hetero.machine.units import size_text

if TYPE_CHECKING:
    from hetero.engine import Engine


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model whose files are valid and whose plan is made; no weight has been read yet."""

    path: Path
    index: ModelIndex
    machine: Machine
    plan: Plan
    is_demo: bool
    request: PlanRequest

    def load(self, command: str = "", keep: bool = True) -> Engine:
        """Read the weights, with a progress bar on stderr, and record how much memory they took if `keep` is set."""
        from hetero.models.load import load_model, open_model
        from hetero.native import Kernels

        with output.progress("loading") as progress, contextlib.closing(open_model(self.path)) as source:
            model = load_model(source, Kernels(self.plan.isa_tier), progress, self.plan.nodes)
        for text in model.notes:
            output.note(text)
        # Only now, as it imports torch: damaged content has been reported by then.
        from hetero.engine import Engine

        engine = Engine(model, self.plan)
        if keep:
            if not self.is_demo:
                known.remember(self.path)
            self.record(
                command,
                predicted_bytes=history.loaded_bytes(self.plan),
                measured_bytes=history.process_bytes("VmRSS"),
            )
        return engine

    def record(self, command: str, **figures: float | None) -> None:
        """Keep what was predicted and measured; see `history.Run` for the figures."""
        history.record(history.run_of(command, self.index.name, self.machine, self.plan, **figures))

    def summary(self) -> str:
        """Name, bytes, tier, threads and context in one line."""
        plan = self.plan
        weights = sum(tensor.n_bytes for tensor in self.index.tensors)
        parts = [self.index.name, size_text(weights), plan.isa_tier, wording.plural(plan.threads, "thread")]
        if plan.placement.dense != "cpu":
            parts.append(plan.placement.dense)
        return " · ".join([*parts, f"context {plan.context:,}"])


def prepare(model: str | None, request: PlanRequest) -> Prepared:
    """Check the kernels, then the files, then whether it fits, in that order and before torch is imported.

    Raises HardwareError, ModelError or UsageError.
    """
    from hetero.models.load import open_model
    from hetero.native import choose_tier

    choose_tier(None)
    path = _path(model)
    with contextlib.closing(open_model(path)) as source:
        index = source.index
        notes = source.notes
    for text in notes:
        output.note(text)
    from hetero.cli.rates import with_known_rates
    from hetero.machine.plan import plan as make_plan
    from hetero.machine.probe import probe

    machine = with_known_rates(probe(device=request.device))
    request = history.calibrated(request, machine)
    return Prepared(path, index, machine, make_plan(index, machine, request), model is None, request)


def show_plan(prepared: Prepared, as_json: bool) -> None:
    """The end of `--dry-run`: the plan, and exit code 3 when it does not fit."""
    from hetero.machine.advice import Case

    case = Case(prepared.index, prepared.machine, prepared.request)
    plan_view.show(case, prepared.plan, as_json, inputs={"model": str(prepared.path), "machine": {}})
    if not prepared.plan.fits:
        raise typer.Exit(3)


def note_demo() -> None:
    """Say that the bundled demo model is used."""
    output.note("no MODEL given: using the bundled demo model")


def _path(model: str | None) -> Path:
    if model is None:
        from hetero.models import demo

        return Path(demo.path())
    if not model.strip():
        raise UsageError("MODEL is empty", "give a store, a GGUF file or a safetensors directory")
    return Path(model)
