"""Measured rates: what is measured is there, holds together, and leaves nothing behind. No rate is demanded."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero.machine import disk
from hetero.machine.disk import PIECE_BYTES, measure_disk, summary
from hetero.machine.measure import measure, memory_to_read
from hetero.machine.measure_cpu import Effort, across_nodes, knee, own_nodes, thread_counts
from hetero.machine.probe import probe
from hetero.machine.types import Machine, Measured, Node, RateAt, Rates
from hetero.native import FORMATS

MIB = 1 << 20
SMALL = Effort(
    set_bytes=48 * MIB, disk_bytes=8 * PIECE_BYTES, sample_seconds=0.001, samples=3, seconds=0.5, piece_bytes=MIB
)


@pytest.fixture(scope="module")
def machine() -> Machine:
    here = probe(device="cpu")
    if here.isa_tier is None:
        pytest.skip("NOT TESTED: no kernels are built")
    return dataclasses.replace(here, cache_bytes=0)


@pytest.fixture(scope="module")
def rates(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Rates:
    return measure(machine, tmp_path_factory.mktemp("disk"), effort=SMALL)


def test_every_rate_is_measured_and_positive(machine: Machine, rates: Rates) -> None:
    assert [at.threads for at in rates.gather_read] == thread_counts(len(machine.cpus))
    assert [at.threads for at in rates.stream_read] == thread_counts(len(machine.cpus))
    every = [at.rate for at in rates.stream_read + rates.gather_read] + [kernel.rate for kernel in rates.kernels]
    assert rates.int8_ops is not None
    assert rates.f32_flops is not None
    for rate in [*every, rates.int8_ops, rates.f32_flops]:
        assert rate.value > 0
        assert rate.source == "measured"
        assert rate.spread >= 0
        assert rate.samples >= 2
    assert {kernel.format for kernel in rates.kernels} == {info.kernel for info in FORMATS.values()}
    assert rates.set_bytes == 48 * MIB
    assert rates.piece_bytes == MIB


def test_gathering_and_a_linear_pass_are_of_one_order(rates: Rates) -> None:
    # Wide, because other programs disturb one or the other; a wrong unit or count would be far outside.
    gather, stream = (max(at.rate.value for at in reads) for reads in (rates.gather_read, rates.stream_read))
    assert stream / 10 <= gather <= 10 * stream


def test_products_and_multiplications_in_registers_are_of_one_order(rates: Rates) -> None:
    assert rates.int8_ops is not None
    best = max(kernel.rate.value for kernel in rates.kernels if kernel.format == "Q8_0")
    assert rates.int8_ops.value / 30 <= best <= 10 * rates.int8_ops.value


def test_progress_counts_up_to_its_total(machine: Machine, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    measure(machine, tmp_path, lambda *step: seen.append(step), SMALL)
    assert [done for done, _, _ in seen] == list(range(len(seen)))
    assert {total for _, total, _ in seen} == {len(seen)}


def test_affinity_is_as_before(machine: Machine) -> None:
    before = os.sched_getaffinity(0)
    measure(machine, None, effort=SMALL)
    assert os.sched_getaffinity(0) == before


def test_without_kernels_only_the_disk_is_measured(machine: Machine, tmp_path: Path) -> None:
    found = measure(dataclasses.replace(machine, isa_tier=None), tmp_path, effort=SMALL)
    assert (found.stream_read, found.int8_ops, found.kernels) == ((), None, ())
    assert any("no kernels" in note for note in found.notes)


def test_want_of_memory_is_a_note(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(n_bytes: int) -> None:
        raise MemoryError(f"cannot allocate {n_bytes} bytes")

    monkeypatch.setattr("hetero.machine.measure_cpu.allocate", refuse)
    found = measure(machine, None, effort=SMALL)
    assert found.gather_read == ()
    assert any("cannot allocate" in note for note in found.notes)


def test_each_node_is_read_by_itself_and_by_the_first(machine: Machine) -> None:
    cpus = machine.cpus[:1]
    nodes = [Node(number, cpus, 0) for number in range(6)]
    pairs = [(at.cpu_node, at.memory_node) for at in across_nodes(nodes, str(machine.isa_tier), SMALL)]
    assert pairs == [(0, 0), *(pair for n in range(1, 6) for pair in ((0, n), (n, n)))]
    few = list(across_nodes(nodes[:2], str(machine.isa_tier), SMALL))
    assert [(at.cpu_node, at.memory_node) for at in few] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert all(at.rate.value > 0 for at in few)


def test_nodes_are_measured_by_the_cpus_in_use(machine: Machine) -> None:
    nodes = (Node(0, (0, 1, 2), 0), Node(1, (3, 4), 0), Node(2, (), 0))
    two = dataclasses.replace(machine, cpus=(1, 4), nodes=nodes)
    assert [node.cpus for node in own_nodes(two)] == [(1,), (4,)]
    assert own_nodes(dataclasses.replace(two, cpus=(0, 1))) == []


def test_memory_to_read_is_far_more_than_the_caches_and_a_quarter_at_most(machine: Machine) -> None:
    large = dataclasses.replace(machine, memory_bytes=1 << 40, cache_bytes=1 << 30)
    assert memory_to_read(large, 1 << 30) == 8 << 30
    assert memory_to_read(dataclasses.replace(large, memory_bytes=4 << 30), 2 << 30) == 1 << 30


def test_a_set_that_the_caches_nearly_hold_is_noted(machine: Machine) -> None:
    cached = dataclasses.replace(machine, cache_bytes=1 << 30, memory_bytes=192 * MIB)
    assert any("too high" in note for note in measure(cached, None, effort=SMALL).notes)


@pytest.mark.parametrize(
    ("n", "counts"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 3, 4, 5]), (20, [1, 2, 3, 4, 6, 8, 12, 16, 20])]
)
def test_thread_counts(n: int, counts: list[int]) -> None:
    assert thread_counts(n) == counts


def test_knee_is_the_first_count_near_the_best() -> None:
    reads = [RateAt(threads, Measured(rate, "B/s")) for threads, rate in ((1, 10.0), (2, 19.1), (3, 20.0), (4, 15.0))]
    assert knee(reads) == 2


def test_summary_is_median_and_relative_range() -> None:
    assert summary([4.0, 1.0, 2.0], "B/s") == Measured(2.0, "B/s", "measured", 1.5, 3)
    assert summary([1.0, 3.0], "B/s").value == 2.0


def test_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = measure_disk(tmp_path, SMALL.disk_bytes)
    if found.note:
        pytest.skip(f"NOT TESTED: {found.note}")
    assert found.read is not None
    assert found.write is not None
    assert found.read.value > 0
    assert found.write.value > 0
    assert list(tmp_path.iterdir()) == []


def test_memory_file_system_is_no_disk() -> None:
    if disk._filesystem(Path("/dev/shm")) != "tmpfs":
        pytest.skip("NOT TESTED: /dev/shm is no tmpfs here")
    found = measure_disk(Path("/dev/shm"))
    assert (found.read, found.write) == (None, None)
    assert "in memory (tmpfs)" in found.note


@pytest.mark.parametrize(
    ("code", "said"), [(errno.EINVAL, "no direct I/O"), (errno.EROFS, "Read-only"), (errno.ENOSPC, "No space")]
)
def test_disk_that_refuses_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk, "_MEMORY_FILESYSTEMS", frozenset())
    monkeypatch.setattr("hetero.machine.disk.os.open", refuse)
    found = measure_disk(tmp_path)
    assert (found.read, found.write) == (None, None)
    assert said in found.note


def test_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_FREE_SHARE", 0.0)
    monkeypatch.setattr(disk, "_MEMORY_FILESYSTEMS", frozenset())
    assert "free" in measure_disk(tmp_path).note
    assert list(tmp_path.iterdir()) == []


def test_interrupt_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom hetero.machine.disk import measure_disk\n"
        f"for _ in range(1000): print(measure_disk(Path({str(tmp_path)!r}), 32 << 20).note, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
    assert list(tmp_path.iterdir()) == []
