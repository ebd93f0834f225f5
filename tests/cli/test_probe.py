"""`hetero probe` as a user meets it: quick without heavy imports, rates kept and told apart, readable everywhere."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero.cli import probe_view, rates
from hetero.machine.probe import probe
from hetero.machine.rates import store_rates
from hetero.machine.types import Gpu, KernelRate, Machine, Measured, Node, RateAt, Rates, TierStatus
from tests.cli.harness import COMMAND, Run, hetero, terminal

GIB = 1 << 30


def read(threads: int, rate: float) -> RateAt:
    return RateAt(threads, Measured(rate, "B/s", "measured", 0.1, 5))


RATES = Rates(
    stream_read=tuple(read(n, 1.1e10 * min(n, 4)) for n in (1, 2, 3, 4, 6, 8)),
    gather_read=tuple(read(n, 1e10 * min(n, 4)) for n in (1, 2, 3, 4, 6, 8)),
    node_reads=(
        RateAt(4, Measured(2e10, "B/s"), 0, 0),
        RateAt(4, Measured(1e10, "B/s"), 0, 1),
        RateAt(4, Measured(2e10, "B/s"), 1, 1),
    ),
    knee_threads=4,
    int8_ops=Measured(2.5e12, "op/s", "measured", 0.02, 5),
    f32_flops=Measured(5e11, "op/s", "measured", 0.02, 5),
    ssd_read=Measured(5e9, "B/s", "measured", 0.02, 5),
    kernels=(KernelRate("Q4_0", 1, Measured(4e11, "op/s")),),
    notes=("disk of a fixture",),
)
MACHINE = Machine(
    cpu_model="Fixture CPU",
    cpus=tuple(range(8)),
    visible_cpus=28,
    cpu_reason="8 of 20 cores usable (performance cores 0-15)",
    memory_bytes=60 * GIB,
    memory_total_bytes=64 * GIB,
    memory_reason="60.0 GiB of 64.0 GiB usable (MemAvailable in /proc/meminfo)",
    tiers=(),
    isa_tier="avx2",
    gpus=("RTX 5090",),
    gpu_reason="RTX 5090 (31.0 GiB free)",
    nodes=(Node(0, tuple(range(14)), 32 * GIB), Node(1, tuple(range(14, 28)), 32 * GIB)),
    sockets=1,
    clustering="2 NUMA nodes per socket (SNC2)",
    physical_cores=20,
    performance_cores=8,
    threads_per_core=2,
    devices=(
        Gpu("RTX 5090", 32 * GIB, 31 * GIB, "12.0", Measured(5e10, "B/s", "assumed", samples=0), True, "", "file"),
        Gpu("RTX 3060", 12 * GIB, 11 * GIB, "8.6", None, True, "one GPU is used: the first", "file"),
    ),
    rates=RATES,
)


def shown(machine: Machine, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    probe_view.show(machine)
    captured = capsys.readouterr()
    return captured.out, captured.err


def row(text: str, label: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(label)).split()


def test_quick_look_imports_neither_torch_nor_numpy(env: dict[str, str]) -> None:
    code = (
        "import sys; from hetero.cli.main import main; main(['probe', '--quick', '--json']); "
        "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, check=False)
    assert done.stdout.decode().splitlines()[-1] == "[]"


def test_rates_are_measured_once_then_kept_and_shown_with_their_age(env: dict[str, str], tmp_path: Path) -> None:
    first = json.loads(hetero("probe", "--json", env=env).stdout)
    again = json.loads(hetero("probe", "--json", env=env).stdout)
    assert first["rates"]["gather_read"]
    assert again["rates"] == first["rates"]
    assert any("rates measured" in note and "--fresh" in note for note in again["notes"])
    assert not any("--fresh" in note for note in first["notes"])
    quick = hetero("probe", "--quick", env=env)
    assert "measured" in row(quick.stdout.decode(), "int8")
    kept = list((tmp_path / "state/cache/hetero").iterdir())
    assert [(path.name[:6], path.stat().st_mode & 0o777) for path in kept] == [("rates-", 0o600)]


def keep(env: dict[str, str]) -> Path:
    """Put the fixture's rates where `hetero probe` of this machine finds them."""
    folder = Path(env["XDG_CACHE_HOME"]) / "hetero"
    folder.mkdir(parents=True)
    store_rates(probe(quick=True), RATES, folder)
    (path,) = folder.iterdir()
    return path


def test_damaged_rates_are_noted_and_leave_the_look_working(env: dict[str, str]) -> None:
    keep(env).write_text("{")
    done = hetero("probe", "--quick", env=env)
    assert done.returncode == 0
    assert b"damaged" in done.stderr
    assert b"Not measured yet" in done.stdout


