"""Questions around a plan, each answered by planning again: what would help, what reaches a rate, how a rate falls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hetero.machine.ledger import PAGE_TOKENS
from hetero.machine.plan import plan
from hetero.machine.traffic import active_parameters, total_parameters
from hetero.machine.types import HardwareError, HeteroError, Machine, ModelIndex, Plan, PlanRequest, UsageError
from hetero.machine.units import size_text
from hetero.machine.whatif import WhatIf, imagine
from hetero.native.widths import bits

GIB = 1 << 30
_MOST = 64.0
"""No change by a larger factor is looked for."""
_CARD_SIZES = (8, 12, 16, 24, 32, 48, 80, 96, 141, 192)
_FORMATS = ("Q8_0", "Q4_0", "Q2_K")


@dataclass(frozen=True, slots=True)
class Change:
    """One change: in words, as options of `hetero plan`, and what it brings. `factor` is its size (1 is free)."""

    what: str
    option: str
    prefill_tps: float
    decode_tps: float
    factor: float


@dataclass(frozen=True, slots=True)
class Case:
    """What is planned: a model on a machine under a request."""

    index: ModelIndex
    machine: Machine
    request: PlanRequest

    def plan(self) -> Plan:
        """The plan, also where it does not fit."""
        return plan(self.index, self.machine, replace(self.request, force=True))

    def with_machine(self, **what: object) -> Case:
        """The same on a changed machine."""
        return replace(self, machine=imagine(self.machine, WhatIf(**what)))  # type: ignore[arg-type]

    def with_request(self, **what: object) -> Case:
        """The same under another request."""
        return replace(self, request=replace(self.request, **what))  # type: ignore[arg-type]


def advice(case: Case, made: Plan, most: int = 3) -> tuple[Change, ...]:
    """Single changes that make decoding at least 5 % faster, best first."""
    assert made.decode is not None
    found = []
    for what, option, factor, other in _candidates(case, made):
        change = _tried(what, option, factor, other)
        if change is not None and change.decode_tps > 1.05 * made.decode.likely:
            found.append(change)
    return tuple(sorted(found, key=lambda change: -change.decode_tps)[:most])


def remedy(case: Case) -> str:
    """The smallest change that would make it fit; empty where it fits."""
    try:
        plan(case.index, case.machine, replace(case.request, force=False))
    except HardwareError as error:
        return error.hint
    return ""


def _tried(what: str, option: str, factor: float, case: Case) -> Change | None:
    try:
        made = case.plan()
    except HeteroError:
        return None
    if not made.fits or made.prefill is None or made.decode is None:
        return None
    return Change(what, option, made.prefill.likely, made.decode.likely, factor)


def _candidates(case: Case, made: Plan) -> Iterator[tuple[str, str, float, Case]]:
    yield from _formats(case)
    gather = _gather(case, made)
    twice = 2 * gather
    yield (
        f"twice the memory bandwidth ({_rate(twice)})",
        f"--bandwidth {_rate(twice)}",
        2.0,
        case.with_machine(bandwidth=twice),
    )
    if not case.machine.gpus:
        other = case.with_machine(vram=24 * GIB)
        yield "a GPU of 24 GiB for the dense part", "--vram 24G", 2.0, other
        packed = other.with_request(dense=case.request.dense or "Q4_0")
        yield "a GPU of 24 GiB with a 4-bit dense part", "--vram 24G --dense q4", 2.0, packed
    if not made.fits:
        missing = dict(made.missing).get("cpu", 0)
        enough = _round_up(case.machine.memory_bytes + missing, GIB)
        other = case.with_machine(ram=enough)
        yield f"{size_text(enough)} of memory", f"--ram {enough // GIB}G", enough / case.machine.memory_bytes, other


def _formats(case: Case) -> Iterator[tuple[str, str, float, Case]]:
    """Smaller formats of the experts and of the dense part."""
    for role, name in (("expert", "experts"), ("dense", "dense")):
        now = _widest(case, role)
        for fmt in _FORMATS:
            if bits(fmt) + 0.2 < now and (role == "expert" or fmt != "Q2_K"):
                short = f"q{fmt[1]}"
                text = f"{'experts' if role == 'expert' else 'the dense part'} in {fmt} ({bits(fmt):g} bits)"
                yield text, f"--{name} {short}", 1.0, case.with_request(**{name: fmt})


def _widest(case: Case, role: str) -> float:
    wanted = case.request.experts if role == "expert" else case.request.dense
    if wanted:
        return bits(wanted)
    sizes = [(math.prod(i.shape), bits(i.format)) for i in case.index.tensors if i.role == role]
    return sum(n * b for n, b in sizes) / max(1, sum(n for n, _ in sizes))


def target(case: Case, wanted: float) -> tuple[Change, ...]:
    """The smallest change of each kind that decodes at `wanted` tokens/s, the smallest of all first."""
    if not 0 < wanted < 1e9:
        raise UsageError(f"--target-tps is {wanted:g}; expected a number above 0", "such as --target-tps 20")
    made = case.plan()
    found = [
        change
        for what, option, factor, other in _formats(case)
        if (change := _tried(what, option, factor, other)) is not None and change.decode_tps >= wanted
    ]
    kinds = (_by_context, _by_bandwidth, _by_memory, _by_card)
    found += [change for kind in kinds if (change := kind(case, made, wanted)) is not None]
    return tuple(sorted(found, key=lambda change: change.factor))


def _by_bandwidth(case: Case, made: Plan, wanted: float) -> Change | None:
    now = _gather(case, made)

    def at(factor: float) -> Change | None:
        rate = _rate(now * factor)
        other = case.with_machine(bandwidth=now * factor)
        return _tried(f"memory that reads {rate} instead of {_rate(now)}", f"--bandwidth {rate}", factor, other)

    return _least(at, wanted)


def _by_context(case: Case, made: Plan, wanted: float) -> Change | None:
    """The longest context that is fast enough; its own tokens cost time."""
    low, high, best = 1, made.context // PAGE_TOKENS, None
    while low <= high:
        middle = (low + high) // 2
        tokens = middle * PAGE_TOKENS
        other = case.with_request(context=tokens, depth=None)
        change = _tried(f"a context of {tokens:,} tokens", f"--context {tokens}", made.context / tokens, other)
        if change is not None and change.decode_tps >= wanted:
            best, low = change, middle + 1
        else:
            high = middle - 1
    return best if best is not None and best.factor > 1 else None


def _by_memory(case: Case, made: Plan, wanted: float) -> Change | None:
    """More memory helps where the experts do not fit."""
    missing = dict(made.missing).get("cpu", 0)
    if not missing:
        return None
    enough = _round_up(case.machine.memory_bytes + missing, GIB)
    text, option = f"{size_text(enough)} of memory", f"--ram {enough // GIB}G"
    change = _tried(text, option, enough / case.machine.memory_bytes, case.with_machine(ram=enough))
    return change if change is not None and change.decode_tps >= wanted else None


def _by_card(case: Case, made: Plan, wanted: float) -> Change | None:
    """The smallest GPU that does it; its size over 8 GiB is how large the change is."""
    have = case.machine.gpu_memory_bytes[0] if case.machine.gpu_memory_bytes else 0
    for size in _CARD_SIZES:
        if size * GIB <= have:
            continue
        change = _tried(f"a GPU of {size} GiB", f"--vram {size}G", 1 + size / 8, case.with_machine(vram=size * GIB))
        if change is not None and change.decode_tps >= wanted:
            return change
    return None


def _least(at: Callable[[float], Change | None], wanted: float) -> Change | None:
    """The smallest factor above 1 that reaches the rate, by halving; the rate rises with the factor."""
    if (most := at(_MOST)) is None or most.decode_tps < wanted:
        return None
    low, high, best = 1.0, _MOST, most
    for _ in range(24):
        middle = math.sqrt(low * high)
        change = at(middle)
        if change is not None and change.decode_tps >= wanted:
            high, best = middle, change
        else:
            low = middle
    return best


def _gather(case: Case, made: Plan) -> float:
    from hetero.machine.speeds import speeds

    return speeds(case.machine, made.threads).gather.value


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _rate(value: float) -> str:
    return f"{value / 1e9:.3g}GB/s" if value < 1e12 else f"{value / 1e9:.0f}GB/s"


SWEPT: dict[str, str] = {
    "context": "tokens",
    "bandwidth": "rate",
    "ram": "bytes",
    "vram": "bytes",
    "prompt": "tokens",
    "threads": "count",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep."""

    value: float
    fits: bool
    prefill_tps: float
    decode_tps: float


