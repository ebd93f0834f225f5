"""`hetero plan`: does it fit, how fast will it be, and what would help, before anything is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetero.cli import options
from hetero.cli.planned import Said, machine_of
from hetero.machine.types import PlanRequest, UsageError

Text = str | None
_TEXT = {"show_default": False}


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A card (deepseek-r1), a checkpoint, store, config.json, https://….gguf or hf:ORG/REPO.",
            show_default=False,
        ),
    ] = None,
    machine: Annotated[
        Path | None, typer.Option("--machine", metavar="FILE", help="A file of `hetero probe --json`.", **_TEXT)
    ] = None,
    ram: Annotated[Text, typer.Option("--ram", metavar="512G", help="Memory that may be used.", **_TEXT)] = None,
    vram: Annotated[Text, typer.Option("--vram", metavar="24G", help="The GPU's memory; 0: no GPU.", **_TEXT)] = None,
    gpu: Annotated[Text, typer.Option("--gpu", metavar="NAME", help='Such as "RTX 5090".', **_TEXT)] = None,
    bandwidth: Annotated[
        Text, typer.Option("--bandwidth", metavar="400GB/s", help="What all cores read of memory.", **_TEXT)
    ] = None,
    ram_speed: Annotated[
        int | None, typer.Option("--ram-speed", metavar="4800", help="MT/s, with --channels.", **_TEXT)
    ] = None,
    channels: Annotated[
        int | None, typer.Option("--channels", metavar="8", help="Memory channels of a socket.", **_TEXT)
    ] = None,
    pcie: Annotated[Text, typer.Option("--pcie", metavar="25GB/s", help="Copies to the GPU.", **_TEXT)] = None,
    isa: Annotated[Text, typer.Option("--isa", metavar="amx", help="generic, avx2, avx512 or amx.", **_TEXT)] = None,
    cores: Annotated[int | None, typer.Option("--cores", metavar="36", help="Of a socket.", **_TEXT)] = None,
    sockets: Annotated[int | None, typer.Option("--sockets", metavar="2", help="CPU sockets.", **_TEXT)] = None,
    ssd: Annotated[Text, typer.Option("--ssd", metavar="6GB/s", help="Reads of the disk.", **_TEXT)] = None,
    context: Annotated[Text, typer.Option("--context", "-c", metavar="N", help="Tokens; 32k is fine.", **_TEXT)] = None,
    kv_dtype: options.KvDtype = "auto",
    experts: Annotated[
        Text, typer.Option("--experts", metavar="q4", help="Format to count experts in.", **_TEXT)
    ] = None,
    dense: Annotated[Text, typer.Option("--dense", metavar="q8", help="Format of the dense part.", **_TEXT)] = None,
    reserve: Annotated[
        Text, typer.Option("--reserve", metavar="2G", help="Memory to leave alone on each device.", **_TEXT)
    ] = None,
    threads: options.Threads = None,
    device: options.Device = "auto",
    depth: Annotated[
        Text, typer.Option("--depth", metavar="N", help="Decode after N tokens; by default half the context.", **_TEXT)
    ] = None,
    prompt: Annotated[Text, typer.Option("--prompt", metavar="N", help="Prompt tokens to read.", **_TEXT)] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every formula, its inputs and their origin.")
    ] = False,
    target_tps: Annotated[
        float | None, typer.Option("--target-tps", metavar="X", help="What change decodes X tokens/s?", **_TEXT)
    ] = None,
    sweep: Annotated[
        Text, typer.Option("--sweep", metavar="NAME=A..B", help="A curve, such as context=4k..128k.", **_TEXT)
    ] = None,
    agents: Annotated[
        int | None, typer.Option("--agents", metavar="N", help="Size KV memory for N agents.", **_TEXT)
    ] = None,
    hit_rate: Annotated[
        float | None, typer.Option("--hit-rate", metavar="0.95", help="Prompt tokens to find in the cache.", **_TEXT)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Requests to replay, JSON lines.", **_TEXT)
    ] = None,
    node_ram: Annotated[Text, typer.Option("--node-ram", metavar="1T", help="Memory of a KV node.", **_TEXT)] = None,
    node_net: Annotated[Text, typer.Option("--node-net", metavar="25GB/s", help="Network of it.", **_TEXT)] = None,
    node_prefill: Annotated[
        float | None, typer.Option("--node-prefill", metavar="X", help="Tokens/s of a GPU node, not this one.", **_TEXT)
    ] = None,
    node_decode: Annotated[float | None, typer.Option("--node-decode", metavar="X", help="The same.", **_TEXT)] = None,
    history: Annotated[bool, typer.Option("--history", help="Show predicted and measured of earlier runs.")] = False,
    no_calibration: Annotated[
        bool, typer.Option("--no-calibration", help="Do not scale by what earlier runs here showed.")
    ] = False,
    force: options.Force = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """Say whether a model fits and how fast it will be, without downloading or loading it."""
    from hetero.cli import plan_capacity, plan_history, plan_more, plan_view
    from hetero.cli.history import calibrated
    from hetero.machine import quantities
    from hetero.machine.advice import Case
    from hetero.models.describe import describe
    from hetero.native.widths import format_name

    said = Said(machine, ram, vram, bandwidth, pcie, isa, cores, sockets, ssd, ram_speed, channels, gpu)
    request = PlanRequest(
        device=device,
        threads=threads,
        context=None if context is None else quantities.parse_tokens(context, "--context"),
        kv_dtype=kv_dtype,
        force=force,
        experts=None if experts is None else format_name(experts),
        dense=None if dense is None else format_name(dense),
        reserve=None if reserve is None else quantities.parse_bytes_or_zero(reserve, "--reserve"),
        depth=None if depth is None else quantities.parse_tokens(depth, "--depth"),
        prompt=None if prompt is None else quantities.parse_tokens(prompt, "--prompt"),
    )
    wants_capacity = agents is not None or trace is not None or hit_rate is not None
    _refuse_contradictions(explain, target_tps, sweep, wants_capacity, history)
    if history:
        return plan_history.show(json)
    place = machine_of(said, device)
    if not no_calibration and not said.figures():
        request = calibrated(request, place)
    case = Case(describe(_name(model)), place, request)
    if sweep is not None:
        plan_more.show_sweep(case, sweep, json)
    elif target_tps is not None:
        plan_more.show_target(case, target_tps, json)
    elif wants_capacity:
        plan_capacity.show(
            case, plan_capacity.Asked(agents, hit_rate, trace, node_ram, node_net, node_prefill, node_decode), json
        )
    else:
        made = case.plan()
        inputs = {"model": _name(model), "machine": said.figures()}
        plan_view.show(case, made, json, inputs=inputs, explain=explain)
        if not made.fits and not force:
            raise typer.Exit(3)


def _name(model: str | None) -> str:
    if model is None:
        from hetero.models import demo

        return str(demo.path())
    if not model.strip():
        raise UsageError("MODEL is empty", "give a card, a file, a directory or an address")
    return model


def _refuse_contradictions(
    explain: bool, target: float | None, sweep: str | None, capacity: bool, history: bool
) -> None:
    given = {"--explain": explain, "--target-tps": target is not None, "--sweep": sweep is not None}
    given |= {"--agents, --hit-rate or --trace": capacity, "--history": history}
    asked = [name for name, present in given.items() if present]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} cannot be answered at once", "give one of them")