def test_damaged_rates_are_measured_again(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = keep(env)
    path.write_text("{")
    monkeypatch.setenv("XDG_CACHE_HOME", env["XDG_CACHE_HOME"])
    monkeypatch.setattr("hetero.machine.measure.measure", lambda *_: RATES)
    machine = rates.with_measured_rates(probe(quick=True), fresh=False)
    assert machine.rates == RATES
    assert any("damaged" in note for note in machine.notes)
    assert rates.with_known_rates(probe(quick=True)).rates == RATES


def test_fresh_measures_although_rates_are_kept(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    keep(env)
    other = dataclasses.replace(RATES, knee_threads=1)
    monkeypatch.setenv("XDG_CACHE_HOME", env["XDG_CACHE_HOME"])
    monkeypatch.setattr("hetero.machine.measure.measure", lambda *_: other)
    assert rates.with_measured_rates(probe(quick=True), fresh=False).rates == RATES
    assert rates.with_measured_rates(probe(quick=True), fresh=True).rates == other
    assert rates.with_known_rates(probe(quick=True)).rates == other


def test_no_folder_for_caches_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("hetero.machine.measure.measure", lambda *_: RATES)
    machine = rates.with_measured_rates(probe(quick=True), fresh=False)
    assert machine.rates == RATES
    assert any("rates not kept" in note for note in machine.notes)


def test_quick_and_fresh_contradict_each_other(run: Run) -> None:
    code, _, err = run("probe", "--quick", "--fresh")
    assert code == 2
    assert "--fresh" in err


def test_interrupt_keeps_nothing_and_leaves_no_file(env: dict[str, str], tmp_path: Path) -> None:
    with subprocess.Popen([*COMMAND, "probe", "--fresh"], env=env, stdout=subprocess.PIPE) as process:
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    folder = tmp_path / "state/cache/hetero"
    assert not folder.exists() or list(folder.iterdir()) == []


def test_screen_tells_what_is_used_how_fast_and_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(MACHINE, capsys)
    assert "20 cores (8 performance, 12 efficiency), SMT with 2 threads a core" in out
    assert "2 nodes of 14 CPUs and 32.0 GiB; 2 NUMA nodes per socket (SNC2)" in out
    assert row(out, "GPU")[-1] == "file"
    assert row(out, "PCIe") == ["PCIe", "50.0", "GB/s", "assumed"]
    assert "not used: one GPU is used: the first" in out
    # One, half of the threads, the knee and all are shown.
    assert [line.split()[0] for line in out.splitlines() if " thread" in line and "GB/s" in line] == ["1", "4", "8"]
    assert row(out, "4 threads (knee)")[3:9] == ["44.0", "GB/s", "40.0", "GB/s", "±5", "%"]
    assert row(out, "local node")[2:4] == ["20.0", "GB/s"]
    assert row(out, "remote node")[2:4] == ["10.0", "GB/s"]
    assert row(out, "int8")[1:3] == ["2.50", "Top/s"]
    assert "Reads experts at 40.0 GB/s: at most 23.7 tok/s for 3 B active parameters at 4 bits." in out
    assert "at most 417 tok/s of prompt" in out
    assert "4 of 8 threads already reach 95 % of the memory's rate." in out


def test_unmeasured_machine_says_how_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(dataclasses.replace(MACHINE, rates=None), capsys)
    assert "Not measured yet: `hetero probe` without --quick" in out


def test_broken_gpu_is_a_warning_and_other_notes_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "NVIDIA GPU present (PCI 0000:01:00.0) but unusable: Error 804"
    notes = (f"{reason}. Everything runs on the CPU. Reboot", "virtual machine")
    _, err = shown(dataclasses.replace(MACHINE, devices=(), gpus=(), gpu_reason=reason, notes=notes), capsys)
    assert err.splitlines() == [f"warning: {notes[0]}", "virtual machine"]


@pytest.mark.parametrize("columns", [40, 80])
def test_rates_fit_the_terminal(env: dict[str, str], columns: int) -> None:
    keep(env)
    with terminal("probe", "--quick", env=env, columns=columns) as screen:
        assert screen.wait() == 0
        assert "memory" in screen.text
        assert ("█" in screen.text) == (columns == 80)
        assert all(len(line) <= columns for line in screen.text.splitlines())


def test_no_color_has_no_escape_codes(env: dict[str, str]) -> None:
    keep(env)
    with terminal("probe", "--quick", env=env | {"NO_COLOR": "1"}) as screen:
        assert screen.wait() == 0
        assert "\x1b" not in screen.raw


def test_ascii_output_has_bars_too(env: dict[str, str]) -> None:
    keep(env)
    done = hetero("probe", "--quick", env=env | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert b"####" in done.stdout
    assert b"?" not in done.stdout


def test_one_reason_against_all_tiers_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "no native kernels: no C++ compiler was found at install"
    tiers = tuple(TierStatus(name, False, False, reason) for name in ("generic", "avx2"))
    tiers += (TierStatus("amx", False, False, "this CPU lacks amx_tile"),)
    machine = dataclasses.replace(MACHINE, tiers=tiers, isa_tier=None, isa_reason=f"{reason}; install g++")
    out, _ = shown(machine, capsys)
    assert out.count(reason) == 1
    assert row(out, "generic")[1] == "no"
    assert "this CPU lacks amx_tile" in out