def sweep(case: Case, name: str, low: float, high: float, points: int = 9) -> tuple[Point, ...]:
    """Plans between two values, in equal ratios. Raises UsageError for an unknown name or an empty range."""
    if name not in SWEPT:
        raise UsageError(f"--sweep cannot vary {name!r}", f"one of {', '.join(SWEPT)}")
    if not 0 < low < high:
        raise UsageError(f"--sweep {name} has nothing between its ends", f"such as --sweep {name}=4k..128k")
    steps = int(math.log2(high / low)) + 1
    count = steps if math.isclose(2 ** (steps - 1), high / low) and steps > 2 else points
    found: dict[float, Point] = {}
    for i in range(count):
        value = low * (high / low) ** (i / (count - 1))
        value = value if SWEPT[name] == "rate" else float(round(value))
        made = _varied(case, name, value).plan()
        assert made.prefill is not None
        assert made.decode is not None
        found[value] = Point(value, made.fits, made.prefill.likely, made.decode.likely)
    return tuple(found.values())


def _varied(case: Case, name: str, value: float) -> Case:
    if name == "bandwidth":
        return case.with_machine(bandwidth=value)
    if name in ("ram", "vram"):
        return case.with_machine(**{name: int(value)})
    if name == "context":
        return case.with_request(context=int(value), depth=None)
    return case.with_request(**{name: int(value)})


@dataclass(frozen=True, slots=True)
class Facts:
    """What a screen says of a model at first sight."""

    total: float
    active: float

    @property
    def is_dense(self) -> bool:
        return self.active > 0.9 * self.total


def facts(index: ModelIndex) -> Facts:
    """Its parameters, all and those that one token uses."""
    return Facts(total_parameters(index), active_parameters(index))
