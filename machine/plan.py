"""Where each part of a model goes, what it needs, and whether it fits: arithmetic on headers and facts, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hetero.machine import estimate
from hetero.machine.ledger import KV_BYTES, PAGE_TOKENS, Counted, Shape, all_f32, count, make_ledger
from hetero.machine.speeds import speeds
from hetero.machine.traffic import expert_layers, one_expert_bytes, traffic, with_formats
from hetero.machine.types import (
    Estimate,
    HardwareError,
    HotExperts,
    LedgerLine,
    Machine,
    ModelIndex,
    Placement,
    Plan,
    PlanRequest,
    UsageError,
)
from hetero.machine.units import size_text

DEFAULT_CONTEXT = 8192
SMALLEST_CONTEXT = 512
"""Below this a chat is no use; a context that hetero chooses itself is never smaller."""
PREFILL_CHUNK = 512
GPU_CHUNK = 2048
"""Of a GPU that keeps dense matrices packed: many tokens for each expert that is read."""
_SMALLER = (("Q8_0", "q8"), ("Q4_0", "q4"))
"""Formats that `convert --experts` can make, largest first."""


def plan(index: ModelIndex, machine: Machine, request: PlanRequest) -> Plan:
    """The one estimator: placement, CPUs, context, a ledger of bytes per device, and tokens per second.

    Raises UsageError for what no machine does, HardwareError for want of kernels, a device or, unless forced, memory.
    """
    if machine.isa_tier is None:
        raise HardwareError(machine.isa_reason or "no native kernels for this CPU", "hetero probe shows every tier")
    cpus, notes = _threads(machine, request.threads)
    index = with_formats(index, request.experts, request.dense)
    model = count(index)
    shape, room, shape_notes = _shape(model, machine, request, len(cpus))
    ledger = make_ledger(model, shape)
    short = _shortfalls(ledger, room)
    if short and not request.force:
        raise _refusal(model, machine, shape, ledger, short, room)
    notes += shape_notes + ([_short_text(machine, ledger, short, room)] if short else [])
    notes += [*_readiness(shape), *_calibration_note(request), *index.notes]
    prefill, decode = _estimates(index, machine, request, shape, len(cpus), _missed(model, short))
    return Plan(
        placement=shape.placement,
        isa_tier=machine.isa_tier,
        cpus=cpus,
        cpu_nodes=_nodes_of(machine, cpus),
        context=shape.context,
        kv_dtype=shape.kv_dtype,
        deterministic=request.deterministic,
        prefill_chunk=shape.prefill_chunk,
        ledger=ledger,
        memory_bytes=machine.memory_bytes,
        fits=not short,
        notes=tuple(notes),
        prefill=prefill,
        decode=decode,
        hot_experts=_hot_experts(model, shape, ledger, room),
        missing=tuple(short.items()),
    )


def _shape(
    model: Counted, machine: Machine, request: PlanRequest, threads: int
) -> tuple[Shape, dict[str, int], list[str]]:
    """Placement, context and types; the bytes free per device; notes."""
    index = model.index
    context, notes = _wanted_context(index, request)
    kv_dtype = _kv_dtype(index, request.kv_dtype)
    packed = request.dense is not None
    tile_workers = threads if machine.isa_tier == "amx" else 0
    shape = Shape(Placement(), context, kv_dtype, PREFILL_CHUNK, packed, machine.torch_cuda, tile_workers)
    shape, device_notes = _place(model, machine, request, shape)
    notes += device_notes
    room = _room(machine, shape.placement, request.reserve)
    if request.context is None:
        shape = _shrink(model, shape, room)
        if shape.context < context:
            notes += [f"context {shape.context} instead of {context}: more does not fit in {machine.memory_reason}"]
    return shape, room, notes


def _readiness(shape: Shape) -> list[str]:
    """What this version cannot do yet of what is planned, one sentence each."""
    if not shape.packed_on_gpu or shape.placement.dense == "cpu":
        return []
    unpacks = "this version unpacks dense matrices to bf16 on a GPU"
    return [f"plan only: {unpacks}; here they keep their format and run from CUDA graphs"]


def _calibration_note(request: PlanRequest) -> list[str]:
    prefill, decode = request.calibration
    if (prefill, decode) == (1.0, 1.0):
        return []
    return [f"calibrated by earlier runs here: prefill x {prefill:.2f}, decode x {decode:.2f} (hetero plan --history)"]


def _missed(model: Counted, short: Mapping[str, int]) -> float:
    """The share of the experts that would have to come from the disk for want of memory."""
    return min(1.0, short["cpu"] / model.experts) if model.experts and "cpu" in short else 0.0


def _estimates(
    index: ModelIndex, machine: Machine, request: PlanRequest, shape: Shape, threads: int, missed: float
) -> tuple[Estimate, Estimate]:
    """Prefill and decode, scaled by what earlier runs on this machine showed."""
    depth = shape.context // 2 if request.depth is None else request.depth
    prompt = min(shape.prefill_chunk, shape.context) if request.prompt is None else request.prompt
    if not 0 <= depth <= shape.context or not 1 <= prompt <= shape.context:
        text = f"{max(depth, prompt):,} tokens do not fit in a context of {shape.context:,}"
        raise UsageError(text, f"--context {max(depth, prompt)}")
    on_gpu = shape.placement.dense != "cpu"
    load = estimate.Load(on_gpu, shape.packed_on_gpu, KV_BYTES[shape.kv_dtype], missed, shape.prefill_chunk)
    made, rates = traffic(index), speeds(machine, threads)
    reading = estimate.prefill(index, made, load, rates, prompt)
    writing = estimate.decode(index, made, load, rates, depth)
    return _scaled(reading, request.calibration[0]), _scaled(writing, request.calibration[1])


def _scaled(found: Estimate, by: float) -> Estimate:
    return found if by == 1.0 else replace(found, low=found.low * by, likely=found.likely * by, high=found.high * by)


def _hot_experts(
    model: Counted, shape: Shape, ledger: tuple[LedgerLine, ...], room: Mapping[str, int]
) -> HotExperts | None:
    """The experts that the GPU's spare memory could hold, as many of each layer; their share of reads is even."""
    device = shape.placement.dense
    layers = expert_layers(model.index) if device != "cpu" else []
    if not layers or device not in room:
        return None
    spare = room[device] - _needed(ledger, device)
    of = sum(layer[0].shape[0] for layer in layers)
    count = min(of, max(0, spare) // max(one_expert_bytes(layer) for layer in layers))
    each = model.experts / of
    return HotExperts(count, of, int(count * each), count / of) if count else None


def _nodes_of(machine: Machine, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """The node of each CPU; empty where one of them is on none, as on an imagined machine."""
    nodes = {cpu: node.id for node in machine.nodes for cpu in node.cpus}
    return tuple(nodes[cpu] for cpu in cpus) if all(cpu in nodes for cpu in cpus) else ()


def _threads(machine: Machine, wanted: int | None) -> tuple[tuple[int, ...], list[str]]:
    """The CPUs to pin workers to, and notes."""
    usable = len(machine.cpus)
    if not usable:
        raise UsageError("the machine has no usable CPU", "hetero probe --json > FILE writes a machine file")
    if wanted is None:
        return machine.cpus, []
    if wanted < 1:
        raise UsageError(f"threads must be at least 1, found {wanted}")
    most = usable + len(machine.spare_cpus)
    if wanted > most:
        raise UsageError(
            f"{wanted} threads asked, but this process may run on {most} of {machine.visible_cpus} CPUs",
            f"--threads {usable}: {machine.cpu_reason}",
        )
    cpus = (*machine.cpus, *machine.spare_cpus)[:wanted]
    if wanted <= usable:
        return cpus, []
    return cpus, [f"{wanted} threads, but {machine.cpu_reason}: the slowest thread sets the pace of all"]


def _kv_dtype(index: ModelIndex, wanted: str) -> str:
    if wanted == "auto":
        return "f32" if all_f32(index) else "bf16"
    if wanted not in KV_BYTES:
        raise UsageError(f"unknown KV type {wanted!r}", f"one of auto, {', '.join(KV_BYTES)}")
    return wanted


def _wanted_context(index: ModelIndex, request: PlanRequest) -> tuple[int, list[str]]:
    if request.context is None:
        return min(index.max_context, DEFAULT_CONTEXT), []
    if request.context < 1:
        raise UsageError(f"context must be at least 1 token, found {request.context}")
    if request.context > index.max_context:
        text = f"context {request.context} is more than the {index.max_context} tokens that {index.name} was made for"
        if not request.force:
            raise UsageError(text, f"--context {index.max_context}, or --force")
        return request.context, [text]
    return request.context, []


def _place(model: Counted, machine: Machine, request: PlanRequest, shape: Shape) -> tuple[Shape, list[str]]:
    """The shape with the owner of the dense parts decided; experts stay in CPU memory."""
    if request.device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {request.device!r}", "one of auto, cpu, cuda")
    if request.device == "cuda" and not machine.gpus:
        raise HardwareError(
            f"--device cuda, but {machine.gpu_reason or 'no usable GPU was found'}",
            "--device cpu, or hetero probe for what was looked at",
        )
    if request.device == "cpu" or not machine.gpus:
        return shape, []
    chunk = GPU_CHUNK if shape.packed_on_gpu else shape.prefill_chunk
    on_gpu = replace(shape, placement=Placement(dense="cuda"), prefill_chunk=chunk)
    if request.device == "cuda":
        return on_gpu, []
    smallest = replace(on_gpu, context=min(shape.context, request.context or SMALLEST_CONTEXT))
    room = _room(machine, on_gpu.placement, request.reserve)
    if "cuda" in _shortfalls(make_ledger(model, smallest), room):
        return shape, [f"everything on the CPU: the dense parts do not fit in {size_text(room['cuda'])} of GPU memory"]
    return on_gpu, []


def _room(machine: Machine, placement: Placement, reserve: int | None) -> dict[str, int]:
    """Bytes free per device, for the devices whose memory is known, less what is to be left alone."""
    room = {"cpu": machine.memory_bytes}
    if placement.dense != "cpu" and machine.gpu_memory_bytes:
        room[placement.dense] = machine.gpu_memory_bytes[0]
    return {device: free - (reserve or 0) for device, free in room.items()}


def _shortfalls(ledger: tuple[LedgerLine, ...], room: Mapping[str, int]) -> dict[str, int]:
    """Bytes missing per device; empty if all fits."""
    missing = {device: _needed(ledger, device) - free for device, free in room.items()}
    return {device: short for device, short in missing.items() if short > 0}


def _needed(ledger: tuple[LedgerLine, ...], device: str) -> int:
    return sum(line.bytes for line in ledger if line.device == device)


def _shrink(model: Counted, shape: Shape, room: Mapping[str, int], floor: int = SMALLEST_CONTEXT) -> Shape:
    """The shape with the largest context, in whole pages and not below `floor`, that fits; unchanged if none does."""
    if not _shortfalls(make_ledger(model, shape), room):
        return shape
    low, high = -(-floor // PAGE_TOKENS), (shape.context - 1) // PAGE_TOKENS
    best = replace(shape, context=low * PAGE_TOKENS)
    if low > high or _shortfalls(make_ledger(model, best), room):
        return shape
    while low < high:
        middle = (low + high + 1) // 2
        candidate = replace(shape, context=middle * PAGE_TOKENS)
        if _shortfalls(make_ledger(model, candidate), room):
            high = middle - 1
        else:
            best, low = candidate, middle
    return best


def _refusal(
    model: Counted,
    machine: Machine,
    shape: Shape,
    ledger: tuple[LedgerLine, ...],
    short: Mapping[str, int],
    room: Mapping[str, int],
) -> HardwareError:
    hint = _remedy(model, shape, room, short)
    return HardwareError(f"{model.index.name} does not fit: {_short_text(machine, ledger, short, room)}", hint)


def _short_text(
    machine: Machine, ledger: tuple[LedgerLine, ...], short: Mapping[str, int], room: Mapping[str, int]
) -> str:
    device = next(iter(short))
    needed = size_text(_needed(ledger, device))
    if device == "cpu":
        return f"needs {needed} of memory, {machine.memory_reason or size_text(room[device]) + ' usable'}"
    return f"needs {needed} of {device} memory, {size_text(room[device])} free"


def _remedy(model: Counted, shape: Shape, room: Mapping[str, int], short: Mapping[str, int]) -> str:
    """The smallest change that makes it fit: less context, then smaller experts, then more memory; or --force."""
    shorter = _shrink(model, shape, room, floor=PAGE_TOKENS)
    if shorter.context < shape.context:
        return f"--context {shorter.context} fits"
    smallest = replace(shape, context=min(shape.context, SMALLEST_CONTEXT))
    formats = _smaller_formats(model)
    for candidate, context in ((shape, ""), (smallest, f" and --context {smallest.context}")):
        for smaller, format, name in formats:
            if not _shortfalls(make_ledger(smaller, candidate), room):
                return f"a {format} version fits (hetero convert MODEL --experts {name}){context}"
    device, missing = next(iter(short.items()))
    if device != "cpu":
        return f"--device cpu, or free {size_text(missing)} on the GPU"
    whole = size_text(room[device] + missing)
    return f"free {size_text(missing)} of memory ({whole} in all), or choose a smaller model; --force loads it anyway"


def _smaller_formats(model: Counted) -> list[tuple[Counted, str, str]]:
    """The model with its experts in those of `_SMALLER` that would shrink them and that their widths allow."""
    found = []
    for format, name in _SMALLER:
        try:
            smaller = count(with_formats(model.index, format, None))
        except UsageError:
            continue
        if smaller.experts < model.experts:
            found.append((smaller, format, name))
    return found
