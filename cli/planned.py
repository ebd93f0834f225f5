"""From the options of `hetero plan` to its answer: which model, which machine, which request, which question."""

from __future__ import annotations

import json as _json
from dataclasses import dataclass
from pathlib import Path

from hetero.machine import quantities
from hetero.machine.types import Machine, PlanRequest, TierError, UsageError


@dataclass(frozen=True, slots=True)
class Said:
    """What-if figures as they were typed."""

    machine: Path | None = None
    ram: str | None = None
    vram: str | None = None
    bandwidth: str | None = None
    pcie: str | None = None
    isa: str | None = None
    cores: int | None = None
    sockets: int | None = None
    ssd: str | None = None
    ram_speed: int | None = None
    channels: int | None = None
    gpu: str | None = None

    def figures(self) -> dict[str, object]:
        """Those that were given, for `inputs`."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name in self.__slots__
            if (value := getattr(self, name)) is not None
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a plan, as it was typed."""

    context: str | None
    kv_dtype: str
    experts: str | None
    dense: str | None
    reserve: str | None
    threads: int | None
    device: str
    depth: str | None
    prompt: str | None
    force: bool

    def request(self) -> PlanRequest:
        """The same, read. Raises UsageError."""
        from hetero.native.widths import format_name

        return PlanRequest(
            device=self.device,
            threads=self.threads,
            context=_tokens(self.context, "--context"),
            kv_dtype=self.kv_dtype,
            force=self.force,
            experts=None if self.experts is None else format_name(self.experts),
            dense=None if self.dense is None else format_name(self.dense),
            reserve=None if self.reserve is None else quantities.parse_bytes_or_zero(self.reserve, "--reserve"),
            depth=_tokens(self.depth, "--depth"),
            prompt=_tokens(self.prompt, "--prompt"),
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of the capacity for agents, as it was typed."""

    agents: int | None = None
    hit_rate: float | None = None
    trace: Path | None = None
    node_ram: str | None = None
    node_net: str | None = None
    node_prefill: float | None = None
    node_decode: float | None = None

    @property
    def given(self) -> bool:
        """Whether it is the question."""
        return self.agents is not None or self.hit_rate is not None or self.trace is not None


def answer(
    model: str | None,
    said: Said,
    wanted: Wanted,
    capacity: Asked,
    json: bool,
    explain: bool,
    target: float | None,
    sweep: str | None,
    history: bool,
    calibrate: bool,
) -> bool:
    """Answer the one question that the options ask; whether it fits, or the target was reached."""
    from hetero.cli import plan_capacity, plan_history, plan_more, plan_view
    from hetero.cli.history import calibrated
    from hetero.machine.advice import Case
    from hetero.models.describe import describe

    _one_question(explain, target, sweep, capacity, history)
    if history:
        plan_history.show(json)
        return True
    request, machine = wanted.request(), machine_of(said, wanted.device)
    if calibrate and not said.figures():
        request = calibrated(request, machine)
    case = Case(describe(_name(model)), machine, request)
    if sweep is not None:
        return plan_more.show_sweep(case, sweep, json)
    if capacity.given:
        plan_capacity.show(case, capacity, json)
    elif target is not None:
        return plan_more.show_target(case, target, json)
    else:
        made = case.plan()
        inputs = {"model": _name(model), "machine": said.figures()}
        plan_view.show(case, made, json, inputs=inputs, explain=explain)
        return made.fits
    return True


def _name(model: str | None) -> str:
    if model is None:
        from hetero.models import demo

        return str(demo.path())
    if not model.strip():
        raise UsageError("MODEL is empty", "give a card, a file, a directory or an address")
    return model


def _one_question(explain: bool, target: float | None, sweep: str | None, capacity: Asked, history: bool) -> None:
    given = {"--explain": explain, "--target-tps": target is not None, "--sweep": sweep is not None}
    given |= {"--agents, --hit-rate or --trace": capacity.given, "--history": history}
    asked = [name for name, present in given.items() if present]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} cannot be answered at once", "give one of them")


def _tokens(text: str | None, what: str) -> int | None:
    return None if text is None else quantities.parse_tokens(text, what)


def machine_of(said: Said, device: str) -> Machine:
    """The local machine or that of `--machine`, with what was said in place. Raises UsageError."""
    from hetero.machine.whatif import WhatIf, imagine

    what = WhatIf(
        ram=_size(said.ram, "--ram"),
        vram=None if said.vram is None else quantities.parse_bytes_or_zero(said.vram, "--vram"),
        bandwidth=_rate(said.bandwidth, "--bandwidth"),
        pcie=_rate(said.pcie, "--pcie"),
        isa=said.isa,
        cores=_count(said.cores, "--cores"),
        sockets=_count(said.sockets, "--sockets"),
        ssd=_rate(said.ssd, "--ssd"),
        ram_speed=_count(said.ram_speed, "--ram-speed"),
        channels=_count(said.channels, "--channels"),
        gpu=said.gpu,
    )
    base = _local(device) if said.machine is None else read_machine(said.machine)
    return imagine(base, what, _built()) if what.given else base


def read_machine(path: Path) -> Machine:
    """A file that `hetero probe --json` wrote. Raises UsageError for any other."""
    from hetero.machine.serialize import from_json

    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", "hetero probe --json > FILE writes one") from None
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}", "check the path") from None
    try:
        data = _json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no JSON ({error})", "hetero probe --json > FILE writes one") from None
    try:
        return from_json(data)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None


def _local(device: str) -> Machine:
    """This machine without asking torch: with rates if `hetero probe` has measured some."""
    from hetero.cli.rates import with_known_rates
    from hetero.machine.probe import probe

    return with_known_rates(probe(quick=True, device=device))


def _built() -> tuple[str, ...]:
    from hetero.native import cpu_tiers

    return tuple(tier.name for tier in cpu_tiers() if tier.built)


def _size(text: str | None, what: str) -> int | None:
    return None if text is None else quantities.parse_bytes(text, what)


def _rate(text: str | None, what: str) -> float | None:
    return None if text is None else quantities.parse_rate(text, what)


def _count(value: int | None, what: str) -> int | None:
    if value is not None and value < 1:
        raise UsageError(f"{what} is {value}; expected a whole number above 0", "hetero plan --help shows examples")
    return value
