"""`hetero plan`: does it fit, how fast will it be, and what would help, before anything is downloaded."""

from __future__ import annotations

import typer

from hetero.cli import options
from hetero.cli import plan_options as given
from hetero.cli.planned import Asked, Said, Wanted, answer


def plan(
    model: given.Model = None,
    machine: given.MachineFile = None,
    ram: given.Ram = None,
    vram: given.Vram = None,
    gpu: given.GpuName = None,
    bandwidth: given.Bandwidth = None,
    ram_speed: given.RamSpeed = None,
    channels: given.Channels = None,
    pcie: given.Pcie = None,
    isa: given.Isa = None,
    cores: given.Cores = None,
    sockets: given.Sockets = None,
    ssd: given.Ssd = None,
    context: given.Context = None,
    kv_dtype: options.KvDtype = "auto",
    experts: given.Experts = None,
    dense: given.Dense = None,
    reserve: given.Reserve = None,
    threads: options.Threads = None,
    device: options.Device = "auto",
    depth: given.Depth = None,
    prompt: given.Prompt = None,
    explain: given.Explain = False,
    target_tps: given.TargetTps = None,
    sweep: given.Sweep = None,
    agents: given.Agents = None,
    hit_rate: given.HitRate = None,
    trace: given.TraceFile = None,
    node_ram: given.NodeRam = None,
    node_net: given.NodeNet = None,
    node_prefill: given.NodePrefill = None,
    node_decode: given.NodeDecode = None,
    history: given.History = False,
    no_calibration: given.NoCalibration = False,
    force: options.Force = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """Say whether a model fits and how fast it will be, without downloading or loading it."""
    said = Said(machine, ram, vram, bandwidth, pcie, isa, cores, sockets, ssd, ram_speed, channels, gpu)
    wanted = Wanted(context, kv_dtype, experts, dense, reserve, threads, device, depth, prompt, force)
    capacity = Asked(agents, hit_rate, trace, node_ram, node_net, node_prefill, node_decode)
    fits = answer(model, said, wanted, capacity, json, explain, target_tps, sweep, history, not no_calibration)
    if not fits and not force:
        raise typer.Exit(3)
